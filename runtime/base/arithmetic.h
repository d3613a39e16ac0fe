// What a job promises of its pixels.
//
//   Arithmetic arithmetic = arithmetic_of(job.arithmetic);      // "exact" or "fast", as the job file says
//
//   exact   libjpeg-turbo's default decode and Pillow's resampling, byte for byte, whoever makes a sample: `order_hash`
//           and `pixel_hash` are promised.
//   fast    JPEG files that are shrunk to half or less are decoded at 1/2, 1/4 or 1/8, and resampled from there
//           (runtime/transforms/reduction.h). Only `order_hash` is promised: the same samples in the same order with
//           the same draws. CPU and GPUs still agree in every byte, unless GPUs may decode by nvJPEG (loader.nvjpeg),
//           which gives pixels of its own.
//   opencv  what cv2.imread and cv2.resize give, by OpenCV's own resize, byte for byte: for models that were trained, or
//           are served, with OpenCV. All other steps are those of `exact`, and both hashes are promised. GPUs leave it
//           to the CPU.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

enum class Arithmetic : uint8_t { exact = 0, fast = 1, opencv = 2 };  // as it stands in messages

// For a name that the job file's parser has accepted.
inline Arithmetic arithmetic_of(std::string_view name) noexcept {
  return name == "fast" ? Arithmetic::fast : name == "opencv" ? Arithmetic::opencv : Arithmetic::exact;
}

constexpr const char* name_of(Arithmetic arithmetic) noexcept {
  return arithmetic == Arithmetic::fast ? "fast" : arithmetic == Arithmetic::opencv ? "opencv" : "exact";
}

// What a job says of the pixels of all its images, besides their pipelines.
struct PixelRules {
  Arithmetic arithmetic = Arithmetic::exact;
  bool bgr = false;   // color: bgr, the order of the channels as they are delivered
  bool turns = true;  // exif, of arithmetic opencv: images are turned as imread does
};

// What people are told beside the pixel hash of a fast job.
inline constexpr const char* kFastPromise = "arithmetic fast: order_hash is promised, pixel_hash is not";

}  // namespace penstock
