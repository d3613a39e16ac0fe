// A delivered chunk's token (ChunkArrived::token) where trainers read the loader's own chunk buffers, by inproc and
// shm: the chunk buffer.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace penstock {

constexpr uint64_t token_of(ChunkBufferRef chunk_buffer) noexcept {
  return uint64_t{chunk_buffer.arena} << 32 | chunk_buffer.index;
}
constexpr ChunkBufferRef chunk_buffer_of(uint64_t token) noexcept {
  return {static_cast<uint32_t>(token >> 32), static_cast<uint32_t>(token)};
}

}  // namespace penstock
