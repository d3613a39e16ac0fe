// Many images on one PNG, to look at a batch.
//
//   write_contact_sheet("out/contact.png", batch.field("image"));          // uint8 [n, 3, h, w], any strides
//
// Images stand in reading order, in a grid about as wide as high, with a gap between them; where the whole would be
//   larger than max_side, every image is made smaller by the same whole factor (the mean of each square of pixels).
// Thread-safety: free functions; one writer per path.
// Failure: Error(usage) for what is no batch of images, Error(runtime) naming the path for the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/fields.h"

namespace penstock {

struct ContactSheetOptions {
  int columns = 0;      // 0: as many as make the sheet about square
  int gap = 4;          // pixels between images and around them
  int max_side = 4096;  // of the sheet
};

void write_contact_sheet(const std::string& path, const TensorView& images, const ContactSheetOptions& options = {});

// Interleaved RGB rows, without padding, as a PNG file in memory. Lossless: decoding gives the same bytes back.
std::vector<std::byte> encode_png(const uint8_t* rgb, int width, int height);

}  // namespace penstock
