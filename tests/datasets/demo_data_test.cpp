#include "launch/demo_data.h"

// jpeglib.h needs size_t and FILE declared before it.
#include <cstdio>

#include <jpeglib.h>

#include <doctest/doctest.h>

#include <filesystem>

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
  const auto labels = [](const ImageFolder& set) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < set.size(); ++i) all.push_back(set.label(i));
    return all;
  };
  CHECK(train.class_names() == std::vector<std::string>{"class00", "class01", "class02"});
  CHECK(labels(train) == std::vector<int64_t>{0, 0, 0, 1, 1, 1, 2, 2, 2});
  CHECK(train.key(0) == "class00/000000.jpg");
  CHECK(val.class_names() == train.class_names());
  CHECK(labels(val) == std::vector<int64_t>{0, 0, 1, 2});
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
