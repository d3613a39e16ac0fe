// Small JPEG files made in memory, for tests of decoding.
//
//   std::vector<std::byte> file = make_jpeg({.width = 40, .height = 33, .h = 2, .v = 2, .progressive = true});
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
// After <cstdio>, which it needs.
#include <jpeglib.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace penstock_test {

// More samples, in the full tests.
inline bool full() {
  return std::getenv("PENSTOCK_FULL") != nullptr;
}

struct JpegSpec {
  int width = 40;
  int height = 33;
  int h = 2;  // luma's sampling factors; chroma has 1x1
  int v = 2;
  bool progressive = false;
  bool arithmetic = false;
  int restart = 0;
  int quality = 85;
  bool grey = false;
  bool optimize = false;  // Huffman tables of its own instead of the usual ones
  uint32_t seed = 1;
  int noise_bits = 5;
  bool flat = false;                    // one colour: blocks say nothing but that they end
  std::vector<jpeg_scan_info> scans{};  // a script of its own
};

inline std::vector<std::byte> make_jpeg(const JpegSpec& spec) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(spec.width);
  info.image_height = static_cast<JDIMENSION>(spec.height);
  info.input_components = spec.grey ? 1 : 3;
  info.in_color_space = spec.grey ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, spec.quality, TRUE);
  info.comp_info[0].h_samp_factor = spec.h;
  info.comp_info[0].v_samp_factor = spec.v;
  info.restart_interval = static_cast<unsigned>(spec.restart);
  if (spec.optimize) info.optimize_coding = TRUE;
  if (spec.arithmetic) info.arith_code = TRUE;
  if (spec.progressive) jpeg_simple_progression(&info);
  if (!spec.scans.empty()) {
    info.scan_info = spec.scans.data();
    info.num_scans = static_cast<int>(spec.scans.size());
  }
  jpeg_start_compress(&info, TRUE);
  const int channels = spec.grey ? 1 : 3;
  std::vector<uint8_t> row(static_cast<size_t>(spec.width) * 3);
  uint32_t noise = spec.seed;
  for (int y = 0; y < spec.height; ++y) {
    for (int x = 0; x < spec.width * channels; ++x) {
      noise = noise * 1664525U + 1013904223U;
      row[static_cast<size_t>(x)] =
          spec.flat ? uint8_t{90}
                    : static_cast<uint8_t>(x * 5 + y * 3 + static_cast<int>(noise >> (32 - spec.noise_bits)));
    }
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  std::vector<std::byte> file(size);
  std::memcpy(file.data(), bytes, size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return file;
}

inline int draw(std::mt19937& random, int from, int to) {
  return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
}

// Any regular baseline file.
inline JpegSpec random_spec(std::mt19937& random, int max_side) {
  JpegSpec spec;
  spec.width = draw(random, 1, max_side);
  spec.height = draw(random, 1, max_side);
  spec.h = draw(random, 1, 2);
  spec.v = draw(random, 1, 2);
  spec.quality = draw(random, 1, 100);
  spec.grey = draw(random, 0, 7) == 0;
  spec.optimize = draw(random, 0, 1) == 1;
  spec.restart = draw(random, 0, 2) == 0 ? draw(random, 1, 9) : 0;
  spec.seed = static_cast<uint32_t>(random());
  spec.noise_bits = draw(random, 1, 8);
  return spec;
}

}  // namespace penstock_test
