#include "runtime/pixels/opencv_resize.h"

#include <dlfcn.h>

#include "runtime/base/component.h"
#include "runtime/base/error.h"

namespace penstock {
namespace {

const OpencvComponent& load() {
  std::string why;
  void* const library = open_component("libpenstock_opencv.so", RTLD_NOW | RTLD_LOCAL, why);
  if (library == nullptr) {
    throw Error(ErrorKind::runtime, "cannot load the OpenCV component, which arithmetic: opencv needs: " + why,
                "install OpenCV's core and imgproc (Debian: libopencv-core-dev, libopencv-imgproc-dev) and build with "
                "-DPENSTOCK_OPENCV=ON, or say arithmetic: exact");
  }
  auto* const entry = reinterpret_cast<OpencvComponentFunction>(::dlsym(library, kOpencvComponentEntry));
  if (entry == nullptr || entry()->interface != kOpencvInterface) {
    throw Error(ErrorKind::runtime, "the OpenCV component found does not belong to this version of penstock",
                "install both from one build");
  }
  return *entry();
}

// Asked again after a failure, found once after a success.
const OpencvComponent& component() {
  static const OpencvComponent& loaded = load();
  return loaded;
}

}  // namespace

void require_opencv() {
  component();
}

std::string opencv_version() {
  return component().version;
}

void opencv_resize(const PixelView& source, int out_width, int out_height, Filter filter, PixelBuffer& out) {
  out.resize(out_width, out_height);
  char why[512] = "";
  if (!component().resize({source, out.row(0), out_width, out_height, filter}, why, sizeof why)) {
    throw Error(ErrorKind::runtime, std::string("OpenCV could not resize ") + std::to_string(source.width) + " x " +
                                        std::to_string(source.height) + " pixels to " + std::to_string(out_width) +
                                        " x " + std::to_string(out_height) + ": " + why);
  }
}

}  // namespace penstock
