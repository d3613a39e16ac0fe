// The header of a .npy file: dtype, shape, and where the data begin.
//
//   NpyHeader header;
//   std::string why = read_npy_header(first_bytes, /*file_bytes=*/1152, header);   // empty: fine
//
// Versions 1 to 3; little-endian or single-byte dtypes that a batch can carry (uint8, int32, int64, float16, float32,
// float64), C order. The data must be exactly as long as dtype and shape say. A pure function: nothing is trusted,
// nothing allocated beyond the shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/fields.h"

namespace penstock {

inline constexpr size_t kMaxNpyHeader = 4096;  // so much of the file is enough

struct NpyHeader {
  DType dtype = DType::uint8;
  std::vector<int64_t> shape;
  uint64_t data = 0;  // offset
};

std::string read_npy_header(std::span<const std::byte> begin, uint64_t file_bytes, NpyHeader& out);

}  // namespace penstock
