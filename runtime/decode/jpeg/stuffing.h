// Taking the stuffing out of scan data: in a JPEG scan a zero follows every byte 0xFF; anything else there is a marker.
//
//   const Unstuffed at = unstuff(in, in_end, file_end, out, out_end, [](uint8_t*) {});
//   if (at.in != in_end && at.out != out_end) ...                     // a marker (or half of one) stands at at.in
//
// Thread-safety: a pure function of its arguments; `ff` is called from the caller's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace penstock {

struct Unstuffed {
  const uint8_t* in;  // the next byte that was not looked at
  uint8_t* out;
};

// From [in, in_end) to [out, out_end), until one of them ends or a marker comes. `in_end` may lie between an 0xFF and
// its zero, which is then skipped beyond it, as long as that is before `file_end`. `ff(place)`: before an 0xFF is
// written.
template <class OnFf>
inline Unstuffed unstuff(const uint8_t* in, const uint8_t* in_end, const uint8_t* file_end, uint8_t* out,
                         const uint8_t* out_end, const OnFf& ff) {
  while (in < in_end && out < out_end) {
    const size_t room = std::min(static_cast<size_t>(out_end - out), static_cast<size_t>(in_end - in));
    const auto* const stop = static_cast<const uint8_t*>(std::memchr(in, 0xFF, room));
    const size_t plain = stop == nullptr ? room : static_cast<size_t>(stop - in);
    std::memcpy(out, in, plain);
    out += plain;
    in += plain;
    if (stop == nullptr) continue;
    if (file_end - in < 2 || in[1] != 0) break;
    ff(out);
    *out++ = 0xFF;
    in += 2;
  }
  return {in, out};
}

}  // namespace penstock
