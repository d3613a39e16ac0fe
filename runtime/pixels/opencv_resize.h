// cv2.resize, by OpenCV's own function (arithmetic: opencv).
//
//   require_opencv();                                            // Error(runtime) where there is no OpenCV
//   opencv_resize(source_view, 224, 224, Filter::opencv_area, out);
//
// Semantics: cv::resize of OpenCV's imgproc on 8-bit pixels of three channels, with IPP off; channels do not mix, so
//   their order means nothing. Measured: 4.6 gives the bytes of PyPI's cv2 4.12 and 5.0, but for some of bicubic's
//   (opencv/README.md).
// How: the function is in a component of its own (opencv/resize.cpp), which alone includes OpenCV's headers and links
//   its core and imgproc; it is loaded when the first pipeline asks for it, and stays. It switches off OpenCV's own
//   threads in this process: whoever resizes is one of many threads already.
// Thread-safety: any thread. Ownership: views; `out` is the caller's and grows as needed.
#pragma once

#include <string>

#include "runtime/decode/image.h"
#include "runtime/pixels/resample.h"

namespace penstock {

void require_opencv();
std::string opencv_version();  // "4.6.0"

void opencv_resize(const PixelView& source, int out_width, int out_height, Filter filter, PixelBuffer& out);

// What the component exports, for opencv/resize.cpp and its loader.
struct OpencvResize {
  PixelView source;
  uint8_t* out = nullptr;  // rows without gaps
  int out_width = 0;
  int out_height = 0;
  Filter filter = Filter::opencv_linear;
};
struct OpencvComponent {
  int interface = 0;
  const char* version = nullptr;
  // What went wrong, cut to `size` bytes in `why`; false: nothing is in `out`.
  bool (*resize)(const OpencvResize& task, char* why, size_t size) noexcept = nullptr;
};
using OpencvComponentFunction = const OpencvComponent* (*)();
inline constexpr int kOpencvInterface = 1;
inline constexpr char kOpencvComponentEntry[] = "penstock_opencv_component";

}  // namespace penstock
