// Which samples are on this node's disks, where it has some of the data set's files.
#include "runtime/datasets/files_here.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "runtime/datasets/index_file.h"
#include "runtime/datasets/listed_files.h"
#include "runtime/datasets/pack_source.h"
#include "runtime/decode/image.h"
#include "tests/fuzz/memory_disk.h"
#include "tests/support/error_of.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_pack.h"
#include "tests/support/tar_writer.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

using Bounds = std::vector<int64_t>;

TEST_CASE("a sample is here where all files that it lies in are") {
  TemporaryFolder folder;
  for (const char* name : {"0.tar", "2.tar", "few/a.jpg", "many/3.jpg", "many/7.jpg"}) folder.write(name, "x");
  folder.make_folder("many/4.jpg");  // no file
  TableBuilder builder("csv");
  for (const char* name : {"0.tar", "1.tar", "2.tar", "3.tar"}) builder.add_file({name, 1000, 7, Codec::none, 0});
  const size_t depth = builder.add_field({"depth", FieldKind::tensor, DType::float32, {2}});
  const auto add = [&](const std::string& key, uint32_t file, uint32_t depth_file) {
    builder.add(key, 0, file, 0, file == kOwnFile ? 0 : 10);
    if (depth_file == kInTable) {
      builder.value(depth, std::vector<std::byte>(8));
    } else {
      builder.place(depth, depth_file, 0, 8);
    }
  };
  add("in 0", 0, kInTable);
  add("in 0 and 2", 0, 2);
  add("in 0 and 1", 0, 1);
  add("in 1", 1, kInTable);
  add("in 2", 2, 0);
  add("few/a.jpg", kOwnFile, kInTable);
  add("few/b.jpg", kOwnFile, kInTable);
  add("few/a.jpg/c.jpg", kOwnFile, kInTable);  // below a file
  for (int i = 0; i < 20; ++i) add("many/" + std::to_string(i) + ".jpg", kOwnFile, i == 7 ? 1 : kInTable);
  for (int i = 0; i < 20; ++i) add("nowhere/" + std::to_string(i) + ".jpg", kOwnFile, kInTable);
  const SampleTable table = builder.finish();
  const ReadableSamples here = samples_here(table, folder.path(), posix_file_system());
  CHECK(here.ranges.bounds() == Bounds{0, 2, 4, 6, 11, 12});
  CHECK(here.lacking == "'" + folder.path("1.tar") + "' and 41 other files");  // 3.tar, b, c, 18 of many, 20 of nowhere
}

TEST_CASE("a disk that cannot say is an error, not a missing file") {
  TemporaryFolder folder;
  TableBuilder builder("list");
  for (int i = 0; i < 20; ++i) {
    folder.write("a/" + std::to_string(i), "x");
    builder.add("a/" + std::to_string(i), 0, kOwnFile, 0, 0);
  }
  const SampleTable table = builder.finish();
  FaultyFileSystem faulty;
  CHECK(samples_here(table, folder.path(), faulty).ranges == IndexRanges::all(20));
  CHECK(faulty.lists() == 1);
  faulty.fail_list("/a", EIO);
  CHECK_THROWS_AS((void)samples_here(table, folder.path(), faulty), FileError);
}

TEST_CASE("files that are spread one by one over nodes are refused, before all of it is said") {
  TableBuilder builder("tar");
  builder.add_file({"here.tar", 1000, 7, Codec::none, 0});
  builder.add_file({"away.tar", 1000, 7, Codec::none, 0});
  for (size_t i = 0; i < 2 * kMostRanges + 2; ++i) builder.add("k", 0, static_cast<uint32_t>(i % 2), 0, 10);
  TemporaryFolder folder;
  folder.write("here.tar", "x");
  const SampleTable table = builder.finish();
  CHECK_THROWS_WITH_AS((void)samples_here(table, folder.path(), posix_file_system()),
                       doctest::Contains("in more than 1048576 places"), Error);
}

struct Tars {
  Tars() {
    for (int shard = 0; shard < 3; ++shard) {
      TarWriter tar;
      for (int i = 0; i < 4; ++i) {
        const std::string key = std::to_string(shard) + "_" + std::to_string(i);
        tar.member(key + ".jpg", "picture " + key);
        tar.member(key + ".cls", std::to_string(i));
      }
      folder.write("s-" + std::to_string(shard) + ".tar", tar.finish());
    }
    dataset.tar = folder.path("s-{0..2}.tar");
    auto shards = std::make_shared<ShardFiles>(posix_file_system(), 0);
    write_index(index_table(dataset, limits, posix_file_system(), *shards), folder.path("x.index"));
    dataset.index = folder.path("x.index");
    dataset.local = true;
  }
  std::unique_ptr<Source> open(FileSystem& files = posix_file_system(), int64_t cache_bytes = 0) const {
    return make_source(dataset, limits, files, nullptr, {cache_bytes, 0});
  }
  TemporaryFolder folder;
  DatasetSpec dataset;
  DecodeLimits limits;
};

TEST_CASE("a data set of which a node has some files is the same one, and says what can be read") {
  Tars tars;
  const auto whole = tars.open();
  CHECK(whole->readable().ranges == IndexRanges::all(12));
  CHECK(whole->readable().lacking.empty());
  std::filesystem::remove(tars.folder.path("s-1.tar"));
  // As a copy has it.
  std::filesystem::last_write_time(tars.folder.path("s-0.tar"), std::filesystem::file_time_type::clock::now());
  for (const int64_t cache : {0, 1 << 20}) {
    const auto some = tars.open(posix_file_system(), cache);
    CHECK(some->fingerprint() == whole->fingerprint());
    CHECK(some->size() == 12);
    CHECK(some->key(5) == "1_1");
    CHECK(some->readable().ranges.bounds() == Bounds{0, 4, 8, 12});
    CHECK(some->readable().lacking == "'" + tars.folder.path("s-1.tar") + "'");
    std::vector<std::byte> bytes;
    CHECK(some->read(9, bytes).ok());
    CHECK_THROWS_WITH_AS((void)some->read(5, bytes), doctest::Contains("s-1.tar"), FileError);
  }
  SUBCASE("which it is not without dataset.local") {
    tars.dataset.local = false;
    CHECK_THROWS_WITH_AS((void)tars.open(), doctest::Contains("'s-0.tar' was changed since"), Error);
  }
  SUBCASE("a file of another size is no copy") {
    tars.folder.write("s-1.tar", "half of it");
    CHECK_THROWS_WITH_AS((void)tars.open(), doctest::Contains("'s-1.tar' has 10 bytes, and had"), Error);
  }
  SUBCASE("none at all is none that can be read") {
    for (const char* name : {"s-0.tar", "s-2.tar"}) std::filesystem::remove(tars.folder.path(name));
    CHECK(tars.open()->readable().ranges == IndexRanges());
  }
}

TEST_CASE("a file that comes is noticed when the split is opened again, and one that goes") {
  Tars tars;
  const std::string path = tars.folder.path("s-1.tar");
  std::filesystem::rename(path, tars.folder.path("elsewhere"));
  ListedFiles files(posix_file_system());
  const auto source = tars.open(files);
  const FileStamps then = files.finish();
  CHECK(look(then, posix_file_system()) == Looked::same);
  std::filesystem::rename(tars.folder.path("elsewhere"), path);
  CHECK(look(then, posix_file_system()) == Looked::changed);
  std::filesystem::remove(path);
  CHECK(look(then, posix_file_system()) == Looked::same);
  std::filesystem::remove(tars.folder.path("s-2.tar"));
  CHECK(look(then, posix_file_system()) == Looked::changed);
}

TEST_CASE("of class folders a node may have some folders, and of a folder some files") {
  TemporaryFolder folder;
  for (const char* name : {"ant", "bee", "cow"}) {
    for (int i = 0; i < 20; ++i) folder.write(std::string(name) + "/" + std::to_string(10 + i) + ".jpg", "x");
  }
  DatasetSpec dataset;
  dataset.folder = folder.path();
  const DecodeLimits limits;
  ShardFiles shards(posix_file_system(), 0);
  const TemporaryFolder other;
  write_index(index_table(dataset, limits, posix_file_system(), shards), other.path("x.index"));
  dataset.index = other.path("x.index");
  dataset.local = true;
  const Sum128 fingerprint = make_source(dataset, limits)->fingerprint();
  std::filesystem::remove_all(folder.path("bee"));
  std::filesystem::remove(folder.path("cow/10.jpg"));
  std::filesystem::remove(folder.path("cow/15.jpg"));
  const auto some = make_source(dataset, limits);
  CHECK(some->fingerprint() == fingerprint);
  CHECK(some->readable().ranges.bounds() == Bounds{0, 20, 41, 45, 46, 60});
  CHECK(some->readable().lacking == "'" + folder.path("bee/10.jpg") + "' and 21 other files");
}

TEST_CASE("a pack's shards may be on several nodes; its index is on all") {
  const SmallPack pack = small_pack();
  MemoryDisk disk;
  disk.add("/p/pack.index", bytes_of(pack.index.data(), pack.index.size()));
  CHECK_THROWS_AS((void)open_pack("/p", DecodeLimits{}, disk), Error);
  const auto none = open_pack("/p", DecodeLimits{}, disk, /*local=*/true);
  CHECK(none->readable().ranges == IndexRanges());
  CHECK(none->readable().lacking == "'/p/shard-00000.pack'");
  disk.add("/p/shard-00000.pack", bytes_of(pack.shard.data(), pack.shard.size()));
  const auto all = open_pack("/p", DecodeLimits{}, disk, /*local=*/true);
  CHECK(all->readable().ranges == IndexRanges::all(3));
  CHECK(all->fingerprint() == none->fingerprint());
}

}  // namespace
}  // namespace penstock
