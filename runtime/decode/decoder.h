// Encoded bytes to exact RGB pixels of a region.
//
//   ImageHeader header;
//   SampleStatus status = read_header(bytes, limits, header);  // cheap, no pixels
//   Decoder decoder(limits);                                   // one per thread; keeps its scratch memory
//   PixelBuffer storage;                                       // grows as needed; serves image after image
//   PixelView pixels;                                          // the box's pixels, somewhere inside `storage`
//   if (status.ok()) status = decoder.decode(bytes, header, Box{x, y, w, h}, storage, pixels);
//
// Semantics: pixels are, byte for byte, what Pillow's Image.open(...).convert("RGB").crop(box) gives: libjpeg-turbo's
//   default decode (islow, fancy upsampling) for JPEG, libpng semantics for PNG, and so on for GIF (first frame), BMP,
//   PBM, PGM, PPM, WebP and TIFF; ../../tests/decode/EXACTNESS.md says how exactly, format by format. The format is
//   chosen by the first bytes. The box must lie inside the image, which is oriented: header.orientation tells Decoder
//   how to turn the file's pixels.
// From JPEG and PNG only the rows and columns that the box needs are decoded (with a margin of one iMCU, which keeps
//   fancy upsampling exact at the box's edges), and nothing below its last row is read, so the status covers rows 0
//   to that row. Other formats are judged, and but for BMP and PNM decoded, whole.
// Failure: everything that depends on the sample's bytes is a SampleStatus with a reason; Error is thrown for the
//   environment (out of memory) and for misuse (a box outside the image, a reduction of what is no JPEG file).
// Thread-safety: a Decoder belongs to one thread; read_header is a free function without state.
// Ownership: a Decoder has its scratch memory. Bytes and `storage` are the caller's, and kept by nobody; `pixels` is a view
//   into `storage`, good until that is used again.
#pragma once

#include <memory>

#include "runtime/base/error.h"
#include "runtime/decode/decode_options.h"
#include "runtime/decode/image.h"

namespace penstock {

SampleStatus read_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header,
                         const HeaderOptions& options = {});

// Whether decode_mask() takes such files.
SampleStatus check_mask(const ImageHeader& header);

class Decoder {
 public:
  explicit Decoder(const DecodeLimits& limits, const DecoderOptions& options = DecoderOptions::from_environment());
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // The box counts the pixels of the reduced image, where the options ask for one.
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels, const DecodeOptions& decode_options = {});

  // A mask of class ids: each pixel's number three times. PNG files with a palette or of grey; others are bad.
  SampleStatus decode_mask(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                           PixelView& pixels);

  const DecodeCounts& counts() const noexcept;
  // What large pictures have left is given back to the system; the next one decodes as ever.
  void let_large_go();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Names and versions of the libraries whose arithmetic the pixels depend on, for fingerprints and logs:
// "libjpeg-turbo 2.1.5 (api 62); libspng 0.7.3; libwebp 1.2.4; libtiff 4.5.0". A library left out of the build is not
// in it.
std::string decoder_versions();

}  // namespace penstock
