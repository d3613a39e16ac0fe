#include "runtime/datasets/npy_header.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/datasets/sample_table.h"

namespace penstock {
namespace {

// What follows 'key': in the dictionary, blanks left out.
std::string_view value_of(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + key.size());
  while (!text.empty() && (text[0] == ':' || text[0] == ' ')) text.remove_prefix(1);
  return text;
}

std::optional<DType> dtype_of(std::string_view descr) {
  constexpr std::pair<std::string_view, DType> known[] = {
      {"|u1", DType::uint8},   {"<u1", DType::uint8},   {"<i4", DType::int32},  {"<i8", DType::int64},
      {"<f2", DType::float16}, {"<f4", DType::float32}, {"<f8", DType::float64}};
  for (const auto& [name, dtype] : known) {
    if (name == descr) return dtype;
  }
  return std::nullopt;
}

}  // namespace

std::string read_npy_header(std::span<const std::byte> begin, uint64_t file_bytes, NpyHeader& out) {
  const std::string_view bytes(reinterpret_cast<const char*>(begin.data()), begin.size());
  if (bytes.size() < 12 || bytes.substr(0, 6) != std::string_view("\x93NUMPY", 6))
    return "it does not begin as a .npy file";
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
  const size_t version = byte(6);
  if (version < 1 || version > 3) return "its .npy version is unknown";
  const size_t start = version == 1 ? 10 : 12;
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > bytes.size() - start) return "its .npy header is cut off or too long";
  const std::string_view header = bytes.substr(start, length);
  const std::string_view descr = value_of(header, "'descr'");
  if (descr.size() < 5 || descr[0] != '\'') return "its .npy header has no plain dtype";
  const std::string_view name =
      descr.substr(1, descr.find('\'', 1) == std::string_view::npos ? 0 : descr.find('\'', 1) - 1);
  const std::optional<DType> dtype = dtype_of(name);
  if (!dtype) {
    return "its dtype '" + std::string(name.substr(0, 16)) +
           "' is none of uint8, int32, int64, float16, float32 and float64, little-endian";
  }
  if (!value_of(header, "'fortran_order'").starts_with("False")) return "its array is in Fortran order";
  std::string_view shape = value_of(header, "'shape'");
  if (shape.empty() || shape[0] != '(') return "its .npy header has no shape";
  shape.remove_prefix(1);
  out.dtype = *dtype;
  out.shape.clear();
  uint64_t count = size_of(*dtype);
  while (!shape.empty() && shape[0] != ')') {
    int64_t extent = 0;
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), extent);
    if (error != std::errc{} || extent < 1 || static_cast<uint64_t>(extent) > kMaxFieldBytes / count ||
        out.shape.size() == 32) {
      return "its shape is empty, too large or damaged";
    }
    count *= static_cast<uint64_t>(extent);
    out.shape.push_back(extent);
    shape.remove_prefix(static_cast<size_t>(end - shape.data()));
    while (!shape.empty() && (shape[0] == ',' || shape[0] == ' ')) shape.remove_prefix(1);
  }
  if (shape.empty()) return "its shape is damaged";
  out.data = start + length;
  if (file_bytes < out.data || file_bytes - out.data != count) {
    return "its data should have " + std::to_string(count) + " bytes";
  }
  return {};
}

}  // namespace penstock
