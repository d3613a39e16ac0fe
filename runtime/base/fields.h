// The field table: what a sample consists of, and views of it in memory.
//
//   FieldSpec image{"image", FieldKind::image, DType::uint8, {3, 224, 224}};
//   image.bytes_per_sample();   // 150528
//   FieldSpec caption{"caption", FieldKind::text};   // as a source declares it
//
// A sample is a set of named typed fields. Chunks, batch buffers and files carry a field table, so that a second image,
// a mask or a text needs no new message. Fixed-size fields have a shape; the values of `bytes` and `text` fields vary
// in length and lie in rooms of one size (runtime/base/field_value.h), so that every sample's place in a chunk buffer
// or batch buffer is known before any of them is made.
// Thread-safety: values. Ownership: a TensorView is a view; the batch that gave it keeps the memory alive.
// Failure: Error(usage) where TensorView::as() is asked for another type than the elements have; nothing else fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/base/error.h"

namespace penstock {

enum class DType : uint8_t { uint8 = 0, int64 = 1, float32 = 2, float16 = 3, bfloat16 = 4, int32 = 5, float64 = 6 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return 1;
    case DType::float16:
    case DType::bfloat16: return 2;
    case DType::float32:
    case DType::int32: return 4;
    case DType::int64:
    case DType::float64: return 8;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return "uint8";
    case DType::int64: return "int64";
    case DType::float32: return "float32";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::int32: return "int32";
    case DType::float64: return "float64";
  }
  return "?";
}

enum class FieldKind : uint8_t {
  image = 0,   // uint8, [3, height, width] or [views, 3, height, width] before finishing
  mask = 1,    // uint8, [height, width]: same geometry as the image, nearest, no colour operations
  tensor = 2,  // any dtype and shape; a label is the tensor "label", int64, []
  bytes = 3,   // variable length
  text = 4,    // variable length, UTF-8
};

struct FieldSpec {
  std::string name;
  FieldKind kind = FieldKind::tensor;
  DType dtype = DType::uint8;
  std::vector<int64_t> shape;  // of one sample; empty for a scalar
  int64_t max_bytes = 0;       // of bytes and text: the longest value. limits.max_field_bytes, set by SplitContext

  bool fixed_size() const noexcept { return kind != FieldKind::bytes && kind != FieldKind::text; }
  int64_t elements_per_sample() const noexcept {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
  // In chunk buffers and batch buffers. Where the length varies: a u32, the longest value, and what aligns the next
  // one.
  size_t bytes_per_sample() const noexcept {
    if (!fixed_size()) return (sizeof(uint32_t) + static_cast<size_t>(max_bytes) + 7) / 8 * 8;
    return static_cast<size_t>(elements_per_sample()) * size_of(dtype);
  }
  friend bool operator==(const FieldSpec&, const FieldSpec&) = default;
};

using FieldTable = std::vector<FieldSpec>;

inline constexpr const char* kLabelField = "label";

// A view of a batch's field: element (i, j, ...) is at data + (i * strides[0] + j * strides[1] + ...) * size_of(dtype).
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::uint8;
  std::vector<int64_t> shape;    // the batch dimension first
  std::vector<int64_t> strides;  // in elements

  int64_t elements() const noexcept {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
  // Error(usage) where elements are no T; std::byte and uint16_t (for the half precisions) serve to look at bits.
  template <class T>
  T* as() const {
    if (!holds<std::remove_const_t<T>>()) wrong_type();
    return static_cast<T*>(data);
  }

 private:
  template <class T>
  bool holds() const noexcept {
    if constexpr (std::is_same_v<T, std::byte>) return true;
    if constexpr (std::is_same_v<T, uint8_t>) return dtype == DType::uint8;
    if constexpr (std::is_same_v<T, uint16_t>) return dtype == DType::float16 || dtype == DType::bfloat16;
    if constexpr (std::is_same_v<T, int32_t>) return dtype == DType::int32;
    if constexpr (std::is_same_v<T, int64_t>) return dtype == DType::int64;
    if constexpr (std::is_same_v<T, float>) return dtype == DType::float32;
    if constexpr (std::is_same_v<T, double>) return dtype == DType::float64;
    return false;
  }
  [[noreturn]] void wrong_type() const {
    throw Error(ErrorKind::usage, std::string("a tensor of ") + name_of(dtype) + " was asked for as another type",
                "look at its dtype; ToDtype in the pipeline makes float32 of pictures");
  }
};

}  // namespace penstock
