// JPEG regions: our own decoder for baseline and progressive files, libjpeg-turbo's libjpeg interface for everything
//   else.
//
//   JpegDecoder decoder(limits, options);
//   SampleStatus status = decoder.decode(bytes, header, box, storage, pixels);
//
// Three ways give the same answer; decode() takes the first that may:
//   own         own_jpeg_decoder.h, unless options.own_jpeg is off. It declares every file "not supported" about which
//               libjpeg-turbo would say anything, so it never gives a status but "good".
//   reference   libjpeg-turbo: whole rows, from row 0 to the box's last, none skipped. It defines pixels and status:
//               bad means an error, premature end of the data, or a limit; other warnings pass, up to a number.
//   region      libjpeg-turbo: one jpeg_skip_scanlines before the first row, and only the columns that the box needs,
//               with one iMCU of margin on each side (without it, fancy upsampling lacks its neighbours at the cut).
// A region decode that meets any warning after the header starts over by the reference: so the status never depends on
// what was skipped, and damaged files, where entropy decoding goes on with invented data, still give the reference's
// pixels. Progressive files whose coefficients are incomplete go the reference's way from the start, because libjpeg
// smooths them over several blocks.
// At 1/2, 1/4 and 1/8 there are the own way and the reference, which is libjpeg-turbo's scaled decode (scale_denom):
// the same bytes by both. A scaled decode may need other rows of the file than the same pixels at full size, by one row
// of MCUs or so. Where the status is to be that of full size (DecodeOptions::judged), both read on until neither could
// have met anything; a file that has given a warning so far is judged by the reference at full size, and what is good
// then is decoded whatever the scaled decode would say.
// Thread-safety: one per thread. Failure: SampleStatus; Error(runtime) when memory runs out.
#pragma once

#include <memory>

#include "runtime/decode/decode_options.h"
#include "runtime/decode/image.h"

namespace penstock {

class JpegDecoder {
 public:
  explicit JpegDecoder(const DecodeLimits& limits, const DecoderOptions& options = {});
  ~JpegDecoder();

  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels, const DecodeOptions& decode_options = {});

  // The reference way alone: the yardstick of tests.
  SampleStatus decode_reference(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                PixelView& pixels, int reduction = 1);

  const DecodeCounts& counts() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

std::string jpeg_library_version();

}  // namespace penstock
