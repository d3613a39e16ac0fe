// How decoded coefficients lie in memory between entropy decoding and the inverse transform.
//
// Four neighbouring blocks of a row of blocks make a tile of 256 int16: coefficient (row r, column c) of the tile's
//   block j is at r * 32 + j * 8 + c, so that one row of all four is contiguous and vector code of any width up to 64
//   bytes treats 1, 2 or 4 blocks alike. Block i of a row is block i % 4 of tile i / 4. Values are as in the file,
//   before dequantising.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

inline constexpr size_t kBlocksPerTile = 4;
inline constexpr size_t kTileCoefficients = 256;

// Where block `i` of a row of tiles begins; its coefficient at `place` (row * 8 + column) is tile_offset(place)
// further.
PENSTOCK_HOST_DEVICE inline constexpr size_t tile_block_begin(size_t i) {
  return i / kBlocksPerTile * kTileCoefficients + i % kBlocksPerTile * 8;
}
PENSTOCK_HOST_DEVICE inline constexpr size_t tile_offset(size_t place) {
  return place / 8 * 32 + place % 8;
}
inline constexpr size_t tiles_of(size_t blocks) {
  return (blocks + kBlocksPerTile - 1) / kBlocksPerTile;
}

}  // namespace penstock
