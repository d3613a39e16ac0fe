// The cache of encoded samples: what it gives, what it keeps, from many threads at once.
#include "runtime/datasets/cached_source.h"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "runtime/job/job.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/tar_writer.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

namespace {

// 20 samples of 1,000 bytes and a text.
std::string shard() {
  TarWriter tar;
  for (int i = 0; i < 20; ++i) {
    tar.member(std::to_string(i) + ".jpg", std::string(1000, static_cast<char>('a' + i)));
    tar.member(std::to_string(i) + ".cls", std::to_string(i));
    tar.member(std::to_string(i) + ".txt", "text " + std::to_string(i));
  }
  return tar.finish();
}

void check(const Source& source, int64_t index) {
  SourceSample sample;
  DrawKey key;
  key.index = static_cast<uint64_t>(index);
  REQUIRE(source.load(key, sample).ok());
  REQUIRE(sample.image.size() == 1000);
  REQUIRE(sample.fields.size() == 1);
  const std::string text(reinterpret_cast<const char*>(sample.fields[0].data()), sample.fields[0].size());
  const bool same = std::to_integer<int>(sample.image[999]) == 'a' + index && sample.label == index &&
                    text == "text " + std::to_string(index);
  REQUIRE(same);
}

}  // namespace

TEST_CASE("what was read once comes from memory, as far as the budget goes") {
  TemporaryFolder folder;
  folder.write("a.tar", shard());
  DatasetSpec spec;
  spec.tar = folder.path("a.tar");
  spec.fields = "txt";
  FaultyFileSystem disk;
  for (const int64_t budget : {int64_t{0} + 100, int64_t{8000}, int64_t{1} << 20}) {
    const CachedSource source(make_source(spec, DecodeLimits{}, disk), disk, budget);
    CHECK(source.fields()[2].kind == FieldKind::text);
    for (int round = 0; round < 3; ++round) {
      for (int64_t i = 0; i < source.size(); ++i) check(source, i);
    }
    CHECK(source.kept_bytes() <= budget);
    CHECK(source.kept() == (budget == 100 ? 0 : budget == 8000 ? 6 : 20));
    const int64_t before = disk.reads();
    for (int64_t i = 0; i < source.size(); ++i) check(source, i);
    CHECK(disk.reads() - before == 2 * (20 - source.kept()));
    CHECK_THROWS_AS((void)source.load({0, 0, 20, 0}, *std::make_unique<SourceSample>()), Error);
  }
}

TEST_CASE("threads that read the same samples at once keep each once") {
  TemporaryFolder folder;
  folder.write("a.tar", shard());
  DatasetSpec spec;
  spec.tar = folder.path("a.tar");
  spec.fields = "txt";
  const CachedSource source(make_source(spec, DecodeLimits{}), posix_file_system(), 1 << 20);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 2000; ++i) check(source, i % 20);
    });
  }
  threads.clear();
  CHECK(source.kept() == 20);
}

TEST_CASE("a picture that is written over in place is read anew, by whoever has kept it too") {
  TemporaryFolder folder;
  const std::string path = "cat/0.jpg";
  folder.write(path, "first");
  folder.write("cat/1.jpg", "other");
  DatasetSpec spec;
  spec.folder = folder.path();
  FaultyFileSystem disk;
  const CachedSource source(make_source(spec, DecodeLimits{}, disk), disk, 1 << 20);
  const auto content = [&](uint64_t index) {
    SourceSample sample;
    REQUIRE(source.load({0, 0, index, 0}, sample).ok());
    return std::string(reinterpret_cast<const char*>(sample.image.data()), sample.image.size());
  };
  for (int round = 0; round < 3; ++round) {
    CHECK(content(0) == "first");
    CHECK(content(1) == "other");
  }
  CHECK(disk.reads() == 2);
  folder.write(path, "second one");
  CHECK(content(0) == "second one");
  CHECK(content(0) == "second one");
  CHECK(content(1) == "other");
  CHECK(disk.reads() == 4);
  const auto then = std::filesystem::last_write_time(folder.path("cat/1.jpg"));
  folder.write("cat/1.jpg", "OTHER");  // of the same size
  std::filesystem::last_write_time(folder.path("cat/1.jpg"), then + std::chrono::milliseconds(1));
  CHECK(content(1) == "OTHER");
  std::filesystem::remove(folder.path(path));
  SourceSample sample;
  CHECK_THROWS_AS((void)source.load({0, 0, 0, 0}, sample), FileError);
}
