// The default secret of XXH3, for hash_kernel.h. Thread-safety: a constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

std::span<const uint8_t> hash_secret() noexcept;  // kHashSecretBytes

}  // namespace penstock
