// From a stored sample to the record that a pack has of it: looked at, rewritten where asked, with restart points.
//
//   PackMaker maker(input, options);           // one per thread
//   PackedSample made = maker.make(17);
//
// A pure function of the sample's bytes and the options: any number of threads makes the same pack.
// `verify`: every picture is decoded whole, once. One that cannot be is packed as it is, and noted.
// `rewrite`: JPEG files written anew without loss (jpeg_rewrite.h), where both files, decoded, agree in every byte and
//   the new one is within the limits as well (of a progressive file it may be the larger one); else the file is kept.
//   This comparison is made without `verify` as well.
// Thread-safety: one thread. Failure: what reading the source throws, with the sample's name.
#pragma once

#include <string>
#include <vector>

#include "launch/pack_input.h"
#include "runtime/datasets/pack_format.h"
#include "runtime/decode/decoder.h"

namespace penstock {

struct PackContent {
  bool rewrite = false;
  bool verify = true;
  bool restart_points = true;
};

struct PackedSample {
  std::vector<std::byte> record;
  uint64_t image_bytes = 0;
  std::vector<uint64_t> field_bytes;  // in the record; of fields that stand in the table 0
  uint64_t entry_bytes = 0;
  uint32_t width = 0;
  uint32_t height = 0;
  PackNotes notes;
  std::vector<uint64_t> stamp;  // PackInput::stamp(), from before it was read
  uint64_t source_bytes = 0;
};

class PackMaker {
 public:
  PackMaker(const PackInput& input, const PackContent& content, const DecodeLimits& limits);

  PackedSample make(int64_t index);

 private:
  SampleStatus look_at_image(bool decode, ImageHeader& header);
  SampleStatus look_at_fields(const ImageHeader& image);
  bool rewrite(const ImageHeader& header);

  const PackInput& input_;
  PackContent content_;
  DecodeLimits limits_;
  Decoder decoder_;
  StoredSample stored_;
  PixelBuffer before_;
  PixelBuffer after_;
  PixelView pixels_;  // of the image, where it was decoded
};

}  // namespace penstock
