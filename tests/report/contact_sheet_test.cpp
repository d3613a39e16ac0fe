#include "runtime/report/contact_sheet.h"

#include <doctest/doctest.h>
#include <spng.h>

#include <memory>

#include "runtime/base/error.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

namespace {

struct Picture {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;

  std::vector<int> at(int x, int y) const {
    const uint8_t* p = rgb.data() + (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 3;
    return {p[0], p[1], p[2]};
  }
};

Picture decode_png(const std::vector<std::byte>& png) {
  const std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)> context(spng_ctx_new(0), &spng_ctx_free);
  REQUIRE(spng_set_png_buffer(context.get(), png.data(), png.size()) == 0);
  spng_ihdr header{};
  REQUIRE(spng_get_ihdr(context.get(), &header) == 0);
  size_t size = 0;
  REQUIRE(spng_decoded_image_size(context.get(), SPNG_FMT_RGB8, &size) == 0);
  Picture picture{static_cast<int>(header.width), static_cast<int>(header.height), std::vector<uint8_t>(size)};
  REQUIRE(spng_decode_image(context.get(), picture.rgb.data(), size, SPNG_FMT_RGB8, 0) == 0);
  return picture;
}

Picture read_png(const std::string& path) {
  std::vector<std::byte> file;
  REQUIRE(posix_file_system().read_file(path, 1 << 28, file));
  return decode_png(file);
}

// n images of one colour each, (10 n, 20, 255 - n).
std::vector<uint8_t> plain_images(int count, int width, int height) {
  std::vector<uint8_t> pixels;
  for (int n = 0; n < count; ++n) {
    for (const int value : {10 * n, 20, 255 - n}) {
      pixels.insert(pixels.end(), static_cast<size_t>(width * height), static_cast<uint8_t>(value));
    }
  }
  return pixels;
}

TensorView view_of(std::vector<uint8_t>& pixels, int64_t count, int64_t width, int64_t height) {
  return {pixels.data(), DType::uint8, {count, 3, height, width}, {3 * height * width, height * width, width, 1}};
}

}  // namespace

TEST_CASE("a PNG decodes to the same bytes") {
  std::vector<uint8_t> rgb(61 * 7 * 3);
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(i * i * 31 + i);
  const Picture picture = decode_png(encode_png(rgb.data(), 61, 7));
  CHECK(picture.width == 61);
  CHECK(picture.height == 7);
  CHECK(picture.rgb == rgb);
}

TEST_CASE("images stand in reading order with a gap around each") {
  TemporaryFolder folder;
  std::vector<uint8_t> pixels = plain_images(5, 6, 4);
  write_contact_sheet(folder.path("sheet.png"), view_of(pixels, 5, 6, 4), {.columns = 3, .gap = 2});
  const Picture sheet = read_png(folder.path("sheet.png"));
  CHECK(sheet.width == 2 + 3 * 8);
  CHECK(sheet.height == 2 + 2 * 6);
  for (int n = 0; n < 5; ++n) {
    const int left = 2 + n % 3 * 8;
    const int top = 2 + n / 3 * 6;
    const std::vector<int> colour = {10 * n, 20, 255 - n};
    CHECK(sheet.at(left, top) == colour);
    CHECK(sheet.at(left + 5, top + 3) == colour);
    CHECK(sheet.at(left - 1, top) == std::vector<int>{32, 32, 32});
    CHECK(sheet.at(left, top + 4) == std::vector<int>{32, 32, 32});
  }
  CHECK(sheet.at(2 + 2 * 8, 2 + 6) == std::vector<int>{32, 32, 32});  // no sixth image
}

TEST_CASE("strides are followed, and the grid is about square for any count") {
  TemporaryFolder folder;
  // Channels last: pixel (n, y, x) = {n, y, x}.
  std::vector<uint8_t> pixels;
  for (int n = 0; n < 10; ++n) {
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 5; ++x) pixels.insert(pixels.end(), {uint8_t(n), uint8_t(y), uint8_t(x)});
    }
  }
  for (int64_t count = 1; count <= 10; ++count) {
    write_contact_sheet(folder.path("sheet.png"),
                        TensorView{pixels.data(), DType::uint8, {count, 3, 5, 5}, {75, 1, 15, 3}}, {.gap = 0});
    const Picture sheet = read_png(folder.path("sheet.png"));
    const int columns = sheet.width / 5;
    CHECK(columns * (sheet.height / 5) >= count);
    CHECK(columns >= sheet.height / 5);
    CHECK(columns <= sheet.height / 5 + 1);
    for (int n = 0; n < count; ++n)
      CHECK(sheet.at(n % columns * 5 + 3, n / columns * 5 + 2) == std::vector<int>{n, 2, 3});
  }
}

TEST_CASE("a large batch is made smaller by the mean, not cut off") {
  TemporaryFolder folder;
  std::vector<uint8_t> pixels(static_cast<size_t>(100 * 3 * 64 * 64));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = i % 2 == 0 ? 100 : 201;
  write_contact_sheet(folder.path("sheet.png"), view_of(pixels, 100, 64, 64), {.gap = 1, .max_side = 200});
  const Picture sheet = read_png(folder.path("sheet.png"));
  CHECK(sheet.width == 1 + 10 * (16 + 1));
  CHECK(sheet.at(5, 5) == std::vector<int>{151, 151, 151});
}

TEST_CASE("what is no batch of images is refused, and errors name the path") {
  TemporaryFolder folder;
  std::vector<uint8_t> pixels = plain_images(1, 2, 2);
  TensorView empty = view_of(pixels, 0, 2, 2);
  CHECK_THROWS_AS(write_contact_sheet(folder.path("x.png"), empty), Error);
  TensorView floats = view_of(pixels, 1, 2, 2);
  floats.dtype = DType::float32;
  CHECK_THROWS_AS(write_contact_sheet(folder.path("x.png"), floats), Error);
  try {
    write_contact_sheet(folder.path("no/x.png"), view_of(pixels, 1, 2, 2));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(std::string(error.what()).find(folder.path("no/x.png")) != std::string::npos);
  }
}
