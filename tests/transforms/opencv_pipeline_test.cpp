// arithmetic: opencv as a part of the pipeline: windows, limits, headers, channels, and what executors elsewhere are told.
// That the pixels are cv2's: opencv_test.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/pixels/opencv_resize.h"
#include "runtime/transforms/pipeline.h"
#include "tests/transforms/image_files.h"

namespace penstock {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr PixelRules kOpencv{.arithmetic = Arithmetic::opencv};

TransformSpec resize(std::vector<double> size, const std::string& filter = "bilinear") {
  return {"Resize", {{"size", std::move(size)}, {"interpolation", filter}}};
}

// Colours that differ everywhere.
Bytes noise(int width, int height) {
  Bytes rgb(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  uint32_t state = 1;
  for (uint8_t& value : rgb) value = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return rgb;
}

Bytes run(const Pipeline& pipeline, const Bytes& rgb, int width, int height, SampleStatus* status = nullptr,
          const DecodeLimits& limits = {}) {
  Bytes padded = rgb;
  padded.resize(rgb.size() + PixelBuffer::kPadding);
  ImageHeader header;
  header.width = width;
  header.height = height;
  Scratch scratch(limits);
  Bytes out(static_cast<size_t>(pipeline.out_width()) * static_cast<size_t>(pipeline.out_height()) * 3);
  const PixelView pixels{padded.data(), width, height, static_cast<size_t>(width) * 3};
  const SampleStatus found = pipeline.apply({{}, pixels, nullptr}, header, pipeline.draw({}, header), out, scratch, {});
  if (status != nullptr) *status = found;
  if (status == nullptr) REQUIRE_MESSAGE(found.ok(), found.reason);
  return out;
}

TEST_CASE("the whole is resized, and then cut and mirrored") {
  const Bytes rgb = noise(60, 41);
  for (const char* filter : {"nearest", "bilinear", "bicubic", "area", "lanczos4"}) {
    const Bytes whole = run(Pipeline({resize({30, 44}, filter)}, kOpencv), rgb, 60, 41);
    const Bytes part = run(Pipeline({resize({30, 44}, filter),
                                     {"CenterCrop", {{"size", std::vector<double>{20, 12}}}},
                                     {"RandomHorizontalFlip", {{"p", 1.0}}}},
                                    kOpencv),
                           rgb, 60, 41);
    for (size_t c = 0; c < 3; ++c) {
      for (size_t y = 0; y < 20; ++y) {
        for (size_t x = 0; x < 12; ++x) {
          REQUIRE(part[(c * 20 + y) * 12 + x] == whole[(c * 30 + 5 + y) * 44 + 16 + 11 - x]);
        }
      }
    }
  }
}

TEST_CASE("a resize to half by area is the mean of four, rounded; to the same size it is a copy") {
  const Bytes rgb = noise(32, 20);
  const Bytes half = run(Pipeline({resize({10, 16}, "area")}, kOpencv), rgb, 32, 20);
  const Bytes same = run(Pipeline({resize({20, 32}, "area")}, kOpencv), rgb, 32, 20);
  const auto at = [&](size_t x, size_t y, size_t c) { return int{rgb[(y * 32 + x) * 3 + c]}; };
  for (size_t c = 0; c < 3; ++c) {
    for (size_t y = 0; y < 10; ++y) {
      for (size_t x = 0; x < 16; ++x) {
        const int sum =
            at(2 * x, 2 * y, c) + at(2 * x + 1, 2 * y, c) + at(2 * x, 2 * y + 1, c) + at(2 * x + 1, 2 * y + 1, c);
        REQUIRE(half[(c * 10 + y) * 16 + x] == (sum + 2) / 4);
        REQUIRE(same[(c * 20 + y) * 32 + x] == at(x, y, c));
      }
    }
  }
}

TEST_CASE("bgr swaps the planes of every view") {
  const Bytes rgb = noise(20, 20);
  for (const char* crop : {"CenterCrop", "FiveCrop"}) {
    const std::vector<TransformSpec> specs{{crop, {{"size", std::vector<double>{8, 8}}}}};
    const Pipeline plain(specs);
    const Pipeline swapped(specs, {.bgr = true});
    Bytes a(3 * 64 * static_cast<size_t>(plain.views()));
    Bytes b = a;
    ImageHeader header;
    header.width = header.height = 20;
    Bytes padded = rgb;
    padded.resize(rgb.size() + PixelBuffer::kPadding);
    Scratch scratch(DecodeLimits{});
    const ImageInput input{{}, {padded.data(), 20, 20, 60}, nullptr};
    REQUIRE(plain.apply(input, header, {}, a, scratch, {}).ok());
    REQUIRE(swapped.apply(input, header, {}, b, scratch, {}).ok());
    CHECK(a != b);
    for (size_t view = 0; view < a.size(); view += 192) std::swap_ranges(&a[view], &a[view] + 64, &a[view] + 128);
    CHECK(a == b);
  }
}

TEST_CASE("what a resize makes counts whole against the limit on pixels") {
  const Bytes rgb = noise(8, 4);
  const DecodeLimits limits{.max_pixels = 5000};
  // 200 x 100 of which a window of 8 x 8 is wanted: Pillow's arithmetic makes the window alone.
  const std::vector<TransformSpec> specs{resize({100, 200}), {"CenterCrop", {{"size", std::vector<double>{8, 8}}}}};
  SampleStatus status = SampleStatus::good();
  run(Pipeline(specs), rgb, 8, 4, &status, limits);
  CHECK(status.ok());
  run(Pipeline(specs, kOpencv), rgb, 8, 4, &status, limits);
  CHECK_FALSE(status.ok());
  CHECK(status.reason.find("200 x 100") != std::string::npos);
}

TEST_CASE("headers are read as imread does, and executors elsewhere get no plan") {
  const Pipeline pipeline({resize({8, 8})}, kOpencv);
  CHECK(pipeline.header_options().exif_orientation);
  CHECK(pipeline.header_options().conversion == ColourConversion::opencv);
  CHECK_FALSE(
      Pipeline({resize({8, 8})}, {.arithmetic = Arithmetic::opencv, .turns = false}).header_options().exif_orientation);
  ImageHeader header;
  header.format = ImageFormat::jpeg;
  header.width = header.height = 32;
  Scratch scratch(DecodeLimits{});
  ImagePlan plan;
  CHECK(Pipeline({resize({8, 8})}).plan(header, {}, scratch, plan));
  CHECK_FALSE(pipeline.plan(header, {}, scratch, plan));
  CHECK_FALSE(Pipeline({resize({8, 8})}, {.bgr = true}).plan(header, {}, scratch, plan));
  CHECK(opencv_version().find('.') != std::string::npos);
}

}  // namespace
}  // namespace penstock
