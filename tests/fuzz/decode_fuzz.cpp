// One image format under libFuzzer: no crash, and what is promised of verdicts and windows.
//
// Built once a format (PENSTOCK_FUZZ_FORMAT). Checked of every file that the header reader takes:
//   - the verdict and the pixels of a second decode, by a used decoder, are those of the first;
//   - a good file's window is good, and equals the same window of the whole;
//   - JPEG: our own decoder and libjpeg-turbo alone agree, at full size and at a reduced one;
//   - with EXIF orientation, the sizes are the same or swapped, and the verdict is the same.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/side_index.h"

namespace {

using namespace penstock;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Small enough that a round takes milliseconds: damage is as easily found in small images.
DecodeLimits small_limits() {
  return {.max_pixels = 1 << 18, .max_encoded_bytes = 1 << 20, .max_side = 4096, .max_scans = 20, .max_warnings = 100};
}

struct Outcome {
  Verdict verdict;
  std::vector<uint8_t> pixels;
};

Outcome decode(Decoder& decoder, EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
               int reduction = 1) {
  PixelView view;
  Outcome outcome{decoder.decode(bytes, header, box, storage, view, nullptr, nullptr, reduction), {}};
  if (!outcome.verdict.ok()) return outcome;
  require(view.width == box.width && view.height == box.height, "the pixels have the box's size");
  for (int y = 0; y < view.height; ++y) {
    outcome.pixels.insert(outcome.pixels.end(), view.row(y), view.row(y) + static_cast<size_t>(view.width) * 3);
  }
  return outcome;
}

// A window that the file's own bytes choose.
Box window_of(EncodedView bytes, const ImageHeader& header) {
  uint32_t state = 2166136261U;
  for (const std::byte b : bytes) state = (state ^ std::to_integer<uint32_t>(b)) * 16777619U;
  const auto below = [&state](int limit) {
    state = state * 1664525U + 1013904223U;
    return static_cast<int>((state >> 8) % static_cast<uint32_t>(limit));
  };
  const int width = 1 + below(header.width);
  const int height = 1 + below(header.height);
  return {below(header.width - width + 1), below(header.height - height + 1), width, height};
}

std::vector<uint8_t> cut(const std::vector<uint8_t>& whole, int width, const Box& box) {
  std::vector<uint8_t> part;
  for (int y = box.y; y < box.y + box.height; ++y) {
    const auto row = whole.begin() + (static_cast<std::ptrdiff_t>(y) * width + box.x) * 3;
    part.insert(part.end(), row, row + static_cast<std::ptrdiff_t>(box.width) * 3);
  }
  return part;
}

// The file's own index changes nothing; one that the file's last bytes make up may cost time, never more.
void with_indices(Decoder& decoder, EncodedView bytes, const ImageHeader& header, const Box& box,
                  const std::vector<uint8_t>& pixels, PixelBuffer& storage) {
  SideIndex index;
  PixelView view;
  if (build_side_index(bytes, {.interval = 1 + static_cast<int>(bytes.size() % 40)}, index)) {
    require(decoder.decode(bytes, header, box, storage, view, &index).ok(), "a file with an index is good");
    for (int y = 0; y < view.height; ++y) {
      const size_t row = static_cast<size_t>(view.width) * 3;
      require(std::memcmp(view.row(y), pixels.data() + static_cast<size_t>(y) * row, row) == 0,
              "the same pixels by an index");
    }
  }
  std::string text = index.empty() ? std::string() : index.serialise();
  const size_t tail = std::min(text.size() - std::min<size_t>(text.size(), 8), bytes.size());
  for (size_t i = 0; i < tail; ++i)
    text[text.size() - 1 - i] ^= static_cast<char>(bytes[bytes.size() - 1 - i] & std::byte{0x11});
  if (SideIndex::read(std::as_bytes(std::span(text)), index)) {
    (void)decoder.decode(bytes, header, box, storage, view, &index);
  }
}

// What was learnt on the way to a box above changes nothing either, for the box at hand or for all of the image.
void with_learnt(EncodedView bytes, const ImageHeader& header, const Box& box, const Outcome& part,
                 const Outcome& whole, PixelBuffer& storage) {
  Decoder decoder(small_limits(), {.learnt_interval = 1 + static_cast<int>(bytes.size() % 40)});
  SideIndex index;
  PixelView view;
  (void)decoder.decode(bytes, header, {0, 0, header.width, (box.y + box.height + 1) / 2}, storage, view, nullptr, &index);
  for (const bool all : {false, true}) {
    const Box wanted = all ? Box{0, 0, header.width, header.height} : box;
    const Outcome& want = all ? whole : part;
    SideIndex more;
    const Verdict got =
        decoder.decode(bytes, header, wanted, storage, view, index.empty() ? nullptr : &index, &more);
    require(got.ok() == want.verdict.ok() && got.reason == want.verdict.reason, "the same verdict by what was learnt");
    const size_t row = static_cast<size_t>(wanted.width) * 3;
    for (int y = 0; got.ok() && y < wanted.height; ++y) {
      require(std::memcmp(view.row(y), want.pixels.data() + static_cast<size_t>(y) * row, row) == 0,
              "the same pixels by what was learnt");
    }
    if (!more.empty()) index = more;
  }
}

// At a size that the file's length chooses.
void reduced(Decoder& own, Decoder& library, EncodedView bytes, const ImageHeader& header, PixelBuffer& storage) {
  const int reduction = 2 << bytes.size() % 3;
  ImageHeader small = header;
  small.width = (header.width + reduction - 1) / reduction;
  small.height = (header.height + reduction - 1) / reduction;
  const Box box = window_of(bytes, small);
  const Outcome ours = decode(own, bytes, header, box, storage, reduction);
  const Outcome theirs = decode(library, bytes, header, box, storage, reduction);
  require(ours.verdict.ok() == theirs.verdict.ok() && ours.verdict.reason == theirs.verdict.reason,
          "one verdict at a reduced size");
  require(ours.pixels == theirs.pixels, "the same pixels at a reduced size");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const DecodeLimits limits = small_limits();
  static Decoder used(limits);
  static PixelBuffer storage;
  // A copy of exactly this size: reading a byte too far is seen.
  const std::vector<uint8_t> copy(data, data + size);
  const EncodedView bytes = std::as_bytes(std::span(copy));
  ImageHeader header;
  const Verdict read = read_header(bytes, limits, header);
  if (header.format != ImageFormat::PENSTOCK_FUZZ_FORMAT) return -1;  // not for the corpus
  ImageHeader upright;
  require(read_header(bytes, limits, upright, {.exif_orientation = true}).ok() == read.ok(),
          "orientation is no verdict");
  if (!read.ok()) return 0;
  require(header.width > 0 && header.height > 0, "sizes are positive");
  const bool same = upright.width == header.width && upright.height == header.height;
  require(same || (upright.width == header.height && upright.height == header.width),
          "turning keeps or swaps the sides");

  const Box all{0, 0, header.width, header.height};
  const Outcome whole = decode(used, bytes, header, all, storage);
  {
    Decoder fresh(limits, {.own_jpeg = false});
    PixelBuffer other;
    const Outcome again = decode(fresh, bytes, header, all, other);
    require(again.verdict.ok() == whole.verdict.ok() && again.verdict.reason == whole.verdict.reason, "one verdict");
    require(again.pixels == whole.pixels, "the same pixels by another decoder");
    if (header.format == ImageFormat::jpeg) reduced(used, fresh, bytes, header, other);
  }
  const Box box = window_of(bytes, header);
  const Outcome part = decode(used, bytes, header, box, storage);
  require(part.verdict.ok() || !whole.verdict.ok(), "a good file's window is good");
  if (whole.verdict.ok()) require(part.pixels == cut(whole.pixels, header.width, box), "a window of the whole");
  if (header.format == ImageFormat::jpeg) with_indices(used, bytes, header, box, part.pixels, storage);
  if (header.format == ImageFormat::jpeg) with_learnt(bytes, header, box, part, whole, storage);
  if (upright.orientation != header.orientation) {
    const Outcome turned = decode(used, bytes, upright, {0, 0, upright.width, upright.height}, storage);
    require(turned.verdict.ok() == whole.verdict.ok(), "turning does not change the verdict");
  }
  return 0;
}
