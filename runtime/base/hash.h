// The stream's hashes: what "the same stream, bit for bit" means, as 2 x 128 bits.
//
//   StreamHash sum;
//   sum.add(sample_record(split, epoch, sample, draws, label), fields);   // per consumed sample, in any order
//   sum.order.hex(); sum.pixel.hex();
//
// Each hash is the sum modulo 2^128 of one XXH3-128 (seed 0) per consumed sample, so partial sums compose over
// trainers, restarts and resumes, in any order. Taken from the bytes that arrived, before a batch buffer is published.
//
// Record of one sample (little-endian, no padding):
//   u8   3                      version of this layout
//   u16  length of split name, then its bytes
//   u32  epoch
//   u64  position               global position in the epoch's order
//   u64  index                  the sample delivered (after a substitution: the substitute's)
//   u16  occurrence
//   u8   valid
//   i64  label                  -100 where not valid in eval; 0 where the split has no field "label"
//   u16  number of transforms that drew; for each: u16 position, u16 number of values, i64 each value. Of a split with
//        gpu_pipeline, at the end: position 0xFFFE, one value, the list that made it: 0 pipeline, 1 gpu_pipeline
// order_hash  sums XXH3-128(record);
// pixel_hash  sums XXH3-128(record | for each field but "label", in table order: its bytes before finishing). An image
//             is uint8 [3, h, w]. A bytes or text field is its length (u32), then its bytes; of an unusable sample it
//             is empty.
// A batch that MixUp or CutMix has mixed adds one more XXH3-128 to both, of this record:
//   u8   4
//   u16  length of split name, then its bytes
//   u32  epoch
//   u64  step                   of the replica's batches in the epoch
//   u32  replica
//   draws as above, those of the batch
// So what was drawn is covered, while samples are hashed as they are before the mixing, which follows from both.
// A 128-bit value is written as 32 hexadecimal digits, high half first (XXH128_hash_t.high64, .low64).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/sample.h"

namespace penstock {

// An integer modulo 2^128.
struct Sum128 {
  uint64_t low = 0;
  uint64_t high = 0;

  Sum128& operator+=(const Sum128& b) noexcept {
    const uint64_t before = low;
    low += b.low;
    high += b.high + (low < before ? 1 : 0);
    return *this;
  }
  friend bool operator==(const Sum128&, const Sum128&) = default;
  std::string hex() const;
  static Sum128 from_hex(std::string_view hex);  // Error(usage) unless it is 32 hexadecimal digits
};

Sum128 hash128(std::span<const std::byte> bytes);
inline Sum128 hash128(std::string_view text) {
  return hash128(std::span<const std::byte>(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

// The record above.
std::vector<std::byte> sample_record(std::string_view split, uint32_t epoch, const PlannedSample& sample,
                                     const Draws& draws, int64_t label);

// The record of a mixed batch.
std::vector<std::byte> batch_record(std::string_view split, uint32_t epoch, int64_t step, int64_t replica,
                                    const Draws& draws);

struct StreamHash {
  Sum128 order;
  Sum128 pixel;
  int64_t samples = 0;

  void add(std::span<const std::byte> record, std::span<const std::span<const std::byte>> fields);
  // The same, of a pixel hash that is known.
  void add(std::span<const std::byte> record, const Sum128& pixel_hash);
  void add_batch(std::span<const std::byte> record);
  StreamHash& operator+=(const StreamHash& b) noexcept {
    order += b.order;
    pixel += b.pixel;
    samples += b.samples;
    return *this;
  }
};

}  // namespace penstock
