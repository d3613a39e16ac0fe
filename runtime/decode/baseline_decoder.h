// Our own decoder of baseline JPEG regions: the common files, faster than libjpeg-turbo and equal to it in every byte.
//
//   BaselineDecoder decoder;
//   if (!decoder.decode(bytes, header, box, index, storage, pixels)) ... // "not mine": ask libjpeg-turbo
//
// Stages: headers (baseline_frame.h), which MCUs (mcu_window.h), their coefficients (coefficient_rows.h), inverse
//   transform, upsampling and colour (jpeg_kernels.h, jpeg_math.h) for the blocks that the box depends on. Two rows of
//   MCUs of samples are kept, never the image.
// The same verdict as the reference (jpeg_decoder.h): what libjpeg-turbo reads for rows 0 to the box's last is read here
//   too, blocks outside the box without storing them; whatever would make it warn or fail there, or might, is "not
//   mine". So true means: libjpeg-turbo decodes these rows without a word, and these are its pixels.
// With a side index (nullptr: none) entropy decoding enters at the crop, row by row, and what lies outside is not read.
//   The verdict stays the same, because only a file that is "mine" as a whole gets an index.
// Arithmetic: that of libjpeg-turbo's x86 vector code, also on coefficients so extreme that its C code and its code for
//   other CPUs differ. Hence x86 only; elsewhere nothing is "mine".
// Thread-safety: one per thread. Failure: false; Error(runtime) when memory runs out.
#pragma once

#include <array>
#include <vector>

#include "runtime/decode/baseline_frame.h"
#include "runtime/decode/coefficient_rows.h"
#include "runtime/decode/image.h"
#include "runtime/decode/mcu_window.h"

namespace penstock {

class BaselineDecoder {
 public:
  bool decode(EncodedView bytes, const ImageHeader& header, const Box& box, const SideIndex* index,
              PixelBuffer& storage, PixelView& pixels);

 private:
  // Samples of one component: two rows of MCUs, of the columns decoded.
  struct Plane {
    std::vector<uint8_t> memory;
    size_t stride = 0;
    int rows = 0;
    uint8_t* row(int y) { return memory.data() + margin + static_cast<size_t>(y % rows) * stride; }
    static constexpr size_t margin = 64;
  };

  void prepare(const Box& box);
  bool decode_rows(EncodedView bytes, const Box& box, const SideIndex* index, bool lanes, PixelBuffer& storage);
  bool read_samples(int mcu_row);
  void repeat_borders(int mcu_row);
  void write_row(int y, const Box& box, uint8_t* rgb);

  BaselineFrame frame_;
  CoefficientRows rows_;
  McuWindow window_;  // that the box needs
  std::array<Plane, 3> planes_;
  std::vector<int16_t> coefficients_;
  std::array<std::vector<uint8_t>, 2> chroma_;  // one upsampled row each
};

}  // namespace penstock
