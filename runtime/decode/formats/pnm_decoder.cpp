#include "runtime/decode/formats/pnm_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/take_large.h"
#include "runtime/decode/header_reader.h"

namespace penstock {
namespace {

struct PnmHeader {
  int kind = 0;  // the digit of P1 to P6
  uint64_t width = 0;
  uint64_t height = 0;
  int64_t maxval = 1;
  size_t data = 0;  // offset of the samples

  bool plain() const { return kind <= 3; }
  size_t bands() const { return kind % 3 == 0 ? 3 : 1; }
};

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Python's int(): a sign, digits, single underscores between them. At most ten characters come here.
std::optional<int64_t> python_int(std::string_view text) {
  size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (at == text.size()) return std::nullopt;
  int64_t value = 0;
  bool digit_before = false;
  for (; at < text.size(); ++at) {
    if (text[at] == '_' && digit_before && at + 1 < text.size()) {
      digit_before = false;
      continue;
    }
    if (text[at] < '0' || text[at] > '9') return std::nullopt;
    value = value * 10 + (text[at] - '0');
    digit_before = true;
  }
  return text[0] == '-' ? -value : value;
}

// A token of the header, as Pillow reads it: a comment within a token does not end it.
SampleStatus read_token(std::string_view file, size_t& at, int64_t& value) {
  std::string token;
  while (token.size() <= 10 && at < file.size()) {
    const char c = file[at++];
    if (is_space(c)) {
      if (token.empty()) continue;
      break;
    }
    if (c == '#') {
      while (at < file.size()) {
        const char skipped = file[at++];
        if (skipped == '\r' || skipped == '\n') break;
      }
      continue;
    }
    token += c;
  }
  if (token.empty()) return SampleStatus::bad("premature end of data in the PNM header");
  const std::optional<int64_t> number = token.size() > 10 ? std::nullopt : python_int(token);
  if (!number) return SampleStatus::bad("PNM: a number of the header is none");
  value = *number;
  return SampleStatus::good();
}

SampleStatus parse(EncodedView bytes, PnmHeader& pnm) {
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (file.size() < 3 || file[0] != 'P' || file[1] < '1' || file[1] > '6' || !is_space(file[2])) {
    return SampleStatus::bad("not a PBM, PGM or PPM file of kind P1 to P6");
  }
  pnm.kind = file[1] - '0';
  pnm.data = 3;
  int64_t values[3] = {0, 0, 1};
  for (int i = 0; i < (pnm.bands() == 1 && pnm.kind % 3 == 1 ? 2 : 3); ++i) {
    const SampleStatus status = read_token(file, pnm.data, values[i]);
    if (!status.ok()) return status;
  }
  if (values[2] < 1 || values[2] > 65535) return SampleStatus::bad("PNM: maxval is not between 1 and 65535");
  pnm.width = static_cast<uint64_t>(std::max<int64_t>(values[0], 0));
  pnm.height = static_cast<uint64_t>(std::max<int64_t>(values[1], 0));
  pnm.maxval = values[2];
  return SampleStatus::good();
}

// The same of OpenCV, which takes the maxval of binary files for a number of bytes alone, and of two bytes the high one.
uint8_t opencv_sample(int64_t value, int64_t maxval, bool plain) {
  if (maxval > 255) return static_cast<uint8_t>(value >> 8);
  return static_cast<uint8_t>(plain ? value * 255 / maxval : value);
}

// A sample as the 8 bits that Pillow's RGB has in the end. Grey above 255 goes through mode I, which is clipped.
uint8_t sample_of(int64_t value, int64_t maxval, bool wide_grey) {
  const double out_max = wide_grey ? 65535.0 : 255.0;
  const double scaled = std::nearbyint(static_cast<double>(value) / static_cast<double>(maxval) * out_max);
  return static_cast<uint8_t>(static_cast<int64_t>(std::min(scaled, wide_grey ? 255.0 : out_max)));
}

// PpmPlainDecoder: the file in blocks of a mebibyte, a token that a block's end may have cut in two kept for the next.
class PlainReader {
 public:
  PlainReader(std::string_view data, const PnmHeader& pnm, ColourConversion conversion, std::vector<uint8_t>& out)
      : data_(data), pnm_(pnm), conversion_(conversion), out_(out), total_(pnm.width * pnm.height * pnm.bands()) {}

  SampleStatus bits() {
    while (out_.size() < total_) {
      std::string block = next_block();
      if (block.empty()) break;
      strip_comments(block);
      for (const char c : block) {
        if (is_space(c)) continue;
        if (c != '0' && c != '1') return SampleStatus::bad("PNM: a bit that is neither 0 nor 1");
        if (out_.size() < total_) out_.push_back(c == '0' ? 255 : 0);
      }
    }
    return enough();
  }

  SampleStatus numbers() {
    std::string half;
    while (out_.size() < total_) {
      std::string block = next_block();
      if (block.empty()) {
        if (half.empty()) break;
        // Pillow never forgets the token that the last block ended with: it stands for all that is missing.
        uint8_t sample = 0;
        const SampleStatus status = convert(half, sample);
        if (!status.ok()) return status;
        out_.resize(total_, sample);
        break;
      }
      strip_comments(block);
      block.insert(0, half);
      size_t end = block.size();
      if (!block.empty() && !is_space(block.back())) {
        while (end > 0 && !is_space(block[end - 1])) --end;
        half = block.substr(end);
        if (half.size() > kLongest) return SampleStatus::bad("PNM: a number of more than ten characters");
      }
      for (size_t at = 0; at < end && out_.size() < total_;) {
        if (is_space(block[at])) {
          ++at;
          continue;
        }
        const size_t first = at;
        while (at < end && !is_space(block[at])) ++at;
        uint8_t sample = 0;
        const SampleStatus status = convert(std::string_view(block).substr(first, at - first), sample);
        if (!status.ok()) return status;
        out_.push_back(sample);
      }
    }
    return enough();
  }

 private:
  static constexpr size_t kBlock = size_t{1} << 20;
  static constexpr size_t kLongest = 10;

  std::string next_block() {
    const std::string block(data_.substr(0, kBlock));
    data_.remove_prefix(block.size());
    return block;
  }

  SampleStatus convert(std::string_view token, uint8_t& sample) const {
    if (token.size() > kLongest) return SampleStatus::bad("PNM: a number of more than ten characters");
    const std::optional<int64_t> value = python_int(token);
    if (!value) return SampleStatus::bad("PNM: a sample that is no number");
    if (*value > pnm_.maxval) return SampleStatus::bad("PNM: a sample above maxval");
    const bool wide_grey = pnm_.kind == 2 && pnm_.maxval > 255;
    if (*value < 0 && wide_grey) return SampleStatus::bad("PNM: a negative sample");
    sample = conversion_ == ColourConversion::opencv ? opencv_sample(std::max<int64_t>(*value, 0), pnm_.maxval, true)
                                                     : sample_of(*value, pnm_.maxval, wide_grey);
    return SampleStatus::good();
  }

  // A comment goes with its line's end, so what stands before and after it becomes one token.
  void strip_comments(std::string& block) {
    while (comment_open_ && !block.empty()) {
      const size_t end = block.find_first_of("\r\n");
      if (end != std::string::npos) {
        block.erase(0, end + 1);
        break;
      }
      block = next_block();
    }
    comment_open_ = false;
    size_t to = 0;
    for (size_t at = 0; at < block.size();) {
      if (block[at] != '#') {
        block[to++] = block[at++];
        continue;
      }
      const size_t end = block.find_first_of("\r\n", at);
      if (end == std::string::npos) {
        comment_open_ = true;
        break;
      }
      at = end + 1;
    }
    block.resize(to);
  }

  SampleStatus enough() const {
    return out_.size() < total_ ? SampleStatus::bad("PNM: premature end of the data (truncated file)")
                                : SampleStatus::good();
  }

  std::string_view data_;
  const PnmHeader& pnm_;
  ColourConversion conversion_;
  std::vector<uint8_t>& out_;
  size_t total_;
  bool comment_open_ = false;
};

}  // namespace

SampleStatus read_pnm_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  PnmHeader pnm;
  const SampleStatus status = parse(bytes, pnm);
  return status.ok() ? check_size(pnm.width, pnm.height, limits, header) : status;
}

SampleStatus PnmDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                PixelView& pixels) {
  PnmHeader pnm;
  SampleStatus status = parse(bytes, pnm);
  if (!status.ok()) return status;
  const auto width = static_cast<size_t>(header.width);
  const auto height = static_cast<size_t>(header.height);
  if (pnm.width != width || pnm.height != height) return SampleStatus::bad("PNM: the headers contradict each other");
  const uint8_t* data = raw_bytes(bytes) + pnm.data;
  const size_t available = bytes.size() - pnm.data;
  const size_t bands = pnm.bands();
  const size_t sample_bytes = !pnm.plain() && pnm.maxval > 255 ? 2 : 1;
  const bool bits = pnm.kind == 4;
  const bool opencv = header.conversion == ColourConversion::opencv;
  const size_t row_bytes = bits ? (width + 7) / 8 : width * bands * sample_bytes;
  if (pnm.plain()) {
    samples_.clear();
    take_large(2 * width * height * bands);  // a vector that grows is there twice
    PlainReader reader({reinterpret_cast<const char*>(data), available}, pnm, header.conversion, samples_);
    status = pnm.kind == 1 ? reader.bits() : reader.numbers();
    if (!status.ok()) return status;
    data = samples_.data();
  } else if (available / row_bytes < height) {
    return SampleStatus::bad("PNM: premature end of the data (truncated file)");
  }
  storage.resize(box.width, box.height);
  pixels = {storage.row(0), box.width, box.height, storage.row_bytes()};
  uint8_t table[256];
  const bool scaled = !pnm.plain() && !bits && sample_bytes == 1;
  for (int64_t v = 0; scaled && v < 256; ++v)
    table[v] = pnm.maxval == 255 ? static_cast<uint8_t>(v)
               : opencv          ? opencv_sample(v, pnm.maxval, false)
                                 : sample_of(v, pnm.maxval, false);
  for (int y = 0; y < box.height; ++y) {
    const uint8_t* row = data + row_bytes * static_cast<size_t>(box.y + y);
    uint8_t* out = storage.row(y);
    for (int i = 0; i < box.width; ++i, out += 3) {
      const auto x = static_cast<size_t>(box.x + i);
      for (size_t c = 0; c < 3; ++c) {
        const size_t at = x * bands + (bands == 3 ? c : 0);
        if (bits) {
          out[c] = (row[x / 8] >> (7 - x % 8) & 1) != 0 ? 0 : 255;
        } else if (sample_bytes == 2) {
          const int value = row[at * 2] << 8 | row[at * 2 + 1];
          out[c] = opencv                              ? opencv_sample(value, pnm.maxval, false)
                   : bands == 1 && pnm.maxval == 65535 ? static_cast<uint8_t>(std::min(value, 255))
                                                       : sample_of(value, pnm.maxval, bands == 1);
        } else {
          out[c] = scaled ? table[row[at]] : row[at];
        }
      }
    }
  }
  return SampleStatus::good();
}

}  // namespace penstock
