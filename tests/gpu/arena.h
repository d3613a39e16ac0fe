// A GPU's memory, in pieces with gaps between them that nobody may touch.
//
//   Arena arena;
//   const uint64_t at = arena.add(bytes);       // all pieces, then
//   arena.make();                               // arena.data() is there
//   arena.close_gaps();                         // filled: from now on the address sanitizer sees who reads gaps, too
//   ... kernels ...
//   CHECK(arena.gaps_are_whole());
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace penstock_test {

class Arena {
 public:
  ~Arena() { ASAN_UNPOISON_MEMORY_REGION(bytes_.data(), bytes_.size()); }
  uint64_t add(size_t bytes) {
    end_ = (end_ + kGap + 15) / 16 * 16;
    const uint64_t at = end_;
    end_ += bytes;
    used_.push_back({at, bytes});
    return at;
  }
  void make() { bytes_.assign(end_ + kGap, kGapByte); }
  void close_gaps() {
    size_t from = 0;
    for (const auto& [at, bytes] : used_) {
      ASAN_POISON_MEMORY_REGION(bytes_.data() + from, at - from);
      from = at + bytes;
    }
    ASAN_POISON_MEMORY_REGION(bytes_.data() + from, bytes_.size() - from);
  }
  bool gaps_are_whole() {
    ASAN_UNPOISON_MEMORY_REGION(bytes_.data(), bytes_.size());
    size_t from = 0;
    bool whole = true;
    const auto look = [&](size_t end) {
      for (; from < end; ++from) whole = whole && bytes_[from] == kGapByte;
    };
    for (const auto& [at, bytes] : used_) {
      look(at);
      from = at + bytes;
    }
    look(bytes_.size());
    return whole;
  }
  uint8_t* data() { return bytes_.data(); }

 private:
  static constexpr size_t kGap = 512;
  static constexpr uint8_t kGapByte = 0xEE;
  size_t end_ = 0;
  std::vector<std::pair<size_t, size_t>> used_;
  std::vector<uint8_t> bytes_;
};

}  // namespace penstock_test
