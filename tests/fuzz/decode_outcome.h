// What the targets of decoders share: a decoding's verdict with its pixels, and promises that end the program.
//
//   require_equal(decode(own, bytes, header, box), decode(library, bytes, header, box), "one verdict", "the same pixels");
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
  Verdict verdict;
  std::vector<uint8_t> pixels;
};

inline Outcome decode(Decoder& decoder, EncodedView bytes, const ImageHeader& header, const Box& box,
                      const DecodeWish& wish = {}) {
  static PixelBuffer storage;
  PixelView view;
  Outcome outcome{decoder.decode(bytes, header, box, storage, view, wish), {}};
  if (!outcome.verdict.ok()) return outcome;
  require(view.width == box.width && view.height == box.height, "the pixels have the box's size");
  const size_t row = static_cast<size_t>(view.width) * 3;
  outcome.pixels.resize(row * static_cast<size_t>(view.height));
  for (int y = 0; y < view.height; ++y) {
    std::memcpy(outcome.pixels.data() + static_cast<size_t>(y) * row, view.row(y), row);
  }
  return outcome;
}

inline void require_equal(const Outcome& one, const Outcome& other, const char* verdict, const char* pixels) {
  require(one.verdict.ok() == other.verdict.ok() && one.verdict.reason == other.verdict.reason, verdict);
  require(one.pixels == other.pixels, pixels);
}

}  // namespace penstock
