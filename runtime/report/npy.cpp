#include "runtime/report/npy.h"

#include <bit>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "write_npy copies native numbers into little-endian files");

struct TypeText {
  const char* descriptor;
  size_t bytes;
};

TypeText text_of(NpyType type) {
  switch (type) {
    case NpyType::boolean: return {"|b1", 1};
    case NpyType::uint8: return {"|u1", 1};
    case NpyType::int32: return {"<i4", 4};
    case NpyType::int64: return {"<i8", 8};
    case NpyType::float16: return {"<f2", 2};
    case NpyType::bfloat16: return {"<u2", 2};
    case NpyType::float32: return {"<f4", 4};
    case NpyType::float64: return {"<f8", 8};
  }
  throw Error(ErrorKind::usage, "unknown type of array");
}

bool contiguous(const TensorView& view) {
  int64_t stride = 1;
  for (size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] != 1 && view.strides[i] != stride) return false;
    stride *= view.shape[i];
  }
  return true;
}

}  // namespace

std::string npy_header(NpyType type, const std::vector<int64_t>& shape) {
  std::string dict = std::string("{'descr': '") + text_of(type).descriptor + "', 'fortran_order': False, 'shape': (";
  for (size_t i = 0; i < shape.size(); ++i) dict += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  dict += shape.size() == 1 ? ",), }" : "), }";
  // Magic, version, length and dictionary together are a multiple of 64 bytes, so the data can be mapped.
  constexpr size_t before = 10;
  while ((before + dict.size() + 1) % 64 != 0) dict += ' ';
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

NpyType npy_type_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return NpyType::uint8;
    case DType::int64: return NpyType::int64;
    case DType::float32: return NpyType::float32;
    case DType::float16: return NpyType::float16;
    case DType::bfloat16: return NpyType::bfloat16;
    case DType::int32: return NpyType::int32;
    case DType::float64: return NpyType::float64;
  }
  throw Error(ErrorKind::usage, "unknown type of array");
}

void write_npy(const std::string& path, NpyType type, const std::vector<int64_t>& shape, const void* data) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) throw Error(ErrorKind::usage, "cannot write '" + path + "': a negative extent");
    elements *= extent;
  }
  const std::string header = npy_header(type, shape);
  const size_t bytes = static_cast<size_t>(elements) * text_of(type).bytes;
  write_file(path, {as_bytes_of(header), {static_cast<const std::byte*>(data), bytes}});
}

std::vector<std::byte> in_c_order(const TensorView& view) {
  const size_t element = size_of(view.dtype);
  const auto count = static_cast<size_t>(view.elements());
  const auto* from = static_cast<const std::byte*>(view.data);
  std::vector<std::byte> out(count * element);
  std::vector<int64_t> at(view.shape.size(), 0);
  int64_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(out.data() + i * element, from + offset * static_cast<int64_t>(element), element);
    // Step like an odometer: the last axis turns fastest.
    for (size_t axis = view.shape.size(); axis-- > 0;) {
      offset += view.strides[axis];
      if (++at[axis] < view.shape[axis]) break;
      offset -= view.strides[axis] * view.shape[axis];
      at[axis] = 0;
    }
  }
  return out;
}

void write_npy(const std::string& path, const TensorView& view) {
  if (view.strides.size() != view.shape.size()) {
    throw Error(ErrorKind::usage, "cannot write '" + path + "': the view has " + std::to_string(view.shape.size()) +
                                      " axes but " + std::to_string(view.strides.size()) + " strides");
  }
  if (contiguous(view)) return write_npy(path, npy_type_of(view.dtype), view.shape, view.data);
  const std::vector<std::byte> copy = in_c_order(view);
  write_npy(path, npy_type_of(view.dtype), view.shape, copy.data());
}

}  // namespace penstock
