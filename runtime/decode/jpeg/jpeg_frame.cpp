#include "runtime/decode/jpeg/jpeg_frame.h"

#include "runtime/decode/jpeg/frame_reader.h"

namespace penstock {
namespace {

bool start_of_scan(FrameReader& reader, Segment s) {
  if (!reader.has_frame) return false;
  JpegFrame& frame = reader.frame;
  const auto count = static_cast<size_t>(frame.components);
  if (s.u8() != count || s.left != 2 * count + 3) return false;
  for (size_t c = 0; c < count; ++c) {
    if (static_cast<int>(s.u8()) != reader.id[c]) return false;
    const unsigned tables = s.u8();
    if ((tables >> 4) > 3 || (tables & 15) > 3) return false;
    frame.component[c].dc_table = static_cast<int>(tables >> 4);
    frame.component[c].ac_table = static_cast<int>(tables & 15);
  }
  return s.u8() == 0 && s.u8() == 63 && s.u8() == 0 && s.good;
}

// What can be said once the scan begins, when later tables can no longer replace earlier ones.
bool complete(FrameReader& reader) {
  const JpegFrame& frame = reader.frame;
  for (size_t c = 0; c < static_cast<size_t>(frame.components); ++c) {
    if (!reader.take_quant_table(c)) return false;
    if (frame.dc[static_cast<size_t>(frame.component[c].dc_table)].bytes == nullptr) return false;
    if (frame.ac[static_cast<size_t>(frame.component[c].ac_table)].bytes == nullptr) return false;
  }
  return reader.lay_out();
}

}  // namespace

bool read_baseline_frame(EncodedView bytes, JpegFrame& frame) {
  frame = JpegFrame{};
  FrameReader reader{.frame = frame};
  if (bytes.size() < 4 || bytes[0] != std::byte{0xFF} || bytes[1] != std::byte{0xD8}) return false;
  size_t at = 2;
  unsigned marker = 0;
  Segment segment;
  while (next_segment(bytes, at, marker, segment)) {
    switch (marker) {
      case 0xC0:
      case 0xC1:
        if (!reader.start_of_frame(segment)) return false;
        break;
      case 0xDA: frame.scan_begin = at; return start_of_scan(reader, segment) && complete(reader);
      default:
        if (!reader.take(marker, segment)) return false;
    }
  }
  return false;
}

}  // namespace penstock
