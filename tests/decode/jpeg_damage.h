// Changes to a JPEG file at one place, of the kinds that its readers meet: a byte replaced, gone or too many, a marker
// where none was, an early end.
//
//   damage_at(file, at, random() % kKindsOfDamage, static_cast<std::byte>(random()));
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

namespace penstock_test {

inline constexpr unsigned kKindsOfDamage = 7;
inline constexpr unsigned kKindsWithin = 4;  // the first ones: no marker, no early end

// `at` is within the file, `kind` below kKindsOfDamage.
inline void damage_at(std::vector<std::byte>& file, size_t at, unsigned kind, std::byte value) {
  const auto place = file.begin() + static_cast<std::ptrdiff_t>(at);
  switch (kind) {
    case 0: *place = value; break;
    case 1: *place ^= std::byte{1} << (std::to_integer<unsigned>(value) & 7); break;
    case 2: file.erase(place); break;
    case 3: file.insert(place, value); break;
    case 4:  // a marker, a stuffed byte, or fill
      *place = std::byte{0xFF};
      if (at + 1 < file.size()) file[at + 1] = value;
      break;
    case 5:  // seldom: nothing is left behind it
      if (value < std::byte{64}) file.erase(place, file.end());
      break;
    default:  // cut near the end: what libjpeg reads ahead decides
      file.erase(file.end() - std::min(std::ssize(file), std::to_integer<std::ptrdiff_t>(value) % 12), file.end());
  }
}

}  // namespace penstock_test
