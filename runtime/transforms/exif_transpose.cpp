// ExifTranspose: images oriented, as PIL.ImageOps.exif_transpose makes them.
//
// The decoder does it (decode/orientation.h): draws see the oriented size, and only the part that they need is decoded.
#include "runtime/transforms/transforms.h"

namespace penstock {

TransformInfo exif_transpose_info() {
  return {.name = "ExifTranspose",
          .doc =
              "Orients each image by its EXIF orientation, as PIL.ImageOps.exif_transpose does. First in the "
              "pipeline or not at all; without it orientation is ignored, as torchvision's ImageFolder does.",
          .params = {},
          .make = [](const ParamMap&) { return ExifTranspose{}; }};
}

}  // namespace penstock
