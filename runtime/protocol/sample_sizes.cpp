#include "runtime/protocol/sample_sizes.h"

#include <algorithm>
#include <bit>

namespace penstock {

namespace {

constexpr int kSteps = 8;  // to a doubling
constexpr int kMostCode = 255;

// 2^(i/8), in 1/4096.
constexpr std::array<int64_t, kSteps> kEighths = {4096, 4467, 4871, 5312, 5793, 6317, 6889, 7512};

}  // namespace

// Code 1 + 8 * e + i stands for 2^e * 2^(i/8), rounded down; sizes are rounded to the nearest below.
uint8_t size_code(int64_t bytes) {
  if (bytes <= 0) return 0;
  const int octave = static_cast<int>(std::bit_width(static_cast<uint64_t>(bytes))) - 1;
  int i = kSteps - 1;
  while (i > 0 && size_of_code(static_cast<uint8_t>(std::min(kMostCode, 1 + kSteps * octave + i))) > bytes) --i;
  return static_cast<uint8_t>(std::min(kMostCode, 1 + kSteps * octave + i));
}

int64_t size_of_code(uint8_t code) {
  if (code == 0) return 0;
  const int octave = (code - 1) / kSteps;
  const int64_t eighth = kEighths[static_cast<size_t>((code - 1) % kSteps)];
  return octave < 12 ? (eighth << octave) >> 12 : eighth << (octave - 12);
}

void SampleSizes::set(int64_t first, std::string_view codes) {
  for (size_t i = 0; i < codes.size(); ++i) {
    const int64_t index = first + static_cast<int64_t>(i);
    if (codes[i] != 0) blocks_[index / kBlock][static_cast<size_t>(index % kBlock)] = static_cast<uint8_t>(codes[i]);
  }
}

int64_t SampleSizes::bytes_of(int64_t index) const {
  const auto block = blocks_.find(index / kBlock);
  return block == blocks_.end() ? 0 : size_of_code(block->second[static_cast<size_t>(index % kBlock)]);
}

}  // namespace penstock
