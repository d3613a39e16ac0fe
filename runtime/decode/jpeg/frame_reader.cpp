#include "runtime/decode/jpeg/frame_reader.h"

#include <cstring>

#include "runtime/decode/jpeg/zigzag.h"

namespace penstock {
namespace {

constexpr unsigned kEndOfImage = 0xD9;

}  // namespace

bool next_segment(EncodedView bytes, size_t& at, unsigned& marker, Segment& segment) {
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t size = bytes.size();
  if (at >= size || data[at] != 0xFF) return false;
  while (at < size && data[at] == 0xFF) ++at;
  if (at >= size) return false;
  marker = data[at];
  segment = {};
  if (marker == kEndOfImage) {
    ++at;
    return true;
  }
  if (size - at < 3) return false;
  const size_t length = size_t{data[at + 1]} << 8 | data[at + 2];
  if (length < 2 || size - at - 1 < length) return false;
  segment = {data + at + 3, length - 2};
  at += 1 + length;
  return true;
}

bool FrameReader::quant_tables(Segment s) {
  while (s.left > 0) {
    const unsigned what = s.u8();
    const unsigned n = what & 15;
    if (n > 3 || (what >> 4) > 1) return false;
    for (const uint8_t place : kZigzagOrder) {
      quant[n][place] = static_cast<uint16_t>(what >> 4 != 0 ? s.u16() : s.u8());
    }
    has_quant[n] = true;
  }
  return s.good;
}

bool FrameReader::huffman_tables(Segment s) {
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

bool FrameReader::take(unsigned marker, Segment s) {
  switch (marker) {
    case 0xC4: return huffman_tables(s);
    case 0xDB: return quant_tables(s);
    case 0xDD: return restart_interval(s);
    case 0xE0: return app0(s);
    case 0xEE: app14(s); return true;
    default: return (marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE;
  }
}

bool FrameReader::restart_interval(Segment s) {
  if (s.left != 2) return false;
  frame.restart_interval = static_cast<int>(s.u16());
  return true;
}

bool FrameReader::app0(Segment s) {
  if (s.left < 14 || std::memcmp(s.at, "JFIF", 5) != 0) return true;
  jfif = true;
  return s.at[5] == 1;  // libjpeg warns of other major versions
}

void FrameReader::app14(Segment s) {
  if (s.left < 12 || std::memcmp(s.at, "Adobe", 5) != 0) return;
  adobe = true;
  adobe_transform = s.at[11];
}

bool FrameReader::start_of_frame(Segment s) {
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

bool FrameReader::take_quant_table(size_t component) {
  const auto q = static_cast<size_t>(quant_of[component]);
  if (q > 3 || !has_quant[q]) return false;
  frame.component[component].quant = quant[q];
  return true;
}

bool FrameReader::lay_out() {
  const auto count = static_cast<size_t>(frame.components);
  for (size_t c = 0; c < count; ++c) {
    for (size_t other = 0; other < c; ++other) {
      if (id[c] == id[other]) return false;
    }
  }
  JpegComponent& luma = frame.component[0];
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
    JpegComponent& component = frame.component[c];
    component.width = (frame.width * component.h + frame.max_h - 1) / frame.max_h;
    component.height = (frame.height * component.v + frame.max_v - 1) / frame.max_v;
  }
  frame.mcu_columns = (frame.width + 8 * frame.max_h - 1) / (8 * frame.max_h);
  frame.mcu_rows = (frame.height + 8 * frame.max_v - 1) / (8 * frame.max_v);
  // Chroma of one or two columns is replicated, not interpolated, and needs no rows around it: rare, so not ours.
  return luma.h == 1 || count == 1 || frame.component[1].width > 2;
}

// libjpeg's guess (jdapimin.c, default_decompress_parms).
bool FrameReader::is_ycc() const {
  if (jfif) return true;
  if (adobe) return adobe_transform == 1;
  return id != std::array<int, 3>{'R', 'G', 'B'};
}

}  // namespace penstock
