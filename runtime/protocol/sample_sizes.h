// What is known of the encoded sizes of a data set's samples: a byte for each, so that rank 0 can keep those of any data
// set that it can keep an order of.
//
//   codes += size_code(source.known_size(index));     // the loader
//   sizes.set(first, codes);                          // the coordinator
//   const int64_t bytes = sizes.bytes_of(index);      // 0: unknown
//
// A code stands for a size, of which it may be up to 9 % short: eight to each doubling. What chunks cost is guessed by it,
// nothing else.
// Memory: for the blocks of 65,536 samples that anything was said of. Thread-safety: plain values; one owner.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace penstock {

uint8_t size_code(int64_t bytes);  // 0: unknown, or nothing
int64_t size_of_code(uint8_t code);

class SampleSizes {
 public:
  void set(int64_t first, std::string_view codes);
  int64_t bytes_of(int64_t index) const;
  bool empty() const { return blocks_.empty(); }

 private:
  static constexpr int64_t kBlock = 1 << 16;
  std::map<int64_t, std::array<uint8_t, kBlock>> blocks_;
};

}  // namespace penstock
