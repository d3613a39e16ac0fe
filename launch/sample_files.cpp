#include "launch/sample_files.h"

#include <algorithm>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/report/npy.h"

namespace penstock {

const char* extension_of(std::span<const std::byte> image) {
  const std::string_view text(reinterpret_cast<const char*>(image.data()), std::min<size_t>(image.size(), 16));
  using namespace std::string_view_literals;
  if (text.starts_with("\xFF\xD8"sv)) return ".jpg";
  if (text.starts_with("\x89PNG"sv)) return ".png";
  if (text.starts_with("GIF8"sv)) return ".gif";
  if (text.starts_with("RIFF"sv)) return ".webp";
  if (text.starts_with("II*\0"sv) || text.starts_with("MM\0*"sv)) return ".tiff";
  if (text.starts_with("BM"sv)) return ".bmp";
  if (text.size() > 1 && text[0] == 'P' && text[1] >= '1' && text[1] <= '6') return ".ppm";
  return ".bin";
}

namespace {

std::vector<std::byte> behind(const std::string& head, size_t more) {
  std::vector<std::byte> bytes;
  bytes.reserve(head.size() + more);
  const auto text = as_bytes_of(head);
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

}  // namespace

std::vector<std::byte> netpbm_of(bool grey, int width, int height, std::span<const std::byte> rgb) {
  std::vector<std::byte> bytes =
      behind(std::string(grey ? "P5\n" : "P6\n") + std::to_string(width) + " " + std::to_string(height) + "\n255\n",
             rgb.size());
  for (size_t i = 0; i < rgb.size(); i += grey ? 3 : 1) bytes.push_back(rgb[i]);
  return bytes;
}

std::vector<std::byte> npy_of(const FieldSpec& field, std::span<const std::byte> value) {
  std::vector<std::byte> bytes = behind(npy_header(npy_type_of(field.dtype), field.shape), value.size());
  bytes.insert(bytes.end(), value.begin(), value.end());
  return bytes;
}

}  // namespace penstock
