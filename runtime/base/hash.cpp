#include "runtime/base/hash.h"

#define XXH_STATIC_LINKING_ONLY  // for a hash state on the stack
#include <xxhash.h>
#ifdef PENSTOCK_XXH_DISPATCH
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#endif

#include "runtime/base/error.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {

#ifdef PENSTOCK_XXH_DISPATCH
// The library leaves the vectors' upper halves in use, after which each SSE instruction costs several times what it
// does.
[[gnu::target("avx")]] void leave_vectors() {
  __builtin_ia32_vzeroupper();
}
const bool has_avx = __builtin_cpu_supports("avx") != 0;

XXH128_hash_t hash_of(const void* data, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits_dispatch(data, size);
  if (has_avx) leave_vectors();
  return hash;
}
void update(XXH3_state_t& state, std::span<const std::byte> bytes) {
  XXH3_128bits_update_dispatch(&state, bytes.data(), bytes.size());
  if (has_avx) leave_vectors();
}
// Before there are threads: it is the library's first calls that choose.
[[maybe_unused]] const bool chosen = [] {
  const std::byte some[512] = {};
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  update(state, some);
  return hash_of(some, sizeof some).low64 != 0;
}();
#else
XXH128_hash_t hash_of(const void* data, size_t size) {
  return XXH3_128bits(data, size);
}
void update(XXH3_state_t& state, std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state, bytes.data(), bytes.size());
}
#endif

void write_draws(WireWriter& out, const Draws& draws) {
  out.u16(static_cast<uint16_t>(draws.size()));
  for (const TransformDraw& draw : draws) {
    out.u16(draw.position);
    out.u16(static_cast<uint16_t>(draw.values.size()));
    for (const int64_t value : draw.values) out.i64(value);
  }
}

}  // namespace

std::string Sum128::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[(high >> (4 * i)) & 15];
    text[31 - i] = kDigits[(low >> (4 * i)) & 15];
  }
  return text;
}

Sum128 Sum128::from_hex(std::string_view hex) {
  Sum128 sum;
  bool good = hex.size() == 32;
  for (size_t i = 0; good && i < 32; ++i) {
    const char c = hex[i];
    uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a' + 10);
    } else {
      good = false;
    }
    uint64_t& half = i < 16 ? sum.high : sum.low;
    half = half << 4 | digit;
  }
  if (!good) throw Error(ErrorKind::usage, "not a hash of 32 hexadecimal digits: '" + std::string(hex) + "'");
  return sum;
}

Sum128 hash128(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = hash_of(bytes.data(), bytes.size());
  return {h.low64, h.high64};
}

std::vector<std::byte> batch_record(std::string_view split, uint32_t epoch, int64_t step, int64_t replica,
                                    const Draws& draws) {
  WireWriter out;
  out.u8(4);
  out.u16(static_cast<uint16_t>(split.size()));
  out.raw(split.data(), split.size());
  out.u32(epoch);
  out.u64(static_cast<uint64_t>(step));
  out.u32(static_cast<uint32_t>(replica));
  write_draws(out, draws);
  return out.take();
}

std::vector<std::byte> sample_record(std::string_view split, uint32_t epoch, const PlannedSample& sample,
                                     const Draws& draws, int64_t label) {
  WireWriter out;
  out.u8(3);
  out.u16(static_cast<uint16_t>(split.size()));
  out.raw(split.data(), split.size());
  out.u32(epoch);
  out.u64(static_cast<uint64_t>(sample.position));
  out.u64(static_cast<uint64_t>(sample.index));
  out.u16(sample.occurrence);
  out.u8(sample.valid ? 1 : 0);
  out.i64(label);
  write_draws(out, draws);
  return out.take();
}

void StreamHash::add_batch(std::span<const std::byte> record) {
  const Sum128 sum = hash128(record);
  order += sum;
  pixel += sum;
}

void StreamHash::add(std::span<const std::byte> record, const Sum128& pixel_hash) {
  order += hash128(record);
  pixel += pixel_hash;
  ++samples;
}

void StreamHash::add(std::span<const std::byte> record, std::span<const std::span<const std::byte>> fields) {
  order += hash128(record);
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  update(state, record);
  for (const auto& field : fields) update(state, field);
  const XXH128_hash_t h = XXH3_128bits_digest(&state);
  pixel += Sum128{h.low64, h.high64};
  ++samples;
}

}  // namespace penstock
