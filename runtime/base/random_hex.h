// Names and tokens that nobody guesses: the kernel's random bytes, two digits each.
//
//   const std::string token = random_hex(32);    // 64 digits, 0 to 9 and a to f
//
// Thread-safety: a free function. Failure: Error(runtime) where the kernel has none.
#pragma once

#include <cstddef>
#include <string>

namespace penstock {

std::string random_hex(size_t bytes);

}  // namespace penstock
