// Somebody who makes images elsewhere and later: a SampleMaker asks it before it makes one itself.
//
//   class Somewhere final : public ImageOffload { ... };
//   maker.leave_images_to(&offload);                  // nullptr: to nobody
//   SampleRecord record = maker.make(...);            // whole, but for the pixels of an image that was taken
//
// take() answers true only for an image whose status is good; where nobody takes it, it is made and judged at once.
//   Who takes one must give it the bytes that Pipeline::apply() would.
// forget() says that what was taken for the sample at hand is not wanted: the sample is begun anew (another in its
//   place), or is bad. From then on nothing may be written there.
// Thread-safety: as the maker's.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/transforms/pipeline.h"

namespace penstock {

class ImageOffload {
 public:
  virtual ~ImageOffload() = default;
  virtual bool take(const Pipeline& pipeline, const ImageInput& input, const ImageHeader& header, const Draws& draws,
                    std::span<uint8_t> image, Scratch& scratch) = 0;
  virtual void forget() = 0;
};

}  // namespace penstock
