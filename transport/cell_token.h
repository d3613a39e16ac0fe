// A delivered chunk's token (ChunkArrived::token) where trainers read the loader's own cells, by inproc and shm: the cell.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace penstock {

constexpr uint64_t token_of(CellRef cell) noexcept { return uint64_t{cell.arena} << 32 | cell.cell; }
constexpr CellRef cell_of(uint64_t token) noexcept {
  return {static_cast<uint32_t>(token >> 32), static_cast<uint32_t>(token)};
}

}  // namespace penstock
