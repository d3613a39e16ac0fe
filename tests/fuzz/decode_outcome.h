// What the targets of decoders share: a decoding's status with its pixels, and promises that end the program.
//
//   require_equal(decode(own, bytes, header, box), decode(library, bytes, header, box), "one status", "the same pixels");
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/decode/decoder.h"

namespace penstock {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

struct Outcome {
  SampleStatus status;
  std::vector<uint8_t> pixels;
};

inline Outcome decode(Decoder& decoder, EncodedView bytes, const ImageHeader& header, const Box& box,
                      const DecodeOptions& decode_options = {}) {
  static PixelBuffer storage;
  PixelView view;
  Outcome outcome{decoder.decode(bytes, header, box, storage, view, decode_options), {}};
  if (!outcome.status.ok()) return outcome;
  require(view.width == box.width && view.height == box.height, "the pixels have the box's size");
  const size_t row = static_cast<size_t>(view.width) * 3;
  outcome.pixels.resize(row * static_cast<size_t>(view.height));
  for (int y = 0; y < view.height; ++y) {
    std::memcpy(outcome.pixels.data() + static_cast<size_t>(y) * row, view.row(y), row);
  }
  return outcome;
}

inline void require_equal(const Outcome& one, const Outcome& other, const char* status, const char* pixels) {
  require(one.status.ok() == other.status.ok() && one.status.reason == other.status.reason, status);
  require(one.pixels == other.pixels, pixels);
}

}  // namespace penstock
