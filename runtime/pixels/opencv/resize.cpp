// libpenstock_opencv.so: OpenCV's resize behind the plain interface of pixels/opencv_resize.h.
#include <cstdio>
#include <exception>
#include <string>

#include <opencv2/core.hpp>
#include <opencv2/core/utility.hpp>
#include <opencv2/imgproc.hpp>

#include "runtime/pixels/opencv_resize.h"

namespace penstock {
namespace {

int interpolation_of(Filter filter) {
  switch (filter) {
    case Filter::opencv_nearest: return cv::INTER_NEAREST;
    case Filter::opencv_cubic: return cv::INTER_CUBIC;
    case Filter::opencv_area: return cv::INTER_AREA;
    case Filter::opencv_lanczos4: return cv::INTER_LANCZOS4;
    default: return cv::INTER_LINEAR;
  }
}

bool resize(const OpencvResize& task, char* why, size_t size) noexcept {
  try {
    cv::ipp::setUseIPP(false);  // a setting of each thread
    // OpenCV has no matrix of constant pixels; it reads this one.
    const cv::Mat source(task.source.height, task.source.width, CV_8UC3, const_cast<uint8_t*>(task.source.data),
                         task.source.row_bytes);
    cv::Mat out(task.out_height, task.out_width, CV_8UC3, task.out);
    cv::resize(source, out, out.size(), 0, 0, interpolation_of(task.filter));
    return true;
  } catch (const std::exception& error) {
    std::snprintf(why, size, "%s", error.what());
    return false;
  }
}

}  // namespace
}  // namespace penstock

extern "C" __attribute__((visibility("default"))) const penstock::OpencvComponent* penstock_opencv_component() {
  static const penstock::OpencvComponent component = [] {
    cv::setNumThreads(1);
    // The library's that was loaded, and not the headers'.
    static const std::string version = std::to_string(cv::getVersionMajor()) + "." +
                                       std::to_string(cv::getVersionMinor()) + "." +
                                       std::to_string(cv::getVersionRevision());
    return penstock::OpencvComponent{penstock::kOpencvInterface, version.c_str(), penstock::resize};
  }();
  return &component;
}
