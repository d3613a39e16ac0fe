#include "runtime/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace penstock {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const void* data, size_t size, uint32_t crc) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  for (; size >= 8; size -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto tail = static_cast<uint32_t>(state);
  for (; size > 0; --size, ++p) tail = _mm_crc32_u8(tail, *p);
  return ~tail;
}
#endif

}  // namespace

uint32_t crc32c_portable(const void* data, size_t size, uint32_t crc) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (size_t i = 0; i < size; ++i) crc = crc >> 8 ^ kTable[(crc ^ p[i]) & 255];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t size, uint32_t crc) noexcept {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (has_sse42) return crc32c_sse42(data, size, crc);
#endif
  return crc32c_portable(data, size, crc);
}

}  // namespace penstock
