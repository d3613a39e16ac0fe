// One image format under libFuzzer: no crash, and what is promised of statuses and windows.
//
// Built once a format (PENSTOCK_FUZZ_FORMAT). Of every file that the header reader takes, two decodings are compared;
// which two, the file's length and its last bytes choose, so that an execution is quick and most mutations of a file
// ask the same of it:
//   - all of it, and once more by a decoder that has seen other files (JPEG: by libjpeg-turbo alone);
//   - a window, and the same window of the whole (JPEG: of libjpeg-turbo's whole);
//   - JPEG at a reduced size, by our own decoder and by libjpeg-turbo;
//   - JPEG by an index of its own, by one that its last bytes made up, by what was learned on the way to a window;
//   - with EXIF orientation: the sizes are the same or swapped, and the status is the same.
// JPEG and PNG: the first bytes are made right, so that every input is such a file; of other formats those that are not
// are left alone. PNG: mostly the chunks' checksums are made right too.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/side_index.h"
#include "tests/fuzz/decode_outcome.h"

namespace {

using namespace penstock;

// Damage is as easily found in small images, and a lane of the vector decoder has 512 bytes at least.
DecodeLimits small_limits() {
  return {.max_pixels = 1 << 14, .max_encoded_bytes = 1 << 20, .max_side = 4096, .max_scans = 20, .max_warnings = 100};
}

class Choice {
 public:
  explicit Choice(EncodedView bytes) {
    state_ += static_cast<uint32_t>(bytes.size()) * 16777619U;
    for (const std::byte b : bytes.last(std::min<size_t>(bytes.size(), 4)))
      state_ = (state_ ^ std::to_integer<uint32_t>(b)) * 16777619U;
  }
  int below(int limit) {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<int>((state_ >> 8) % static_cast<uint32_t>(limit));
  }
  Box window(int width, int height) {
    const int w = 1 + below(width);
    const int h = 1 + below(height);
    return {below(width - w + 1), below(height - h + 1), w, h};
  }

 private:
  uint32_t state_ = 2166136261U;
};

constexpr ImageFormat kFuzzed = ImageFormat::PENSTOCK_FUZZ_FORMAT;

// The format's first bytes; empty: there are several beginnings.
std::string_view beginning() {
  using namespace std::string_view_literals;
  return kFuzzed == ImageFormat::jpeg ? "\xFF\xD8\xFF"sv : kFuzzed == ImageFormat::png ? "\x89PNG\r\n\x1A\n"sv : ""sv;
}

// Without a look at what the header reader says: what it does with other formats' files would fill the corpus.
bool is_supported(const std::vector<uint8_t>& file) {
  const auto begins = [&file](std::string_view text) {
    return file.size() >= text.size() && std::memcmp(file.data(), text.data(), text.size()) == 0;
  };
  switch (kFuzzed) {
    case ImageFormat::gif: return begins("GIF8");
    case ImageFormat::bmp: return begins("BM");
    case ImageFormat::webp: return begins("RIFF");
    case ImageFormat::tiff: return begins("II") || begins("MM");
    case ImageFormat::pnm: return begins("P");
    default: return file.size() >= beginning().size();
  }
}

void mend_sums(std::vector<uint8_t>& png) {
  for (size_t at = 8; png.size() >= 12 && at <= png.size() - 12;) {
    const uint32_t length = uint32_t{png[at]} << 24 | png[at + 1] << 16 | png[at + 2] << 8 | png[at + 3];
    if (length > png.size() - at - 12) return;
    uint8_t* const text = png.data() + at + 4;
    const auto sum = static_cast<uint32_t>(crc32(0, text, length + 4));
    for (unsigned i = 0; i < 4; ++i) text[length + 4 + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += size_t{12} + length;
  }
}

std::vector<uint8_t> cut(const std::vector<uint8_t>& whole, int width, const Box& box) {
  std::vector<uint8_t> part;
  for (int y = box.y; y < box.y + box.height; ++y) {
    const auto row = whole.begin() + (static_cast<std::ptrdiff_t>(y) * width + box.x) * 3;
    part.insert(part.end(), row, row + static_cast<std::ptrdiff_t>(box.width) * 3);
  }
  return part;
}

// What all comparisons of a format need, kept from execution to execution.
struct Decoders {
  DecodeLimits limits = small_limits();
  Decoder used{limits};
  Decoder other{limits, {.own_jpeg = false}};  // JPEG: libjpeg-turbo alone
  std::array<Decoder, 3> learning{Decoder(limits, {.learned_interval = 1}), Decoder(limits, {.learned_interval = 7}),
                                  Decoder(limits, {.learned_interval = 40})};
};

void compare_whole(Decoders& decoders, EncodedView bytes, const ImageHeader& header) {
  const Box all{0, 0, header.width, header.height};
  require_equal(decode(decoders.used, bytes, header, all), decode(decoders.other, bytes, header, all), "one status",
                "the same pixels by another decoder");
}

void compare_window(Decoders& decoders, EncodedView bytes, const ImageHeader& header, const Box& box) {
  const Outcome part = decode(decoders.used, bytes, header, box);
  const Outcome whole = decode(decoders.other, bytes, header, {0, 0, header.width, header.height});
  require(part.status.ok() || !whole.status.ok(), "a good file's window is good");
  if (whole.status.ok()) require(part.pixels == cut(whole.pixels, header.width, box), "a window of the whole");
}

void compare_reduced(Decoders& decoders, EncodedView bytes, const ImageHeader& header, Choice& choice) {
  const int reduction = 2 << choice.below(3);
  const auto reduced = [reduction](int side) { return (side + reduction - 1) / reduction; };
  const Box box = choice.window(reduced(header.width), reduced(header.height));
  require_equal(decode(decoders.used, bytes, header, box, {.reduction = reduction}),
                decode(decoders.other, bytes, header, box, {.reduction = reduction}), "one status at a reduced size",
                "the same pixels at a reduced size");
  const Box judged = choice.window(header.width, header.height);
  const Outcome at_full_size = decode(decoders.other, bytes, header, judged);
  const DecodeOptions decode_options{.reduction = reduction, .judged = judged};
  const Outcome one = decode(decoders.used, bytes, header, box, decode_options);
  require(one.status.reason == at_full_size.status.reason, "judged at full size, the status is that of full size");
  require_equal(one, decode(decoders.other, bytes, header, box, decode_options), "one status, judged at full size",
                "the same pixels, judged at full size");
}

// The file's own index changes nothing.
void compare_indexed(Decoders& decoders, EncodedView bytes, const ImageHeader& header, const Box& box, Choice& choice) {
  SideIndex index;
  if (!build_side_index(bytes, {.interval = 1 + choice.below(40)}, index)) return;
  require_equal(decode(decoders.used, bytes, header, box, {.index = &index}),
                decode(decoders.other, bytes, header, box), "a file with an index is good",
                "the same pixels by an index");
}

// One that the file's last bytes make up may cost time, never more.
void use_made_up_index(Decoders& decoders, EncodedView bytes, const ImageHeader& header, const Box& box,
                       Choice& choice) {
  SideIndex index;
  std::string text = build_side_index(bytes, {.interval = 1 + choice.below(40)}, index) ? index.serialise() : "";
  const size_t tail = std::min(text.size() - std::min<size_t>(text.size(), 8), bytes.size());
  for (size_t i = 0; i < tail; ++i)
    text[text.size() - 1 - i] ^= static_cast<char>(bytes[bytes.size() - 1 - i] & std::byte{0x11});
  if (SideIndex::read(std::as_bytes(std::span(text)), index))
    (void)decode(decoders.used, bytes, header, box, {.index = &index});
}

// What was learned on the way to a box above changes nothing either.
void compare_learned(Decoders& decoders, EncodedView bytes, const ImageHeader& header, const Box& box, Choice& choice) {
  Decoder& decoder = decoders.learning[static_cast<size_t>(choice.below(3))];
  SideIndex index;
  (void)decode(decoder, bytes, header, {0, 0, header.width, (box.y + box.height + 1) / 2}, {.learned = &index});
  SideIndex more;
  require_equal(decode(decoder, bytes, header, box, {.index = index.empty() ? nullptr : &index, .learned = &more}),
                decode(decoders.other, bytes, header, box), "the same status by what was learned",
                "the same pixels by what was learned");
  if (more.empty()) return;
  require_equal(decode(decoder, bytes, header, box, {.index = &more}), decode(decoders.other, bytes, header, box),
                "the same status by all that was learned", "the same pixels by all that was learned");
}

void compare_oriented(Decoders& decoders, EncodedView bytes, const ImageHeader& header) {
  ImageHeader oriented;
  require(read_header(bytes, decoders.limits, oriented, {.exif_orientation = true}).ok(), "orientation is no status");
  const bool same = oriented.width == header.width && oriented.height == header.height;
  require(same || (oriented.width == header.height && oriented.height == header.width),
          "turning keeps or swaps the sides");
  const Outcome turned = decode(decoders.used, bytes, oriented, {0, 0, oriented.width, oriented.height});
  const Outcome plain = decode(decoders.other, bytes, header, {0, 0, header.width, header.height});
  require(turned.status.ok() == plain.status.ok(), "turning does not change the status");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Decoders decoders;
  // A copy of exactly this size: reading a byte too far is seen.
  std::vector<uint8_t> copy(data, data + size);
  if (!is_supported(copy)) return 0;
  std::copy(beginning().begin(), beginning().end(), copy.begin());
  if (kFuzzed == ImageFormat::png && size % 8 != 0) mend_sums(copy);
  const EncodedView bytes = std::as_bytes(std::span(copy));
  ImageHeader header;
  const SampleStatus read = read_header(bytes, decoders.limits, header);
  if (header.format != kFuzzed || !read.ok()) return 0;
  require(header.width > 0 && header.height > 0, "sizes are positive");
  Choice choice(bytes);
  const bool jpeg = header.format == ImageFormat::jpeg;
  const int way = choice.below(jpeg ? 12 : 8);
  const Box box = choice.window(header.width, header.height);
  if (way < 3) {
    compare_whole(decoders, bytes, header);
  } else if (way < 7) {
    compare_window(decoders, bytes, header, box);
  } else if (way == 7) {
    compare_oriented(decoders, bytes, header);
  } else if (way == 8) {
    compare_reduced(decoders, bytes, header, choice);
  } else if (way == 9) {
    compare_indexed(decoders, bytes, header, box, choice);
  } else if (way == 10) {
    use_made_up_index(decoders, bytes, header, box, choice);
  } else {
    compare_learned(decoders, bytes, header, box, choice);
  }
  return 0;
}
