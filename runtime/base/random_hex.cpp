#include "runtime/base/random_hex.h"

#include <sys/random.h>

#include <vector>

#include "runtime/base/error.h"

namespace penstock {

std::string random_hex(size_t bytes) {
  std::vector<unsigned char> raw(bytes);
  if (::getrandom(raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size())) {
    throw Error(ErrorKind::runtime, "cannot draw random bytes");
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : raw) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace penstock
