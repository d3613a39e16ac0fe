#include "runtime/decode/baseline_frame.h"

#include <algorithm>
#include <cstring>

#include "runtime/decode/zigzag.h"

namespace penstock {
namespace {

// A marker segment's contents, read in order; `good` turns false at the first read past its end and stays so.
struct Segment {
  const uint8_t* at = nullptr;
  size_t left = 0;
  bool good = true;

  unsigned u8() {
    if (left == 0) {
      good = false;
      return 0;
    }
    --left;
    return *at++;
  }
  unsigned u16() {
    const unsigned high = u8();
    return high << 8 | u8();
  }
  const uint8_t* take(size_t n) {
    if (left < n) {
      good = false;
      return nullptr;
    }
    const uint8_t* const here = at;
    at += n;
    left -= n;
    return here;
  }
};

struct FrameReader {
  BaselineFrame& frame;
  std::array<std::array<uint16_t, 64>, 4> quant{};
  std::array<bool, 4> has_quant{};
  std::array<int, 3> id{};
  std::array<int, 3> quant_of{};
  bool has_frame = false;
  bool jfif = false;
  bool adobe = false;
  int adobe_transform = 0;

  bool quant_tables(Segment s) {
    while (s.left > 0) {
      const unsigned what = s.u8();
      const unsigned n = what & 15;
      if (n > 3 || (what >> 4) > 1) return false;
      for (const uint8_t place : zigzag_order) {
        quant[n][place] = static_cast<uint16_t>(what >> 4 != 0 ? s.u16() : s.u8());
      }
      has_quant[n] = true;
    }
    return s.good;
  }

  bool huffman_tables(Segment s) {
    while (s.left > 0) {
      const unsigned what = s.u8();
      if ((what & 15) > 3 || (what >> 4) > 1) return false;
      const uint8_t* const counts = s.take(16);
      if (counts == nullptr) return false;
      int values = 0;
      for (int i = 0; i < 16; ++i) values += counts[i];
      if (values > 256 || s.take(static_cast<size_t>(values)) == nullptr) return false;
      ((what >> 4) != 0 ? frame.ac : frame.dc)[what & 15] = {counts, values};
    }
    return s.good;
  }

  bool app0(Segment s) {
    if (s.left < 14 || std::memcmp(s.at, "JFIF", 5) != 0) return true;
    jfif = true;
    return s.at[5] == 1;  // libjpeg warns of other major versions
  }

  void app14(Segment s) {
    if (s.left < 12 || std::memcmp(s.at, "Adobe", 5) != 0) return;
    adobe = true;
    adobe_transform = s.at[11];
  }

  bool start_of_frame(Segment s) {
    if (has_frame) return false;
    has_frame = true;
    if (s.u8() != 8) return false;
    frame.height = static_cast<int>(s.u16());
    frame.width = static_cast<int>(s.u16());
    frame.components = static_cast<int>(s.u8());
    if (frame.width < 1 || frame.height < 1 || frame.width > 65500 || frame.height > 65500) return false;
    if (frame.components != 1 && frame.components != 3) return false;
    const auto count = static_cast<size_t>(frame.components);
    if (s.left != 3 * count) return false;
    for (size_t c = 0; c < count; ++c) {
      id[c] = static_cast<int>(s.u8());
      const unsigned factors = s.u8();
      frame.component[c].h = static_cast<int>(factors >> 4);
      frame.component[c].v = static_cast<int>(factors & 15);
      quant_of[c] = static_cast<int>(s.u8());
    }
    return s.good;
  }

  bool start_of_scan(Segment s) {
    if (!has_frame) return false;
    const auto count = static_cast<size_t>(frame.components);
    if (s.u8() != count || s.left != 2 * count + 3) return false;
    for (size_t c = 0; c < count; ++c) {
      if (static_cast<int>(s.u8()) != id[c]) return false;
      const unsigned tables = s.u8();
      if ((tables >> 4) > 3 || (tables & 15) > 3) return false;
      frame.component[c].dc_table = static_cast<int>(tables >> 4);
      frame.component[c].ac_table = static_cast<int>(tables & 15);
    }
    return s.u8() == 0 && s.u8() == 63 && s.u8() == 0 && s.good;
  }

  // What can be said once the scan begins, when later tables can no longer replace earlier ones.
  bool complete() {
    const auto count = static_cast<size_t>(frame.components);
    for (size_t c = 0; c < count; ++c) {
      BaselineComponent& component = frame.component[c];
      const auto q = static_cast<size_t>(quant_of[c]);
      if (q > 3 || !has_quant[q]) return false;
      component.quant = quant[q];
      if (frame.dc[static_cast<size_t>(component.dc_table)].bytes == nullptr) return false;
      if (frame.ac[static_cast<size_t>(component.ac_table)].bytes == nullptr) return false;
      for (size_t other = 0; other < c; ++other) {
        if (id[c] == id[other]) return false;
      }
    }
    BaselineComponent& luma = frame.component[0];
    if (count == 1) {
      if (luma.h < 1 || luma.h > 4 || luma.v < 1 || luma.v > 4) return false;
      frame.row_group = luma.v;
      luma.h = luma.v = 1;
    } else {
      if (luma.h < 1 || luma.h > 2 || luma.v < 1 || luma.v > 2) return false;
      for (size_t c = 1; c < 3; ++c) {
        if (frame.component[c].h != 1 || frame.component[c].v != 1) return false;
      }
      if (!is_ycc()) return false;
    }
    frame.max_h = luma.h;
    frame.max_v = luma.v;
    for (size_t c = 0; c < count; ++c) {
      BaselineComponent& component = frame.component[c];
      component.width = (frame.width * component.h + frame.max_h - 1) / frame.max_h;
      component.height = (frame.height * component.v + frame.max_v - 1) / frame.max_v;
    }
    frame.mcu_columns = (frame.width + 8 * frame.max_h - 1) / (8 * frame.max_h);
    frame.mcu_rows = (frame.height + 8 * frame.max_v - 1) / (8 * frame.max_v);
    // Chroma of one or two columns is replicated, not interpolated, and needs no rows around it: rare, so not ours.
    return luma.h == 1 || count == 1 || frame.component[1].width > 2;
  }

  // libjpeg's guess (jdapimin.c, default_decompress_parms).
  bool is_ycc() const {
    if (jfif) return true;
    if (adobe) return adobe_transform == 1;
    return id != std::array<int, 3>{'R', 'G', 'B'};
  }
};

}  // namespace

bool read_baseline_frame(EncodedView bytes, BaselineFrame& frame) {
  frame = BaselineFrame{};
  FrameReader reader{.frame = frame};
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t size = bytes.size();
  if (size < 4 || data[0] != 0xFF || data[1] != 0xD8) return false;
  size_t at = 2;
  while (true) {
    if (at >= size || data[at] != 0xFF) return false;  // bytes between markers: libjpeg warns
    while (at < size && data[at] == 0xFF) ++at;
    if (size - at < 3) return false;
    const unsigned marker = data[at];
    const size_t length = size_t{data[at + 1]} << 8 | data[at + 2];
    if (length < 2 || size - at - 1 < length) return false;
    const Segment segment{data + at + 3, length - 2};
    at += 1 + length;
    switch (marker) {
      case 0xC0:
      case 0xC1:
        if (!reader.start_of_frame(segment)) return false;
        break;
      case 0xC4:
        if (!reader.huffman_tables(segment)) return false;
        break;
      case 0xDB:
        if (!reader.quant_tables(segment)) return false;
        break;
      case 0xDD: {
        Segment s = segment;
        if (s.left != 2) return false;
        frame.restart_interval = static_cast<int>(s.u16());
        break;
      }
      case 0xDA:
        frame.scan_begin = at;
        return reader.start_of_scan(segment) && reader.complete();
      case 0xE0:
        if (!reader.app0(segment)) return false;
        break;
      case 0xEE:
        reader.app14(segment);
        break;
      default:
        if ((marker < 0xE0 || marker > 0xEF) && marker != 0xFE) return false;  // neither APPn nor a comment
    }
  }
}

}  // namespace penstock
