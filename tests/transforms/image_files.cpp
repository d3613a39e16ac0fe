#include "tests/transforms/image_files.h"

#include <spng.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>

#include <jpeglib.h>

namespace penstock_test {

std::vector<uint8_t> make_rgb(int width, int height, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> rgb(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  size_t i = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) rgb[i++] = static_cast<uint8_t>((x * (3 + c) + y * (5 - c)) / 2 + random() % 24);
    }
  }
  return rgb;
}

std::vector<std::byte> encode_jpeg(const std::vector<uint8_t>& rgb, int width, int height, int quality, int sampling) {
  jpeg_compress_struct cinfo;
  jpeg_error_mgr errors;
  cinfo.err = jpeg_std_error(&errors);
  jpeg_create_compress(&cinfo);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&cinfo, &memory, &bytes);
  cinfo.image_width = static_cast<JDIMENSION>(width);
  cinfo.image_height = static_cast<JDIMENSION>(height);
  cinfo.input_components = 3;
  cinfo.in_color_space = JCS_RGB;
  jpeg_set_defaults(&cinfo);
  jpeg_set_quality(&cinfo, quality, TRUE);
  cinfo.comp_info[0].h_samp_factor = sampling;
  cinfo.comp_info[0].v_samp_factor = sampling;
  jpeg_start_compress(&cinfo, TRUE);
  while (cinfo.next_scanline < cinfo.image_height) {
    auto* row = const_cast<uint8_t*>(rgb.data()) + size_t{cinfo.next_scanline} * static_cast<size_t>(width) * 3;
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  jpeg_destroy_compress(&cinfo);
  const auto* first = reinterpret_cast<const std::byte*>(memory);
  std::vector<std::byte> out(first, first + bytes);
  std::free(memory);
  return out;
}

std::vector<std::byte> encode_png(const std::vector<uint8_t>& rgb, int width, int height) {
  spng_ctx* context = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(context, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr ihdr{};
  ihdr.width = static_cast<uint32_t>(width);
  ihdr.height = static_cast<uint32_t>(height);
  ihdr.bit_depth = 8;
  ihdr.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  spng_set_ihdr(context, &ihdr);
  int error = spng_encode_image(context, rgb.data(), rgb.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  size_t bytes = 0;
  void* memory = error == 0 ? spng_get_png_buffer(context, &bytes, &error) : nullptr;
  spng_ctx_free(context);
  if (memory == nullptr) throw std::runtime_error("cannot encode a PNG");
  const auto* first = static_cast<const std::byte*>(memory);
  std::vector<std::byte> out(first, first + bytes);
  std::free(memory);
  return out;
}

}  // namespace penstock_test
