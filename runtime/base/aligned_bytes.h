// Memory that only grows: what one thread uses again for one image after the other. Where many megabytes of it are
// wanted the thread may have to wait (take_large.h), and lets them go behind the image that wanted them.
//
//   AlignedBytes scratch;
//   uint8_t* bytes = scratch.get(need);      // 64-byte aligned; what was in it is lost if it had to grow
//   scratch.let_large_go();
//
// Contents are undefined at first. Ownership: move-only owner. Thread-safety: one thread.
// Failure: Error(runtime) where there is no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/take_large.h"

namespace penstock {

class AlignedBytes {
 public:
  uint8_t* get(size_t need) {
    if (need > capacity_) {
      const size_t rounded = (need + 63) / 64 * 64;
      if (rounded >= kLargeMemory) {
        take_large(rounded);
        release();  // not both at a time
      }
      auto* fresh = static_cast<uint8_t*>(std::aligned_alloc(64, rounded));
      if (fresh == nullptr) {
        throw Error(ErrorKind::runtime, "out of memory: " + std::to_string(rounded) + " bytes for an image",
                    "lower loader.threads or the decode limits");
      }
      data_.reset(fresh);
      capacity_ = rounded;
    }
    return data_.get();
  }
  void let_large_go() noexcept {
    if (capacity_ >= kLargeMemory) release();
  }
  uint8_t* data() noexcept { return data_.get(); }
  const uint8_t* data() const noexcept { return data_.get(); }
  size_t capacity() const noexcept { return capacity_; }

 private:
  struct Free {
    void operator()(uint8_t* p) const noexcept { std::free(p); }
  };
  void release() noexcept {
    data_.reset();
    capacity_ = 0;
  }

  std::unique_ptr<uint8_t[], Free> data_;
  size_t capacity_ = 0;
};

}  // namespace penstock
