// ExifTranspose: a pipeline on a file with an orientation equals the same pipeline on the oriented picture.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/transforms/pipeline.h"
#include "tests/transforms/exif_files.h"
#include "tests/transforms/image_files.h"

namespace {

using namespace penstock;
using penstock_test::turned;
using penstock_test::with_orientation;

std::vector<std::byte> photo(int width, int height) {
  return penstock_test::encode_jpeg(penstock_test::make_rgb(width, height, 3), width, height, 85, 2);
}

std::vector<uint8_t> decoded(const std::vector<std::byte>& file, ImageHeader& header) {
  REQUIRE(read_header(file, {}, header).ok());
  Decoder decoder({});
  PixelBuffer storage;
  PixelView view;
  REQUIRE(decoder.decode(file, header, {0, 0, header.width, header.height}, storage, view).ok());
  std::vector<uint8_t> pixels;
  for (int y = 0; y < view.height; ++y) {
    pixels.insert(pixels.end(), view.row(y), view.row(y) + static_cast<size_t>(view.width) * 3);
  }
  return pixels;
}

std::vector<uint8_t> run(const std::vector<TransformSpec>& specs, const std::vector<std::byte>& file, uint64_t index) {
  const Pipeline pipeline(specs);
  Scratch scratch{DecodeLimits{}};
  ImageHeader header;
  REQUIRE(read_header(file, {}, header, pipeline.header_options()).ok());
  Draws draws = pipeline.draw({7, 1, index, 0}, header);
  std::vector<uint8_t> out(static_cast<size_t>(pipeline.out_width() * pipeline.out_height()) * 3);
  const SampleStatus status = pipeline.apply(file, header, draws, out, scratch);
  REQUIRE_MESSAGE(status.ok(), status.reason);
  return out;
}

// Positions in the pipeline number the draws, so the plain pipeline needs something harmless in front.
const TransformSpec kHarmless{"RandomVerticalFlip", {{"p", 0.0}}};

}  // namespace

TEST_CASE("every orientation, under crops, resizes and flips") {
  const std::vector<std::byte> file = photo(57, 40);
  ImageHeader stored;
  const std::vector<uint8_t> pixels = decoded(file, stored);
  const std::vector<TransformSpec> tail{{"RandomResizedCrop", {{"size", int64_t{24}}}}, {"RandomHorizontalFlip", {}}};
  for (int orientation = 0; orientation <= 9; ++orientation) {
    CAPTURE(orientation);
    const bool swaps = orientation >= 5 && orientation <= 8;
    const std::vector<uint8_t> oriented = turned(pixels, 57, 40, orientation);
    const std::vector<std::byte> reference = penstock_test::encode_png(oriented, swaps ? 40 : 57, swaps ? 57 : 40);
    const std::vector<std::byte> marked = with_orientation(file, orientation);
    ImageHeader header;
    REQUIRE(read_header(marked, {}, header, {.exif_orientation = true}).ok());
    CHECK(header.width == (swaps ? 40 : 57));
    CHECK(header.height == (swaps ? 57 : 40));
    for (uint64_t index = 0; index < 12; ++index) {
      std::vector<TransformSpec> with{{"ExifTranspose", {}}};
      std::vector<TransformSpec> without{kHarmless};
      with.insert(with.end(), tail.begin(), tail.end());
      without.insert(without.end(), tail.begin(), tail.end());
      CHECK(run(with, marked, index) == run(without, reference, index));
      // Off by default: the mark changes nothing.
      CHECK(run(without, marked, index) == run(without, file, index));
    }
  }
}

TEST_CASE("the limits hold for turned images, and their statuses are the same") {
  std::vector<std::byte> cut = with_orientation(photo(64, 48), 6);
  cut.resize(cut.size() / 2);
  ImageHeader header;
  REQUIRE(read_header(cut, {}, header, {.exif_orientation = true}).ok());
  Decoder decoder({});
  PixelBuffer storage;
  PixelView view;
  CHECK(decoder.decode(cut, header, {0, 0, 48, 64}, storage, view).reason ==
        "JPEG: premature end of the data (truncated file)");
  DecodeLimits tight;
  tight.max_pixels = 64 * 48 - 1;
  CHECK_FALSE(read_header(cut, tight, header, {.exif_orientation = true}).ok());
  CHECK_THROWS_AS(decoder.decode(cut, header, {0, 0, 64, 48}, storage, view), Error);
}

TEST_CASE("it stands first or not at all") {
  try {
    Pipeline({{"Resize", {{"size", std::vector<double>{8, 8}}}}, {"ExifTranspose", {}}});
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    CHECK(error.message() == "pipeline[1]: ExifTranspose does not stand first");
  }
  const Pipeline with({{"ExifTranspose", {}}, {"CenterCrop", {{"size", int64_t{8}}}}});
  const Pipeline without({{"CenterCrop", {{"size", int64_t{8}}}}});
  CHECK(with.header_options().exif_orientation);
  CHECK_FALSE(without.header_options().exif_orientation);
  CHECK(with.canonical() == "ExifTranspose()\n" + without.canonical());  // so fingerprints differ
}
