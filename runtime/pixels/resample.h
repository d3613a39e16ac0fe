// Pillow's resampling (ImagingResample) in exact arithmetic, for any window of the result.
//
//   Resampler resampler;                                          // one per thread; keeps its scratch memory
//   ResampleGeometry g{.in_width = 500, .in_height = 375, .out_width = 256, .out_height = 256,
//                      .filter = Filter::bilinear};
//   Box need = resampler.source_window(g, Box{16, 16, 224, 224}); // which source pixels the window depends on
//   resampler.run(g, source_view, need, Box{16, 16, 224, 224}, out);
//
// Semantics: equal, byte for byte, to Pillow's image.resize((out_width, out_height), filter).crop(window) on the whole
//   in_width x in_height image: taps in double, normalised, rounded half away from zero to Q22, accumulated from 2^21,
//   shifted, clipped; uint8 between the passes; horizontal pass first; a pass whose size does not change is skipped.
//   `nearest` is Pillow's affine lookup. With spans: to image.resize(size, filter, box).crop(window), whose taps may
//   reach beyond the box as far as the input goes; not with `nearest`. Source: Pillow src/libImaging/Resample.c and
//   Geometry.c. OpenCV's filters: to cv2.resize of the whole input, cut to the window.
// Ownership: views only; `out` is interleaved RGB of the window's size.
// Thread-safety: one Resampler per thread.
// Failure: Error(usage) for a geometry that cannot be, a source that does not hold source_window(...), and begin() with a
//   filter that does not take rows. Error(runtime) without memory, or where OpenCV's component is wanted and missing.
#pragma once

#include <memory>

#include "runtime/decode/image.h"
#include "runtime/decode/row_sink.h"

namespace penstock {

enum class Filter : uint8_t {
  nearest = 0,
  box = 1,
  bilinear = 2,
  bicubic = 3,
  lanczos = 4,
  hamming = 5,
  // cv2.resize's (opencv_resize.h), which always makes its whole result.
  opencv_nearest = 16,
  opencv_linear = 17,
  opencv_cubic = 18,
  opencv_area = 19,
  opencv_lanczos4 = 20,
};

constexpr bool is_opencv(Filter filter) noexcept {
  return filter >= Filter::opencv_nearest;
}

// Whether a Resampler takes rows one by one.
constexpr bool takes_rows(Filter filter) noexcept {
  return filter != Filter::nearest && !is_opencv(filter);
}

// A run of the input's columns or rows that becomes the whole output, in fractions of pixels: what Pillow's
// resize(..., box=...) names. length 0: all of them.
struct InputSpan {
  double begin = 0;
  double length = 0;

  bool whole() const noexcept { return length == 0; }
  friend bool operator==(const InputSpan&, const InputSpan&) = default;
};

struct ResampleGeometry {
  int in_width = 0;
  int in_height = 0;
  int out_width = 0;
  int out_height = 0;
  Filter filter = Filter::bilinear;
  InputSpan columns = {};
  InputSpan rows = {};

  bool resizes_columns() const noexcept { return in_width != out_width || !columns.whole(); }
  bool resizes_rows() const noexcept { return in_height != out_height || !rows.whole(); }
};

struct Taps;  // resample_taps.h

// A window's weights, for who resamples elsewhere; nullptr: that size does not change, and there is no such pass.
struct WindowTaps {
  const Taps* columns = nullptr;
  const Taps* rows = nullptr;
};

class Resampler {
 public:
  Resampler();
  ~Resampler();
  Resampler(Resampler&&) noexcept;
  Resampler& operator=(Resampler&&) noexcept;

  // The smallest box of the input that `window` of the output depends on.
  Box source_window(const ResampleGeometry& geometry, const Box& window);

  // Good until the next call of any of these. Not of OpenCV's filters.
  WindowTaps taps(const ResampleGeometry& geometry, const Box& window);

  // `source` holds the pixels of `source_box` (in input coordinates), which must contain source_window(...).
  void run(const ResampleGeometry& geometry, const PixelView& source, const Box& source_box, const Box& window,
           PixelBuffer& out);

  // The same, written as planes (CHW: all red, all green, all blue; window.width * window.height bytes each), mirrored
  // after resampling where asked: the last stage of a pipeline needs no pass of its own for flip and layout.
  void run_planar(const ResampleGeometry& geometry, const PixelView& source, const Box& source_box, const Box& window,
                  bool flip_horizontal, bool flip_vertical, uint8_t* out_chw);

  // run() and run_planar() for rows that come one by one: the sink takes those of source_window(...), and then finish()
  // is called, with no other call in between. Only where takes_rows().
  RowSink& begin(const ResampleGeometry& geometry, const Box& window, PixelBuffer& out);
  RowSink& begin_planar(const ResampleGeometry& geometry, const Box& window, bool flip_horizontal, bool flip_vertical,
                        uint8_t* out_chw);
  void finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Interleaved RGB to planes (CHW), mirrored where asked: the last stage of pipelines that do not end in a resize.
void to_planar(const PixelView& pixels, bool flip_horizontal, bool flip_vertical, uint8_t* out_chw);

}  // namespace penstock
