#include "runtime/gpu/hash_secret.h"

#define XXH_INLINE_ALL  // or the secret is not seen
#include <xxhash.h>

#include "runtime/gpu/batch_layout.h"

namespace penstock {

std::span<const uint8_t> hash_secret() noexcept {
  static_assert(sizeof XXH3_kSecret == kHashSecretBytes);
  return XXH3_kSecret;
}

}  // namespace penstock
