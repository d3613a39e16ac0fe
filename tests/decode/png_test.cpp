// PNG decoding: damaged files and limits. Pixels of every kind of PNG are compared in pillow_exact_test.py.
#include <doctest/doctest.h>
#include <spng.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/decode/decoder.h"

namespace png_test {

namespace {

using namespace penstock;

std::vector<std::byte> make_png(int width, int height, size_t text_bytes = 0) {
  const std::unique_ptr<spng_ctx, void (*)(spng_ctx*)> ctx(spng_ctx_new(SPNG_CTX_ENCODER), spng_ctx_free);
  spng_set_option(ctx.get(), SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr ihdr{};
  ihdr.width = static_cast<uint32_t>(width);
  ihdr.height = static_cast<uint32_t>(height);
  ihdr.bit_depth = 8;
  ihdr.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  spng_set_ihdr(ctx.get(), &ihdr);
  std::string text(text_bytes, 'a');
  if (text_bytes > 0) {
    spng_text entry{};
    std::strcpy(entry.keyword, "Comment");
    entry.type = SPNG_ZTXT;
    entry.text = text.data();
    entry.length = text.size();
    spng_set_text(ctx.get(), &entry, 1);
  }
  std::vector<uint8_t> pixels(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  std::mt19937 random(2);
  for (auto& p : pixels) p = static_cast<uint8_t>(random());
  REQUIRE(spng_encode_image(ctx.get(), pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE) == 0);
  size_t size = 0;
  int error = 0;
  void* data = spng_get_png_buffer(ctx.get(), &size, &error);
  REQUIRE(error == 0);
  std::vector<std::byte> file(size);
  std::memcpy(file.data(), data, size);
  std::free(data);
  return file;
}

SampleStatus decode(Decoder& decoder, const std::vector<std::byte>& file, const Box& box) {
  ImageHeader header;
  SampleStatus status = read_header(file, {}, header);
  if (!status.ok()) return status;
  if (!Box{0, 0, header.width, header.height}.contains(box)) return SampleStatus::bad("other size");
  PixelBuffer storage;
  PixelView pixels;
  return decoder.decode(file, header, box, storage, pixels);
}

}  // namespace

TEST_CASE("a PNG cut at any byte is good or bad, and only the rows asked for count") {
  const auto file = make_png(200, 160);  // a dozen data chunks
  Decoder decoder({});
  int good_whole = 0;
  int good_top = 0;
  for (size_t left = file.size() + 1; left > 0; left -= left > 400 && file.size() > left + 40 ? 97 : 1) {
    const size_t cut = left - 1;
    const std::vector<std::byte> part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(cut));
    const bool whole = decode(decoder, part, {0, 0, 200, 160}).ok();
    const bool top = decode(decoder, part, {3, 0, 5, 2}).ok();
    CHECK((top || !whole));  // more rows never make a bad file good
    // Columns and rows above do not matter: the last row decides.
    CHECK(decode(decoder, part, {19, 1, 1, 1}).ok() == top);
    CHECK(decode(decoder, part, {0, 159, 200, 1}).ok() == whole);
    good_whole += whole;
    good_top += top;
  }
  CHECK(good_whole >= 1);
  CHECK(good_top > good_whole + 100);
  auto half = file;
  half.resize(file.size() / 2);
  CHECK(decode(decoder, half, {0, 0, 200, 160}).reason == "PNG: premature end of the data (truncated file)");
}

TEST_CASE("a wrong checksum is an error") {
  const auto file = make_png(20, 16);
  Decoder decoder({});
  auto broken = file;
  broken[29] ^= std::byte{1};  // of the header chunk
  CHECK_FALSE(decode(decoder, broken, {0, 0, 20, 16}).ok());
}

TEST_CASE("text that inflates beyond the limit is refused, a harmless one passes") {
  Decoder decoder({});
  CHECK(decode(decoder, make_png(20, 16, 100'000), {0, 0, 20, 16}).ok());
  const auto bomb = make_png(20, 16, size_t{200} << 20);
  CHECK(bomb.size() < (size_t{1} << 20));
  const SampleStatus status = decode(decoder, bomb, {0, 0, 20, 16});
  MESSAGE("bomb of " << bomb.size() << " bytes: " << status.reason);
  CHECK_FALSE(status.ok());
}

TEST_CASE("mutated PNG files end in a status") {
  constexpr unsigned seed = 31;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  const auto file = make_png(30, 20);
  Decoder decoder({});
  int good = 0;
  int bad = 0;
  for (int round = 0; round < 3000; ++round) {
    auto broken = file;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      broken[random() % (round % 2 == 0 ? 60 : broken.size())] = static_cast<std::byte>(random() & 255);
    }
    (decode(decoder, broken, {2, 3, 9, 10}).ok() ? good : bad)++;
  }
  MESSAGE(good << " decoded, " << bad << " refused");
  CHECK(bad > 1000);
}

}  // namespace png_test
