#include "runtime/decode/jpeg/jpeg_round_trip.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision v2's JPEG. The library does it, so images that it stands for are the CPU's. Draws: [the quality].
class Jpeg final : public PixelTransform {
 public:
  explicit Jpeg(const ParamMap& params)
      : lowest_(static_cast<int64_t>(list_param(params, "quality").front())),
        highest_(static_cast<int64_t>(list_param(params, "quality").back())) {}

  bool colour_only() const noexcept override { return true; }

  SampleStatus size_after(Size in, std::span<const int64_t>, Size& out) const override {
    out = in;
    if (in.width <= kLargestJpegSide && in.height <= kLargestJpegSide) return SampleStatus::good();
    return SampleStatus::bad("JPEG cannot hold " + std::to_string(in.width) + " x " + std::to_string(in.height));
  }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(lowest_ + stream.below(static_cast<uint32_t>(highest_ - lowest_ + 1)));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 1, "JPEG");
    return true;
  }

  SampleStatus paint(PixelBuffer& image, std::span<const int64_t> values, ImageRole role,
                     PaintScratch& scratch) const override {
    if (values[0] < lowest_ || values[0] > highest_) {
      throw Error(ErrorKind::usage, "JPEG draws no quality of " + std::to_string(values[0]),
                  "use the draws that Pipeline::draw made for this pipeline");
    }
    if (role == ImageRole::image) jpeg_round_trip(image, static_cast<int>(values[0]), scratch.bytes);
    return SampleStatus::good();
  }

 private:
  int64_t lowest_;
  int64_t highest_;
};

}  // namespace

TransformInfo jpeg_info() {
  return {.name = "JPEG",
          .doc = "encodes the image as JPEG and decodes it again",
          .params = {integers_info("quality", {}, 1, 100, {1, 2}, "the encoder's quality, or [lowest, highest]")},
          .check = rising({"quality"}),
          .make = [](const ParamMap& params) { return std::make_unique<Jpeg>(params); }};
}

}  // namespace penstock
