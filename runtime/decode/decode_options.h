// What is asked of a decoder besides a box of pixels.
//
//   decoder.decode(bytes, header, box, storage, pixels, {.index = &index});
//   decoder.decode(bytes, header, reduced_box, storage, pixels, {.reduction = 2, .judged = box});
//
// These options concern JPEG alone.
// Ownership: the pointers are the caller's, good for the call. Thread-safety: a value.
#pragma once

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/decode/row_sink.h"

namespace penstock {

struct DecodeOptions {
  // The file's own, made from these bytes; nullptr: none.
  const SideIndex* index = nullptr;
  // Becomes a partial index that reaches further than `index`, if this decoding has passed restart points behind that;
  // else it stays as it is. nullptr: nothing is to be learned.
  SideIndex* learned = nullptr;
  // 2, 4 or 8: the image is decoded at so much less width and height (rounded up), straight from the coefficients, byte
  // for byte as libjpeg-turbo's scaled decoding gives it (scale_denom); the box counts its pixels.
  int reduction = 1;
  // With a reduction, a box of the image at full size: the status is the one on its pixels, so that a sample is as
  // good or bad as where nothing is reduced. Empty: the status covers the rows that the reduced pixels need.
  Box judged{};
  // Gets the box's rows as our own decoder makes them; `storage` is then left alone, and pixels.data is nullptr. Where
  // another decoder makes the image, it is in `pixels`, and rows that came here before do not count. nullptr: all goes
  // to `storage`.
  RowSink* rows = nullptr;

  bool judges() const noexcept { return reduction > 1 && judged.height > 0; }
};

}  // namespace penstock
