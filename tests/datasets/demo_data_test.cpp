#include "launch/demo_data.h"

// jpeglib.h needs size_t and FILE declared before it.
#include <cstdio>

#include <jpeglib.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/datasets/image_folder.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

namespace {

// Hash over keys and contents of both splits.
std::string hash_of_set(const std::string& folder) {
  std::string text;
  for (const char* split : {"/train", "/val"}) {
    const ImageFolder source(folder + split, 1 << 30);
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < source.size(); ++i) {
      REQUIRE(source.read(i, bytes).ok());
      text += source.key(i) + hash128(bytes).hex();
    }
  }
  return hash128(std::string_view(text)).hex();
}

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

std::string usage_error_of(const DemoDataOptions& options) {
  try {
    make_demo_data(options);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  FAIL("no error");
  return {};
}

}  // namespace

TEST_CASE("the bytes depend on the options alone, not on threads or on the run") {
  TemporaryFolder folder;
  const auto make = [&](const std::string& name, uint64_t seed, int threads) {
    make_demo_data(
        {.folder = folder.path(name), .count = 24, .val_count = 8, .classes = 4, .seed = seed, .threads = threads});
    return hash_of_set(folder.path(name));
  };
  const std::string one = make("one", 7, 1);
  CHECK(one == make("three", 7, 3));
  CHECK(one != make("other", 8, 2));
#ifdef LIBJPEG_TURBO_VERSION_NUMBER
  // The same everywhere: a compiler or an encoder that gives other bytes is found here. Whoever changes the pictures
  // changes this line, and the number of the layout in the manifest with it.
  CHECK(one == "c33c02fc054def81321149ef6521b89d");
#endif
}

TEST_CASE("a picture is a function of split, index, classes and seed") {
  const auto picture = make_demo_picture("train", 3, 10, 0);
  CHECK(picture == make_demo_picture("train", 3, 10, 0));
  CHECK(picture != make_demo_picture("val", 3, 10, 0));
  CHECK(picture != make_demo_picture("train", 13, 10, 0));
  CHECK(picture != make_demo_picture("train", 3, 10, 1));
}

TEST_CASE("a kind settles subsampling and size, and nothing is asked of other sets") {
  for (const auto& [kind, wanted] : {std::pair{DemoSubsampling::chroma_420, std::string("2x2")},
                                     std::pair{DemoSubsampling::chroma_444, std::string("1x1")}}) {
    int coloured = 0;
    for (int64_t i = 0; i < 60; ++i) {
      const std::string sampling = header_of(make_demo_picture("train", i, 10, 0, {.subsampling = kind})).sampling;
      if (sampling == "grey") continue;
      ++coloured;
      CHECK(sampling == wanted);
    }
    CHECK(coloured > 50);
  }
  // A picture keeps its look: only the chroma is written otherwise.
  const Header mixed = header_of(make_demo_picture("train", 1, 10, 0));
  const Header even = header_of(make_demo_picture("train", 1, 10, 0, {.subsampling = DemoSubsampling::chroma_420}));
  CHECK(std::pair(mixed.width, mixed.height) == std::pair(even.width, even.height));

  int64_t smallest = INT64_MAX;
  int64_t largest = 0;
  double bits = 0;
  for (int64_t i = 0; i < 6; ++i) {
    const auto picture = make_demo_picture("train", i, 10, 0, {.min_megapixels = 1, .max_megapixels = 2});
    const Header header = header_of(picture);
    const int64_t area = int64_t{header.width} * header.height;
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
    bits += static_cast<double>(picture.size()) * 8 / static_cast<double>(area) / 6;
  }
  MESSAGE("large: " << smallest << " to " << largest << " pixels, " << bits << " bits a pixel");
  CHECK(smallest > 990'000);
  CHECK(largest < 2'020'000);
  CHECK(largest > smallest * 11 / 10);
  CHECK(bits > 1);
  CHECK(bits < 3);
}

TEST_CASE("the layout is that of class folders, in both splits") {
  TemporaryFolder folder;
  int64_t last_done = 0;
  const DemoDataResult result = make_demo_data({.folder = folder.path("set"),
                                                .count = 9,
                                                .val_count = 4,
                                                .classes = 3,
                                                .threads = 2,
                                                .progress = [&](int64_t done, int64_t total) {
                                                  CHECK(done == last_done + 1);
                                                  CHECK(total == 13);
                                                  last_done = done;
                                                }});
  CHECK(result.made == 13);
  CHECK(last_done == 13);
  const ImageFolder train(folder.path("set/train"), 1 << 30);
  const ImageFolder val(folder.path("set/val"), 1 << 30);
  CHECK(train.class_names() == std::vector<std::string>{"class00", "class01", "class02"});
  CHECK(train.class_sizes() == std::vector<int64_t>{3, 3, 3});
  CHECK(train.key(0) == "class00/000000.jpg");
  CHECK(val.class_names() == train.class_names());
  CHECK(val.class_sizes() == std::vector<int64_t>{2, 1, 1});
}

TEST_CASE("a complete set is left alone, a broken one completed, another one refused") {
  TemporaryFolder folder;
  const DemoDataOptions options{.folder = folder.path("set"), .count = 6, .val_count = 3, .classes = 3, .threads = 1};
  make_demo_data(options);
  const std::string whole = hash_of_set(options.folder);

  DemoDataResult again = make_demo_data(options);
  CHECK(again.made == 0);
  CHECK(again.reused == 9);

  std::filesystem::remove(folder.path("set/train/class01/000004.jpg"));
  std::filesystem::remove_all(folder.path("set/val/class02"));
  folder.write("set/train/class01/000004.jpg.partial", "half a pict");
  again = make_demo_data(options);
  CHECK(again.made == 2);
  CHECK(hash_of_set(options.folder) == whole);
  CHECK_FALSE(std::filesystem::exists(folder.path("set/train/class01/000004.jpg.partial")));

  DemoDataOptions other = options;
  other.seed = 5;
  CHECK(usage_error_of(other).find("other options") != std::string::npos);
  other = options;
  other.kind.subsampling = DemoSubsampling::chroma_444;
  CHECK(usage_error_of(other).find("subsampling: 4:4:4") != std::string::npos);
  folder.write("mine/thesis.txt", "");
  other.folder = folder.path("mine");
  CHECK(usage_error_of(other).find("not empty") != std::string::npos);
  CHECK(std::filesystem::exists(folder.path("mine/thesis.txt")));
}

TEST_CASE("impossible options are refused before anything is written") {
  TemporaryFolder folder;
  const std::string path = folder.path("set");
  usage_error_of({.folder = ""});
  usage_error_of({.folder = path, .classes = 0});
  usage_error_of({.folder = path, .count = 1000, .classes = 401});
  usage_error_of({.folder = path, .count = 9, .classes = 10});
  usage_error_of({.folder = path, .count = 0, .val_count = 0});
  usage_error_of({.folder = path, .count = 10, .val_count = 9, .classes = 10});
  usage_error_of({.folder = path, .count = -5});
  usage_error_of({.folder = path, .kind = {.min_megapixels = 24, .max_megapixels = 2}});
  usage_error_of({.folder = path, .kind = {.min_megapixels = 0, .max_megapixels = 2}});
  usage_error_of({.folder = path, .kind = {.min_megapixels = 2, .max_megapixels = 101}});
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("sizes, shapes and encodings are spread as photos' are") {
  constexpr int64_t count = 400;
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
  CHECK(sizes[count * 5 / 100] < 45'000);
  CHECK(sizes[count * 99 / 100] > 280'000);
  CHECK(samplings["1x1"] > 150);
  CHECK(samplings["2x2"] > 100);
  CHECK(samplings["2x1"] > 5);
  CHECK(samplings["1x2"] > 3);
  CHECK(samplings["grey"] > 1);
  CHECK(progressive > 3);
  CHECK(portraits > count / 8);
  CHECK(portraits < count / 2);
  CHECK(extents.size() > 100);
}
