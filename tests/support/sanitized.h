// Limits of time and memory in tests, under a sanitizer: it takes several times as much of both.
//
//   CHECK(seconds < 10 * kSanitizedFactor);
#pragma once

namespace penstock {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // gcc, which the sanitizer presets use
inline constexpr int kSanitizedFactor = 10;
#else
inline constexpr int kSanitizedFactor = 1;
#endif

}  // namespace penstock
