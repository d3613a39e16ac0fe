// What the pictures of `penstock demo-data` are like: their sampling, sizes and shapes. With PENSTOCK_FULL=1 of more of them.
#include "launch/demo_data.h"

// jpeglib.h needs size_t and FILE declared before it.
#include <cstdio>

#include <jpeglib.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace demo_data_spread_test {

using namespace penstock;

namespace {

const bool kFull = std::getenv("PENSTOCK_FULL") != nullptr;

struct Header {
  int width = 0;
  int height = 0;
  std::string sampling;
  bool progressive = false;
};

Header header_of(const std::vector<std::byte>& file) {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  REQUIRE(jpeg_read_header(&jpeg, TRUE) == JPEG_HEADER_OK);
  Header header{static_cast<int>(jpeg.image_width), static_cast<int>(jpeg.image_height), "grey",
                jpeg_has_multiple_scans(&jpeg) != FALSE && jpeg.num_components == 3 && jpeg.progressive_mode != FALSE};
  if (jpeg.num_components == 3) {
    header.sampling =
        std::to_string(jpeg.comp_info[0].h_samp_factor) + "x" + std::to_string(jpeg.comp_info[0].v_samp_factor);
  }
  // Every row decodes without a warning.
  jpeg_start_decompress(&jpeg);
  std::vector<JSAMPLE> row(static_cast<size_t>(jpeg.output_width) * 3);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW pointer = row.data();
    jpeg_read_scanlines(&jpeg, &pointer, 1);
  }
  jpeg_finish_decompress(&jpeg);
  CHECK(errors.num_warnings == 0);
  jpeg_destroy_decompress(&jpeg);
  return header;
}

}  // namespace

TEST_CASE("a kind settles subsampling and size, and nothing is asked of other sets") {
  for (const auto& [kind, wanted] : {std::pair{DemoSubsampling::chroma_420, std::string("2x2")},
                                     std::pair{DemoSubsampling::chroma_444, std::string("1x1")}}) {
    int coloured = 0;
    const int pictures = kFull ? 60 : 20;
    for (int64_t i = 0; i < pictures; ++i) {
      const std::string sampling = header_of(make_demo_picture("train", i, 10, 0, {.subsampling = kind})).sampling;
      if (sampling == "grey") continue;
      ++coloured;
      CHECK(sampling == wanted);
    }
    CHECK(coloured > pictures * 5 / 6);
  }
  // A picture keeps its look: only the chroma is written otherwise.
  const Header mixed = header_of(make_demo_picture("train", 1, 10, 0));
  const Header even = header_of(make_demo_picture("train", 1, 10, 0, {.subsampling = DemoSubsampling::chroma_420}));
  CHECK(std::pair(mixed.width, mixed.height) == std::pair(even.width, even.height));

  int64_t smallest = INT64_MAX;
  int64_t largest = 0;
  double bits = 0;
  const int large = kFull ? 6 : 3;
  for (int64_t i = 0; i < large; ++i) {
    const auto picture = make_demo_picture("train", i, 10, 0, {.min_megapixels = 1, .max_megapixels = 2});
    const Header header = header_of(picture);
    const int64_t area = int64_t{header.width} * header.height;
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
    bits += static_cast<double>(picture.size()) * 8 / static_cast<double>(area) / large;
  }
  MESSAGE("large: " << smallest << " to " << largest << " pixels, " << bits << " bits a pixel");
  CHECK(smallest > 990'000);
  CHECK(largest < 2'020'000);
  CHECK(largest > smallest * 11 / 10);
  CHECK(bits > 1);
  CHECK(bits < 3);
}

TEST_CASE("sizes, shapes and encodings are spread as photos' are") {
  const int64_t count = kFull ? 400 : 100;
  std::vector<size_t> sizes;
  std::map<std::string, int> samplings;
  std::set<std::pair<int, int>> extents;
  int progressive = 0;
  int portraits = 0;
  int64_t bits = 0;
  int64_t pixels = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto picture = make_demo_picture("train", i, 10, 0);
    const Header header = header_of(picture);
    sizes.push_back(picture.size());
    ++samplings[header.sampling];
    progressive += header.progressive;
    portraits += header.height > header.width;
    extents.insert({header.width, header.height});
    bits += static_cast<int64_t>(picture.size()) * 8;
    pixels += int64_t{header.width} * header.height;
  }
  std::sort(sizes.begin(), sizes.end());
  size_t total = 0;
  for (const size_t size : sizes) total += size;
  std::string report = "KB: mean " + std::to_string(total / count / 1000);
  for (const size_t percent : {1, 5, 25, 50, 75, 95, 99}) {
    report += ", " + std::to_string(percent) + "% " + std::to_string(sizes[percent * count / 100] / 1000);
  }
  report += ", largest " + std::to_string(sizes.back() / 1000) + "; bits per pixel " +
            std::to_string(static_cast<double>(bits) / static_cast<double>(pixels)) + "; luma";
  for (const auto& [name, times] : samplings) report += " " + name + ": " + std::to_string(times);
  report += "; progressive " + std::to_string(progressive) + "; extents " + std::to_string(extents.size());
  MESSAGE(report);

  CHECK(total / count > 95'000);
  CHECK(total / count < 125'000);
  CHECK(sizes[count / 2] > 75'000);
  CHECK(sizes[count / 2] < 105'000);
  CHECK(sizes[count * 5 / 100] < (kFull ? 45'000 : 50'000));
  CHECK(sizes[count * 99 / 100] > 280'000);
  CHECK(samplings["1x1"] > count * 3 / 8);
  CHECK(samplings["2x2"] > count / 4);
  CHECK(samplings["2x1"] > count / 80);
  CHECK(samplings["1x2"] > count / 101);
  if (kFull) CHECK(samplings["grey"] > 1);  // one in a hundred
  CHECK(progressive > count / 101);
  CHECK(portraits > count / 8);
  CHECK(portraits < count / 2);
  CHECK(extents.size() > static_cast<size_t>(count) / 4);
}

}  // namespace demo_data_spread_test
