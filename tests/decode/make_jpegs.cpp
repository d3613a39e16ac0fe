// Writes JPEG files of any sampling and kind, as told on standard input; pillow_exact_test.py asks for them.
//
//   PATH WIDTH HEIGHT SAMPLING KIND QUALITY RESTART SEED
//     SAMPLING  grey, or "HxV,HxV,HxV[,HxV]": the factors of each component (four: CMYK)
//     KIND      base | opt | prog | arith | arithprog | split (one scan a component) | script (progressive, any scans)
//     RESTART   restart interval in MCUs, 0 for none
// Pictures are noise, edges and gradients by the seed: they exercise every border.
#include <cstddef>
#include <cstdint>
#include <cstdio>

// After <cstdio>, which it needs.
#include <jpeglib.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/decode/progressive_files.h"

namespace {

struct Order {
  std::string path, sampling, kind;
  int width = 0, height = 0, quality = 0, restart = 0;
  uint64_t seed = 0;
};

uint32_t next(uint64_t& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return static_cast<uint32_t>(state >> 33);
}

std::vector<uint8_t> picture(const Order& o, int channels) {
  std::vector<uint8_t> pixels(static_cast<size_t>(o.width) * static_cast<size_t>(o.height) *
                              static_cast<size_t>(channels));
  uint64_t state = o.seed * 2654435761U + 12345;
  const int style = static_cast<int>(next(state) % 3);
  int slope[4][3];
  for (auto& s : slope) {
    for (int& v : s) v = static_cast<int>(next(state) % 23) - 11;
  }
  const int period = 2 + static_cast<int>(next(state) % 13);
  size_t at = 0;
  for (int y = 0; y < o.height; ++y) {
    for (int x = 0; x < o.width; ++x) {
      for (int c = 0; c < channels; ++c) {
        int v = 128 + slope[c][0] * x + slope[c][1] * y;
        if (style == 1) v = ((x + c) / period + y / period) % 2 == 0 ? 30 + 20 * c : 220 - 25 * c;
        if (style == 2) v = static_cast<int>(next(state) % 256);
        if (style == 0) v += static_cast<int>(next(state) % 32) - 16;
        pixels[at++] = static_cast<uint8_t>(v & 255);
      }
    }
  }
  return pixels;
}

bool make(const Order& o) {
  const bool grey = o.sampling == "grey";
  std::vector<int> factors;
  std::istringstream in(o.sampling);
  for (std::string part; !grey && std::getline(in, part, ',');) {
    factors.push_back(part[0] - '0');
    factors.push_back(part[2] - '0');
  }
  const int channels = grey ? 1 : static_cast<int>(factors.size() / 2);
  std::vector<uint8_t> pixels = picture(o, channels);

  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(o.width);
  info.image_height = static_cast<JDIMENSION>(o.height);
  info.input_components = channels;
  info.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (channels == 4) jpeg_set_colorspace(&info, o.seed % 2 == 0 ? JCS_YCCK : JCS_CMYK);
  jpeg_set_quality(&info, o.quality, TRUE);
  for (int c = 0; c < channels && !grey; ++c) {
    info.comp_info[c].h_samp_factor = factors[static_cast<size_t>(c) * 2];
    info.comp_info[c].v_samp_factor = factors[static_cast<size_t>(c) * 2 + 1];
  }
  info.restart_interval = static_cast<unsigned>(o.restart);
  std::vector<jpeg_scan_info> scans;
  if (o.kind == "opt") info.optimize_coding = TRUE;
  if (o.kind == "arith" || o.kind == "arithprog") info.arith_code = TRUE;
  if (o.kind == "prog" || o.kind == "arithprog") jpeg_simple_progression(&info);
  if (o.kind == "split") {
    for (int c = 0; c < channels; ++c) scans.push_back({1, {c, 0, 0, 0}, 0, 63, 0, 0});
    info.scan_info = scans.data();
    info.num_scans = channels;
  }
  if (o.kind == "script") {
    std::mt19937 random(static_cast<uint32_t>(o.seed));
    scans = penstock_test::random_script(random, channels);
    info.scan_info = scans.data();
    info.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + static_cast<size_t>(info.next_scanline) * static_cast<size_t>(o.width * channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::ofstream file(o.path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return file.good();
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    Order o;
    std::istringstream in(line);
    in >> o.path >> o.width >> o.height >> o.sampling >> o.kind >> o.quality >> o.restart >> o.seed;
    if (in.fail() || !make(o)) {
      std::fprintf(stderr, "make_jpegs: cannot make '%s'\n", line.c_str());
      return 1;
    }
  }
  return 0;
}
