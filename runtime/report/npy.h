// Arrays for people: .npy files (format 1.0), as numpy.load reads them.
//
//   write_npy("out/t0_s0_images.npy", batch.field("image"));                    // a view of any strides
//   write_npy("out/valid.npy", NpyType::boolean, {64}, flags.data());           // contiguous memory
//
// Files are little-endian and in C order, whatever the view's strides: a channels-last batch is written as the
//   [n, c, h, w] array that the program sees. NumPy has no bfloat16, so such an array is written as uint16 ('<u2') with
//   the same bits: torch.from_numpy(a.view(numpy.int16)).view(torch.bfloat16) gives the numbers back.
// Thread-safety: free functions; one writer per path.
// Failure: Error(runtime) naming the path.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/fields.h"

namespace penstock {

enum class NpyType : uint8_t { boolean, uint8, int32, int64, float16, bfloat16, float32, float64 };

NpyType npy_type_of(DType dtype);

// What stands before the elements.
std::string npy_header(NpyType type, const std::vector<int64_t>& shape);

// `data` holds the product of `shape` elements, contiguous, in C order.
void write_npy(const std::string& path, NpyType type, const std::vector<int64_t>& shape, const void* data);

// Copies only where the view is not contiguous already.
void write_npy(const std::string& path, const TensorView& view);

// The elements of a view in C order; what write_npy does before it writes.
std::vector<std::byte> in_c_order(const TensorView& view);

}  // namespace penstock
