// Our own decoder of JPEG regions, of baseline and progressive files: the common ones, faster than libjpeg-turbo and
// equal to it in every byte.
//
//   OwnJpegDecoder decoder(limits.max_scans);
//   if (!decoder.decode(bytes, header, box, decode_options, storage, pixels)) ... // "not supported": ask libjpeg-turbo
//   SideIndex more = decoder.learned(decode_options.index);             // and what was passed on the way
//
// Stages: headers (jpeg_frame.h, progressive_scans.h), which MCUs (mcu_window.h), their coefficients
//   (coefficient_rows.h), inverse transform, upsampling and colour (jpeg_kernels.h, jpeg_math.h) for the blocks that
//   the box depends on. Two rows of MCUs of samples are kept, never the image.
// The same status as the reference (jpeg_decoder.h): what libjpeg-turbo reads for rows 0 to the box's last is read here
//   too, blocks outside the box without storing them; whatever would make it warn or fail there, or might, is "not
//   supported". So true means: libjpeg-turbo decodes these rows without a word, and these are its pixels. Of a
//   progressive file libjpeg-turbo reads everything before the first row, and so does this.
// With a side index (nullptr: none) entropy decoding enters at the crop, row by row, and what lies outside is not read.
//   The status stays the same, because only a file that is "supported" as a whole gets an index.
// What is learned on the way is a partial index (side_index.h): a crop that ends within it reads what lies on a way
//   that was gone already, from row 0, and was "supported"; a crop that ends below goes that way's continuation, from
//   its last point. So by induction every point lies on one way from the first MCU on, whole and without warnings, and
//   the status is that of rows 0 to the crop's last. Of files with restart markers nothing is learned.
// Arithmetic: that of libjpeg-turbo's x86 vector code, also on coefficients so extreme that its C code and its code for
//   other CPUs differ. Hence x86 only; elsewhere nothing is "supported".
// Thread-safety: one per thread. Failure: false; Error(runtime) when memory runs out.
#pragma once

#include <array>
#include <vector>

#include "runtime/decode/decode_options.h"
#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/coefficient_rows.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/mcu_window.h"
#include "runtime/decode/jpeg/sample_grid.h"

namespace penstock {

class OwnJpegDecoder {
 public:
  // `learned_interval`: MCUs between the points of an index that is learned; 0: learned_interval().
  explicit OwnJpegDecoder(int max_scans, int learned_interval = 0)
      : max_scans_(max_scans), learned_interval_(learned_interval) {}

  // The box counts pixels of the image that the decode options' reduction makes (sample_grid.h).
  bool decode(EncodedView bytes, const ImageHeader& header, const Box& box, const DecodeOptions& decode_options,
              PixelBuffer& storage, PixelView& pixels);
  // After a decode() with decode_options.learned that was "supported": a partial index that reaches further than
  // `index`, the one it was given; empty: it does not.
  SideIndex learned(const SideIndex* index) const;
  // After a decode() that was "supported": whether the decode options' index was of use, as one of another file is not.
  bool used_index() const noexcept { return rows_.has_index(); }
  size_t kept_bytes() const noexcept { return rows_.kept_bytes(); }  // of the last file, that grow with it

 private:
  // Samples of one component: two rows of MCUs, of the columns decoded.
  struct Plane {
    std::vector<uint8_t> memory;
    size_t stride = 0;
    int rows = 0;
    uint8_t* row(int y) { return memory.data() + margin + static_cast<size_t>(y % rows) * stride; }
    static constexpr size_t margin = 64;
  };

  // One row of each component at full size; a grey picture has the first alone.
  struct SampleRow {
    const uint8_t* luma = nullptr;
    const uint8_t* chroma[2] = {};
  };

  void prepare(const Box& box);
  void reach_judged_rows(const DecodeOptions& decode_options);
  bool decode_rows(EncodedView bytes, const Box& box, const DecodeOptions& decode_options, bool lanes,
                   RestartPointNotes* notes, PixelBuffer& storage);
  bool begin_notes(EncodedView bytes, const SideIndex* index);
  bool read_row(int mcu_row, bool wanted);
  void repeat_borders(int mcu_row);
  SampleRow sample_row(int y, const Box& box);
  void write_rgb(const SampleRow& from, size_t width, uint8_t* rgb) const;
  void write_planes(const SampleRow& from, size_t width, const PlanarRow& to) const;

  int max_scans_;
  int learned_interval_;
  JpegFrame frame_;
  SampleGrid grid_;
  CoefficientRows rows_;
  RestartPointNotes notes_;
  int interval_ = 0;  // of the notes
  McuWindow window_;  // that the box needs, and the status
  std::array<Plane, 3> planes_;
  std::vector<int16_t> coefficients_;
  std::array<std::vector<uint8_t>, 2> chroma_;  // one upsampled row each
};

}  // namespace penstock
