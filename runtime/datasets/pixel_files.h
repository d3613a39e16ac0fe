// The formats of small decoded pictures: CIFAR's records and MNIST's idx files.
//
//   IdxHeader header;
//   std::string why = read_idx_header(first_bytes, header);      // empty: fine
//   why = check_cifar(file_bytes, /*hundred=*/false, records);
//
// Pure functions over what a file begins with and its size; nothing is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

// idx: 0, 0, type, number of dimensions, then each extent, big-endian.
struct IdxHeader {
  int dimensions = 0;
  std::array<uint32_t, 3> extents{1, 1, 1};
  uint64_t data = 0;  // offset
};
inline constexpr size_t kMaxIdxHeader = 16;
std::string read_idx_header(std::span<const std::byte> begin, uint64_t file_bytes, IdxHeader& out);

// 1 label byte (CIFAR-100: coarse, then fine), then 32 x 32 red, green and blue.
inline constexpr uint64_t kCifarPixels = 3072;
std::string check_cifar(uint64_t file_bytes, bool hundred, uint64_t& records);

}  // namespace penstock
