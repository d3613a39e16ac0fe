// Encoded images for tests, made in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock_test {

// Smooth shapes with noise: every pixel differs from its neighbours, so a shift by one shows.
std::vector<uint8_t> make_rgb(int width, int height, uint64_t seed);

// sampling: 1 is 4:4:4, 2 is 4:2:0.
std::vector<std::byte> encode_jpeg(const std::vector<uint8_t>& rgb, int width, int height, int quality, int sampling);
std::vector<std::byte> encode_png(const std::vector<uint8_t>& rgb, int width, int height);

}  // namespace penstock_test
