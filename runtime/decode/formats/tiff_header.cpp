#include "runtime/decode/formats/tiff_header.h"

#include <algorithm>
#include <cstring>

#include "runtime/decode/formats/tiff_decoder.h"
#include "runtime/decode/header_reader.h"

namespace penstock {
namespace {

enum Tag : unsigned {
  kWidth = 256,
  kHeight = 257,
  kBits = 258,
  kCompression = 259,
  kPhotometric = 262,
  kFillOrder = 266,
  kStripOffsets = 273,
  kOrientation = 274,
  kSamples = 277,
  kRowsPerStrip = 278,
  kPlanar = 284,
  kColourMap = 320,
  kTileWidth = 322,
  kTileHeight = 323,
  kTileOffsets = 324,
  kExtraSamples = 338,
  kSampleFormat = 339,
};

size_t type_bytes(unsigned type) {
  static constexpr uint8_t kSizes[17] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  return type < 17 ? kSizes[type] : 0;
}

bool is_integer(unsigned type) {
  return type == 3 || type == 4 || type == 8 || type == 9 || type == 13 || type == 16;
}

// The directory: the tags' places. What Pillow skips or where it stops, this does.
class Directory {
 public:
  Directory(EncodedView bytes, TiffHeader& tiff) : bytes_(bytes), tiff_(tiff) {}

  bool open() {
    if (bytes_.size() < 8) return false;
    static constexpr unsigned char prefixes[5][4] = {
        {'M', 'M', 0, 42}, {'I', 'I', 42, 0}, {'M', 'M', 42, 0}, {'I', 'I', 0, 42}, {'I', 'I', 43, 0}};
    const bool known = std::any_of(std::begin(prefixes), std::end(prefixes),
                                   [&](const auto& prefix) { return std::memcmp(bytes_.data(), prefix, 4) == 0; });
    if (!known) return false;
    tiff_.big_endian = bytes_[0] == std::byte{'M'};
    tiff_.big_tiff = bytes_[2] == std::byte{43};
    if (tiff_.big_tiff && bytes_.size() < 16) return false;
    begin_ = tiff_.big_tiff ? integer(8, 8) : integer(4, 4);
    read(begin_);
    return true;
  }
  uint64_t begin() const { return begin_; }

  bool has(unsigned tag) const { return find(tag) != nullptr; }
  // False: there is such a tag, of a type that is no integer.
  bool get(unsigned tag, uint64_t& value) const {
    const Entry* entry = find(tag);
    if (entry == nullptr) return true;
    if (!is_integer(entry->values.type)) return false;
    value = tiff_.value(bytes_, entry->values, 0);
    return true;
  }
  TiffHeader::Values values(unsigned tag) const {
    const Entry* entry = find(tag);
    return entry == nullptr ? TiffHeader::Values{} : entry->values;
  }
  // Up to eight values: enough to see that there are too many.
  std::vector<uint64_t> list(unsigned tag) const {
    std::vector<uint64_t> list;
    const TiffHeader::Values all = values(tag);
    for (uint64_t i = 0; is_integer(all.type) && i < std::min<uint64_t>(all.count, 8); ++i) {
      list.push_back(tiff_.value(bytes_, all, i));
    }
    return list;
  }

 private:
  struct Entry {
    unsigned tag;
    TiffHeader::Values values;
  };

  uint64_t integer(size_t at, size_t size) const {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      value = value << 8 | std::to_integer<uint64_t>(bytes_[at + (tiff_.big_endian ? i : size - 1 - i)]);
    }
    return value;
  }
  bool inside(uint64_t at, uint64_t size) const { return at <= bytes_.size() && size <= bytes_.size() - at; }

  void read(uint64_t at) {
    const size_t count_bytes = tiff_.big_tiff ? 8 : 2;
    const size_t entry_bytes = tiff_.big_tiff ? 20 : 12;
    const size_t inline_bytes = tiff_.big_tiff ? 8 : 4;
    if (!inside(at, count_bytes)) return;
    const uint64_t count = integer(at, count_bytes);
    at += count_bytes;
    for (uint64_t i = 0; i < count && inside(at, entry_bytes); ++i, at += entry_bytes) {
      Entry entry{static_cast<unsigned>(integer(at, 2)), {}};
      entry.values.type = static_cast<unsigned>(integer(at + 2, 2));
      entry.values.count = integer(at + 4, inline_bytes);
      const size_t unit = type_bytes(entry.values.type);
      if (unit == 0 || entry.values.count == 0) continue;
      if (entry.values.count > bytes_.size() / unit) return;
      entry.values.at = at + 4 + inline_bytes;
      const uint64_t size = entry.values.count * unit;
      if (size > inline_bytes) entry.values.at = integer(entry.values.at, inline_bytes);
      if (!inside(entry.values.at, size)) return;
      if (entry.tag < kWidth || entry.tag > kSampleFormat) continue;
      // The last of several entries counts. A directory may have millions, so one is kept for each tag.
      const auto same =
          std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.tag == entry.tag; });
      if (same != entries_.end()) {
        *same = entry;
      } else {
        entries_.push_back(entry);
      }
    }
  }
  const Entry* find(unsigned tag) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.tag == tag; });
    return found == entries_.end() ? nullptr : &*found;
  }

  EncodedView bytes_;
  TiffHeader& tiff_;
  uint64_t begin_ = 0;
  std::vector<Entry> entries_;
};

SampleStatus unsupported(const std::string& what) {
  return SampleStatus::bad("TIFF: " + what + " not supported");
}

// Pillow's table. `format`: 1 unsigned, 2 signed, 3 real; 0: mixed.
bool choose_mode(TiffHeader& t, uint64_t photometric, uint64_t format, uint64_t fill,
                 const std::vector<uint64_t>& extra) {
  using Mode = TiffHeader::Mode;
  const unsigned b = t.bits;
  const unsigned n = t.samples;
  const bool small = b == 1 || b == 2 || b == 4 || b == 8;
  if (fill != 1 && fill != 2) return false;
  t.reversed = fill == 2;
  if (n == 1 && extra.empty() && photometric <= 1) {
    const bool white_is_zero = photometric == 0;
    if (small) {
      t.mode = Mode::grey;
      t.inverted = white_is_zero;
      return format == 1;
    }
    t.mode = format == 3 ? Mode::real : Mode::integer;
    t.is_signed = format == 2;
    if (b == 12) return !t.big_endian && !white_is_zero && format == 1 && fill == 1;
    if (b == 16 && format == 1) {
      if (t.big_endian) return !white_is_zero && fill == 1;
      return fill == 1 || !white_is_zero;
    }
    if (fill != 1) return false;
    if (b == 16) return format == 2 && !white_is_zero;
    if (b != 32) return false;
    return format == 3 || (!white_is_zero && (format == 2 || (format == 1 && !t.big_endian)));
  }
  if (format != 1) return false;
  if (photometric == 3 && n == 1 && extra.empty()) {
    t.mode = Mode::palette;
    return small;
  }
  if (n == 2) {
    t.mode = photometric == 3 ? Mode::palette : Mode::grey;
    return b == 8 && fill == 1 && (photometric == 1 || photometric == 3) && extra == std::vector<uint64_t>{2};
  }
  const auto zeros_after = [&](size_t first) {
    return std::all_of(extra.begin() + static_cast<std::ptrdiff_t>(std::min(first, extra.size())), extra.end(),
                       [](uint64_t e) { return e == 0; });
  };
  if (photometric == 2) {
    t.mode = Mode::rgb;
    if (b != 8 && b != 16) return false;
    if (n == 3) return extra.empty() && (fill == 1 || b == 8);
    if (fill != 1 || n < 4 || n > (b == 8 ? 6U : 4U)) return false;
    if (n == 4 && extra.empty()) return true;
    if (extra.size() != n - 3 || !zeros_after(1)) return false;
    t.premultiplied = extra[0] == 1;
    return extra[0] <= 2 || (extra[0] == 999 && n == 4 && b == 8);
  }
  if (photometric == 5) {
    t.mode = Mode::cmyk;
    if (fill != 1 || n < 4 || extra.size() != n - 4 || !zeros_after(0)) return false;
    return b == 8 ? n <= 6 : b == 16 && n == 4 && !t.big_endian;
  }
  if (photometric == 6) {
    t.mode = Mode::ycbcr;
    return n == 3 && b == 8 && fill == 1 && extra.empty();
  }
  return false;
}

bool read_colours(EncodedView bytes, const Directory& directory, TiffHeader& tiff) {
  const TiffHeader::Values map = directory.values(kColourMap);
  if (!is_integer(map.type)) return false;
  const uint64_t entries = map.count / 3;
  if (entries > 256) return false;
  for (uint64_t i = 0; i < 256; ++i) {
    for (uint64_t c = 0; c < 3; ++c) {
      const uint64_t value = i < entries ? tiff.value(bytes, map, c * entries + i) >> 8 : i;
      tiff.colours[i][c] = static_cast<uint8_t>(value);
    }
  }
  return true;
}

bool is_read(uint64_t compression) {
  for (const uint64_t known : {1, 2, 3, 4, 5, 7, 8, 32771, 32773, 32809, 32946, 50000, 50001}) {
    if (compression == known) return true;
  }
  return false;
}

}  // namespace

uint64_t TiffHeader::value(EncodedView bytes, const Values& values, uint64_t index) const {
  const size_t size = type_bytes(values.type);
  const size_t at = values.at + static_cast<size_t>(index) * size;
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value = value << 8 | std::to_integer<uint64_t>(bytes[at + (big_endian ? i : size - 1 - i)]);
  }
  return value;
}

SampleStatus parse_tiff(EncodedView bytes, TiffHeader& tiff) {
  Directory directory(bytes, tiff);
  if (!directory.open()) return SampleStatus::bad("not a TIFF file");
  if (directory.begin() == 0) return SampleStatus::bad("TIFF: no directory");
  uint64_t compression = 1;
  uint64_t planar = 1;
  uint64_t photometric = 0;
  uint64_t fill = 1;
  uint64_t samples = 1;
  uint64_t orientation = 0;
  uint64_t rows = 0;
  if (!directory.has(kWidth) || !directory.has(kHeight))
    return SampleStatus::bad("TIFF: no size in the first directory");
  const bool plain = directory.get(kWidth, tiff.width) && directory.get(kHeight, tiff.height) &&
                     directory.get(kCompression, compression) && directory.get(kPlanar, planar) &&
                     directory.get(kPhotometric, photometric) && directory.get(kFillOrder, fill) &&
                     directory.get(kSamples, samples) && directory.get(kOrientation, orientation);
  for (const unsigned tag : {kBits, kSampleFormat, kExtraSamples}) {
    if (directory.has(tag) && !is_integer(directory.values(tag).type)) return unsupported("a tag of a strange type is");
  }
  if (!plain) return unsupported("a tag of a strange type is");
  if (!is_read(compression)) return unsupported("compression " + std::to_string(compression) + " is");
  if (planar != 1 && planar != 2) return unsupported("planar configuration " + std::to_string(planar) + " is");
  tiff.compression = static_cast<unsigned>(compression);
  tiff.planar = static_cast<unsigned>(planar);
  tiff.orientation = orientation <= 8 ? static_cast<unsigned>(orientation) : 0;

  std::vector<uint64_t> format = directory.list(kSampleFormat);
  if (format.empty()) format = {1};
  if (format.size() > 1)
    format = {std::all_of(format.begin(), format.end(), [](uint64_t f) { return f == 1; }) ? 1U : 0U};
  std::vector<uint64_t> bits = directory.list(kBits);
  if (bits.empty()) bits = {1};
  if (samples < 1 || samples > 6) return unsupported(std::to_string(samples) + " samples a pixel are");
  if (bits.size() > samples) bits.resize(samples);
  if (bits.size() == 1) bits.resize(samples, bits[0]);
  const bool equal = std::all_of(bits.begin(), bits.end(), [&](uint64_t b) { return b == bits[0]; });
  if (bits.size() != samples || !equal || bits[0] > 64) return unsupported("this organisation of samples is");
  tiff.bits = static_cast<unsigned>(bits[0]);
  tiff.samples = static_cast<unsigned>(samples);
  const std::vector<uint64_t> extra = directory.list(kExtraSamples);
  if (!choose_mode(tiff, photometric, format[0], fill, extra)) {
    return unsupported(std::to_string(samples) + " samples of " + std::to_string(tiff.bits) +
                       " bits with photometric interpretation " + std::to_string(photometric) + " are");
  }
  if (tiff.mode == TiffHeader::Mode::palette && !read_colours(bytes, directory, tiff)) {
    return SampleStatus::bad("TIFF: no usable colour map");
  }
  tiff.tiled = !directory.has(kStripOffsets) && directory.has(kTileOffsets);
  tiff.offsets = directory.values(tiff.tiled ? kTileOffsets : kStripOffsets);
  if (!is_integer(tiff.offsets.type)) return SampleStatus::bad("TIFF: no offsets of strips or tiles");
  if (tiff.tiled && !(directory.has(kTileWidth) && directory.has(kTileHeight))) {
    return SampleStatus::bad("TIFF: tiles without a size");
  }
  tiff.block_width = tiff.width;
  tiff.block_height = tiff.height;
  if (tiff.tiled && !(directory.get(kTileWidth, tiff.block_width) && directory.get(kTileHeight, tiff.block_height))) {
    return unsupported("a tag of a strange type is");
  }
  if (!tiff.tiled && directory.has(kRowsPerStrip)) {
    if (!directory.get(kRowsPerStrip, rows)) return unsupported("a tag of a strange type is");
    tiff.block_height = std::min(rows, tiff.height);
  }
  if (tiff.block_width == 0 || tiff.block_height == 0) return SampleStatus::bad("TIFF: empty strips or tiles");
  if (compression == 1) {
    if (tiff.mode == TiffHeader::Mode::ycbcr) return unsupported("uncompressed YCbCr is");
    if (tiff.mode == TiffHeader::Mode::palette && tiff.reversed && tiff.bits < 8) {
      return unsupported("a palette with reversed bits is");
    }
    if (tiff.mode == TiffHeader::Mode::grey && tiff.reversed && tiff.inverted && tiff.bits == 8) {
      return unsupported("inverted grey with reversed bits is");  // by Pillow neither
    }
  }
  if (planar == 2 && (compression == 1 || samples > 1)) {
    const bool plain_bytes = tiff.bits == 8 && samples <= 4 && !tiff.premultiplied && !tiff.reversed && !tiff.inverted;
    const bool coloured = tiff.mode == TiffHeader::Mode::rgb || tiff.mode == TiffHeader::Mode::cmyk;
    const bool jpeg_like = tiff.mode == TiffHeader::Mode::ycbcr;
    if (!jpeg_like && !(plain_bytes && (coloured || samples == 1))) return unsupported("these separate planes are");
    // From such files Pillow 9.4 shows the fourth plane in place of colours, except for uncompressed strips.
    if (tiff.mode == TiffHeader::Mode::rgb && samples == 4 && extra.empty() && (tiff.tiled || compression != 1)) {
      return unsupported("separate planes of which the fourth has no name are");
    }
  }
  return SampleStatus::good();
}

SampleStatus read_tiff_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  if (tiff_library_version().empty()) return SampleStatus::bad("TIFF support was left out at build time");
  TiffHeader tiff;
  SampleStatus status = parse_tiff(bytes, tiff);
  if (status.ok()) status = check_size(tiff.width, tiff.height, limits, header);
  if (!status.ok()) return status;
  if (tiff.tiled) {
    // Tiles are decoded whole, however little of the image is on them.
    ImageHeader tile;
    status = check_size(tiff.block_width, tiff.block_height, limits, tile);
    if (!status.ok()) return SampleStatus::bad("TIFF tile: " + status.reason);
  }
  if (tiff.orientation > 1) header.orientation = static_cast<uint8_t>(tiff.orientation);
  return SampleStatus::good();
}

unsigned orientation_in_tiff(EncodedView block) {
  TiffHeader tiff;
  Directory directory(block, tiff);
  uint64_t orientation = 0;
  if (!directory.open() || !directory.get(kOrientation, orientation)) return 0;
  return orientation <= 8 ? static_cast<unsigned>(orientation) : 0;
}

}  // namespace penstock
