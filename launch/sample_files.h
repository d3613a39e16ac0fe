// What becomes of a stored sample as files that other programs open: `penstock unpack` and `penstock pack --tar`.
//
//   const char* end = extension_of(image);                    // ".jpg", by its first bytes
//   std::vector<std::byte> file = netpbm_of(false, 32, 32, rgb);
//   std::vector<std::byte> array = npy_of(field, value);      // numpy.load() reads it
//
// Thread-safety: functions without state.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/fields.h"

namespace penstock {

// All that extension_of() may say.
inline constexpr const char* kPictureExtensions[] = {".jpg", ".png", ".gif", ".webp", ".tiff", ".bmp", ".ppm", ".bin"};
// ".bin": no picture that is known.
const char* extension_of(std::span<const std::byte> image);

// Rows of RGB as a binary PPM file; `grey`, where the three are equal, as PGM.
std::vector<std::byte> netpbm_of(bool grey, int width, int height, std::span<const std::byte> rgb);

// The value of a tensor field as an array file of NumPy's.
std::vector<std::byte> npy_of(const FieldSpec& field, std::span<const std::byte> value);

}  // namespace penstock
