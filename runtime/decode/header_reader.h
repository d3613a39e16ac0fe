// Reading headers: bytes with bounds, and the limits on sizes.
//
//   HeaderReader in(bytes);
//   if (!in.has(4)) return SampleStatus::bad("premature end of data in the BMP header");
//   const uint32_t size = in.le32();
//   return check_size(width, height, limits, header);
//
// Failure: has() and skip() tell; the reads themselves trust that has() was asked. Thread-safety: one per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/decode/image.h"

namespace penstock {

class HeaderReader {
 public:
  explicit HeaderReader(EncodedView bytes, size_t at = 0) : bytes_(bytes), at_(at < bytes.size() ? at : bytes.size()) {}
  size_t at() const { return at_; }
  bool has(size_t n) const { return bytes_.size() - at_ >= n; }
  unsigned u8() { return std::to_integer<unsigned>(bytes_[at_++]); }
  unsigned u16() {
    const unsigned high = u8();
    return high << 8 | u8();
  }
  uint32_t u32() {
    const uint32_t high = u16();
    return high << 16 | u16();
  }
  unsigned le16() {
    const unsigned low = u8();
    return u8() << 8 | low;
  }
  uint32_t le32() {
    const uint32_t low = le16();
    return uint32_t{le16()} << 16 | low;
  }
  bool skip(size_t n) {
    if (!has(n)) return false;
    at_ += n;
    return true;
  }

 private:
  EncodedView bytes_;
  size_t at_ = 0;
};

// Takes the size into the header unless it is empty or over the limits.
SampleStatus check_size(uint64_t width, uint64_t height, const DecodeLimits& limits, ImageHeader& header);

inline const uint8_t* raw_bytes(EncodedView bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

// The box within an image that `storage` holds as a whole.
inline PixelView view_of_box(const PixelBuffer& storage, const Box& box) {
  return {storage.row(box.y) + static_cast<size_t>(box.x) * 3, box.width, box.height, storage.row_bytes()};
}

}  // namespace penstock
