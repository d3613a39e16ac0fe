#include "runtime/datasets/image_folder.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/job/job.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/memory_source.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"

namespace image_folder_test {

using namespace penstock;

namespace {

constexpr int64_t kLimit = 1 << 20;

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The message of the error that `act` throws, which must be of kind `kind`.
template <class Act>
std::string error_of(ErrorKind kind, Act&& act) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("no error");
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("class folders become samples with keys, labels and bytes") {
  TemporaryFolder folder;
  folder.write("dog/b.png", "bbb");
  folder.write("dog/a.JPG", "aa");
  folder.write("cat/z/9.jpeg", "9");
  folder.write("cat/readme.txt", "not an image");
  const ImageFolder source(folder.path(), kLimit);

  REQUIRE(source.size() == 3);
  CHECK(source.class_names() == std::vector<std::string>{"cat", "dog"});
  CHECK(source.key(0) == "cat/z/9.jpeg");
  CHECK(source.key(1) == "dog/a.JPG");
  CHECK(source.key(2) == "dog/b.png");
  CHECK(source.label(0) == 0);
  CHECK(source.label(1) == 1);
  CHECK(source.label(2) == 1);
  CHECK(source.path(2) == folder.path("dog/b.png"));
  REQUIRE(source.fields().size() == 2);
  CHECK(source.fields()[0].kind == FieldKind::image);
  CHECK(source.fields()[1] == FieldSpec{"label", FieldKind::tensor, DType::int64, {}});

  std::vector<std::byte> bytes(1000);
  CHECK(source.read(2, bytes).ok());
  CHECK(text_of(bytes) == "bbb");
  CHECK(source.encoded_size(1) == 2);
  CHECK(contains(error_of(ErrorKind::usage, [&] { (void)source.key(3); }), "3 samples"));
  CHECK(contains(error_of(ErrorKind::usage, [&] { (void)source.read(-1, bytes); }), "sample -1"));
}

// A thousand folders of a thousand files with ImageNet's names.
class ManyFiles final : public FileSystem {
 public:
  bool read_file(const std::string&, int64_t, std::vector<std::byte>&) override { return false; }
  std::unique_ptr<FileReader> open_file(const std::string&) override { return nullptr; }
  int64_t file_size(const std::string&) override { return 1; }
  Directory list_directory(const std::string& path) override {
    Directory out;
    out.id = {1, std::hash<std::string>()(path)};
    for (int i = 0; i < 1000; ++i) {
      char name[32];
      std::snprintf(name, sizeof name, path == "/many" ? "n%08d" : "n01440764_%05d.JPEG", i);
      out.entries.push_back({name, path == "/many"});
    }
    return out;
  }
};

int64_t status_kb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t value = 0;
    if (word == key + ":" && status >> value) return value;
  }
  return -1;
}

TEST_CASE("a list of a million files takes some 65 bytes a file, also while it is made") {
  if (kSanitizedFactor > 1) return;
  ManyFiles files;
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak is to begin anew
  const int64_t before_kb = status_kb("VmRSS");
  const ImageFolder folder("/many", 1 << 20, files);
  const int64_t bytes_each = (status_kb("VmHWM") - before_kb) * 1024 / folder.size();
  CHECK(folder.size() == 1'000'000);
  CHECK(folder.key(999'999) == "n00000999/n01440764_00999.JPEG");
  MESSAGE(bytes_each << " bytes a file");
  CHECK(bytes_each < kListedFileBytes * 5 / 4);
}

TEST_CASE(
    "a share of each class is held out: no picture in both parts, none in neither, the same wherever the folder "
    "stands") {
  TemporaryFolder folder;
  TemporaryFolder elsewhere;
  for (int i = 0; i < 53; ++i) {
    const std::string name = (i < 50 ? (i % 2 == 0 ? "a/" : "b/x/") : "c/") + std::to_string(i) + ".jpg";
    folder.write(name, "x");
    elsewhere.write(name, "x");
  }
  const auto keys = [](const std::string& root, const FolderPart& part) {
    const ImageFolder source(root, kLimit, posix_file_system(), part);
    CHECK(source.class_names() == std::vector<std::string>{"a", "b", "c"});
    std::vector<std::string> list;
    for (int64_t i = 0; i < source.size(); ++i) list.push_back(source.key(i));
    return list;
  };
  const auto all = keys(folder.path(), {});
  const auto train = keys(folder.path(), {.val_share = 0.2, .seed = 1, .train = true});
  const auto val = keys(folder.path(), {.val_share = 0.2, .seed = 1, .train = false});
  CHECK(val.size() == 5 + 5 + 1);
  std::vector<std::string> both = train;
  both.insert(both.end(), val.begin(), val.end());
  std::sort(both.begin(), both.end());
  auto sorted = all;
  std::sort(sorted.begin(), sorted.end());
  CHECK(both == sorted);
  CHECK(keys(elsewhere.path(), {.val_share = 0.2, .seed = 1, .train = false}) == val);
  CHECK(keys(folder.path(), {.val_share = 0.2, .seed = 2, .train = false}) != val);
  CHECK(keys(folder.path(), {.val_share = 0.99, .seed = 1, .train = true}).size() == 3);  // one of each is left
  TemporaryFolder tiny;
  tiny.write("a/1.jpg", "x");
  CHECK(contains(error_of(ErrorKind::dataset,
                          [&] {
                            const ImageFolder source(tiny.path(), kLimit, posix_file_system(),
                                                     {.val_share = 0.5, .seed = 0, .train = false});
                          }),
                 "leaves no picture"));
}

TEST_CASE("listing asks the disk for folders only, sizes are asked for once") {
  TemporaryFolder folder;
  for (int i = 0; i < 40; ++i) folder.write("c" + std::to_string(i % 4) + "/" + std::to_string(i) + ".jpg", "x");
  FaultyFileSystem disk;
  const ImageFolder source(folder.path(), kLimit, disk);
  CHECK(disk.lists() == 5);
  CHECK(disk.reads() == 0);
  CHECK(disk.sizes() == 0);
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < source.size(); ++i) CHECK(source.encoded_size(i) == 1);
  }
  CHECK(disk.sizes() == 40);
}

TEST_CASE("missing, empty and flat folders are errors that say what to do") {
  TemporaryFolder folder;
  const auto open = [&](const std::string& path) {
    return error_of(ErrorKind::dataset, [&] { const ImageFolder source(path, kLimit); });
  };
  CHECK(contains(open(folder.path("nowhere")), "nowhere' does not exist"));
  CHECK(contains(open(folder.path()), "is empty"));
  folder.write("readme.txt", "");
  CHECK(contains(open(folder.path("readme.txt")), "is a file"));
  CHECK(contains(open(folder.path()), "no class folders"));
  folder.write("1.jpg", "");
  const std::string flat = open(folder.path());
  CHECK(contains(flat, "'1.jpg'"));
  CHECK(contains(flat, "cat/1.jpg"));
  folder.write("full/1.jpg", "");
  CHECK(ImageFolder(folder.path(), kLimit).size() == 1);
  folder.make_folder("void");
  folder.write("words/a.txt", "");
  const std::string empty = open(folder.path());
  CHECK(contains(empty, "'void', 'words'"));
  CHECK(contains(empty, ".jpg .jpeg"));
}

TEST_CASE("a folder that cannot be listed, and a loop of links, are errors naming it") {
  TemporaryFolder folder;
  folder.write("a/1.jpg", "");
  folder.write("b/deep/1.jpg", "");
  SUBCASE("disk error while listing") {
    FaultyFileSystem disk;
    disk.fail_list("b/deep");
    const std::string message =
        error_of(ErrorKind::dataset, [&] { const ImageFolder source(folder.path(), kLimit, disk); });
    CHECK(contains(message, folder.path("b/deep")));
    CHECK(contains(message, "Input/output error"));
  }
  SUBCASE("loop") {
    std::filesystem::create_directory_symlink(folder.path("b"), folder.path("b/deep/again"));
    const std::string message = error_of(ErrorKind::dataset, [&] { const ImageFolder source(folder.path(), kLimit); });
    CHECK(contains(message, "b/deep/again"));
  }
  SUBCASE("a link to a folder elsewhere is no loop") {
    std::filesystem::create_directory_symlink(folder.path("a"), folder.path("b/deep/other"));
    const ImageFolder source(folder.path(), kLimit);
    REQUIRE(source.size() == 3);
    CHECK(source.key(2) == "b/deep/other/1.jpg");
  }
}

TEST_CASE("trouble of the disk is an Error naming the file, a file over the limit is a bad sample") {
  TemporaryFolder folder;
  for (const char* name : {"c/1.jpg", "c/2.jpg", "c/3.jpg"}) folder.write(name, "0123456789");
  FaultyFileSystem disk;
  const ImageFolder source(folder.path(), /*max_encoded_bytes=*/10, disk);
  std::vector<std::byte> bytes;

  SUBCASE("a bad sector in the middle") {
    disk.fail_read("c/2.jpg");
    CHECK(source.read(0, bytes).ok());
    CHECK(contains(error_of(ErrorKind::runtime, [&] { (void)source.read(1, bytes); }), folder.path("c/2.jpg")));
    CHECK(bytes.empty());
    CHECK(source.read(2, bytes).ok());
  }
  SUBCASE("the n-th read fails once") {
    disk.fail_nth_read(2);
    CHECK(source.read(0, bytes).ok());
    CHECK_THROWS_AS((void)source.read(0, bytes), FileError);
    CHECK(source.read(0, bytes).ok());
  }
  SUBCASE("the disk goes and comes back") {
    disk.fail_all_reads();
    CHECK_THROWS_AS((void)source.read(0, bytes), FileError);
    CHECK_THROWS_AS((void)source.encoded_size(2), FileError);
    disk.repair();
    CHECK(source.encoded_size(2) == 10);
  }
  SUBCASE("deleted") {
    ::unlink(folder.path("c/3.jpg").c_str());
    const std::string message = error_of(ErrorKind::runtime, [&] { (void)source.read(2, bytes); });
    CHECK(contains(message, "c/3.jpg': No such file"));
  }
  SUBCASE("a pipe named like an image does not stall the reader") {
    ::unlink(folder.path("c/3.jpg").c_str());
    REQUIRE(::mkfifo(folder.path("c/3.jpg").c_str(), 0600) == 0);
    CHECK(contains(error_of(ErrorKind::runtime, [&] { (void)source.read(2, bytes); }), "not a regular file"));
  }
  SUBCASE("larger than the limit") {
    folder.write("c/1.jpg", "0123456789A");
    const SampleStatus status = source.read(0, bytes);
    CHECK_FALSE(status.ok());
    CHECK(contains(status.reason, "max_encoded_bytes (10 bytes)"));
    CHECK(bytes.empty());
  }
  SUBCASE("0 bytes are read as 0 bytes") {
    folder.write("c/1.jpg", "");
    CHECK(source.read(0, bytes).ok());
    CHECK(bytes.empty());
  }
}

TEST_CASE("the fingerprint covers names, order and classes, and nothing else") {
  const auto fingerprint = [](const std::vector<std::string>& names, const std::string& content) {
    TemporaryFolder folder;
    for (const std::string& name : names) folder.write(name, content);
    return ImageFolder(folder.path(), kLimit).fingerprint();
  };
  const Sum128 base = fingerprint({"a/1.jpg", "a/2.jpg", "b/3.jpg"}, "x");
  CHECK(base == fingerprint({"b/3.jpg", "a/2.jpg", "a/1.jpg", "a/notes.txt"}, "another content"));
  CHECK_FALSE(base == fingerprint({"a/1.jpg", "a/2.jpg", "b/4.jpg"}, "x"));
  CHECK_FALSE(base == fingerprint({"a/1.jpg", "b/2.jpg", "b/3.jpg"}, "x"));
  CHECK_FALSE(base == fingerprint({"a/1.jpg", "a/2.jpg"}, "x"));
  CHECK_FALSE(fingerprint({"a/1.jpg", "b/3.jpg"}, "x") == fingerprint({"a/1.jpg", "a2/3.jpg"}, "x"));
}

TEST_CASE("one source serves many threads") {
  TemporaryFolder folder;
  constexpr int count = 64;
  for (int i = 0; i < count; ++i) {
    folder.write("c" + std::to_string(i % 3) + "/" + std::to_string(i) + ".jpg", std::string(i * 997 % 5000, 'a'));
  }
  const ImageFolder source(folder.path(), kLimit);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::byte> bytes;
        for (int round = 0; round < 3; ++round) {
          for (int64_t i = t; i < count + t; ++i) {
            const int64_t index = i % count;
            const bool good = source.read(index, bytes).ok();
            const auto number = std::stol(source.key(index).substr(3));
            if (!good || static_cast<int64_t>(bytes.size()) != number * 997 % 5000 ||
                source.encoded_size(index) != static_cast<int64_t>(bytes.size())) {
              ++wrong;
            }
          }
        }
      });
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("make_source opens what the job names") {
  TemporaryFolder folder;
  folder.write("home/photos/c/1.jpg", "123");
  DatasetSpec spec;
  spec.folder = folder.path("home/photos/");
  DecodeLimits limits;
  limits.max_encoded_bytes = 2;
  const auto source = make_source(spec, limits);
  REQUIRE(source->size() == 1);
  std::vector<std::byte> bytes;
  CHECK_FALSE(source->read(0, bytes).ok());

  spec.folder = "";
  CHECK(contains(error_of(ErrorKind::dataset, [&] { make_source(spec, {}); }), "dataset: {folder: DIR}"));
}

namespace {

// While one lives no file can be opened.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int next = ::dup(STDERR_FILENO);  // the lowest that is free, and the one that an open would get
    REQUIRE(next >= 0);
    ::close(next);
    const rlimit none{static_cast<rlim_t>(next), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("without descriptors no data set is blamed") {
  const TemporaryFolder folder;
  for (const char* name : {"pictures/cat/1.jpg", "a.tar", "cifar10/x", "mnist/x", "mds/index.json", "table.csv"}) {
    folder.write(name, "x");
  }
  const std::pair<std::string DatasetSpec::*, const char*> kinds[] = {
      {&DatasetSpec::folder, "pictures"}, {&DatasetSpec::images, "pictures"}, {&DatasetSpec::tar, "a.tar"},
      {&DatasetSpec::tar, "?.tar"},       {&DatasetSpec::cifar10, "cifar10"}, {&DatasetSpec::mnist, "mnist"},
      {&DatasetSpec::mds, "mds"},         {&DatasetSpec::csv, "table.csv"},   {&DatasetSpec::tfrecord, "a.tar"},
      {&DatasetSpec::pack, "pictures"}};
  for (const auto& [key, name] : kinds) {
    DatasetSpec dataset;
    dataset.*key = folder.path(name);
    if (dataset.is_paired()) dataset.targets = dataset.images;
    CAPTURE(dataset.title());
    // The undefined-behaviour sanitizer opens a pipe to look at an object of a type that it has not met.
    try {
      make_source(dataset, {});
    } catch (const Error&) {
    }
    const std::string why = error_of(ErrorKind::runtime, [&] {
      const NoDescriptors none;
      make_source(dataset, {});
    });
    CHECK(contains(why, "Too many open files\n  help: raise ulimit -n"));
  }
}

TEST_CASE("python_less is an order by code point, with odd bytes as Python escapes them") {
  CHECK(python_less("a", "b"));
  CHECK_FALSE(python_less("a", "a"));
  CHECK(python_less("a", "ab"));
  CHECK(python_less("B", "a"));
  CHECK(python_less("z", "\xc3\xa9"));
  CHECK(python_less("\xef\xbf\xbd", "\xf0\x9f\x98\x80"));  // U+FFFD < U+1F600: UTF-8 keeps the order
  CHECK(python_less("\xff", "\xee\x80\x80"));              // U+DCFF < U+E000: here it does not
  CHECK(python_less("\xc3\xa9", "\xc3"));                  // U+00E9 < U+DCC3, though one begins with the other
  CHECK_FALSE(python_less("\xc3", "\xc3\xa9"));
}

TEST_CASE("a memory source is a source") {
  MemorySource source;
  source.add("one", 2, std::vector<std::byte>(7));
  std::vector<std::byte> bytes;
  CHECK(source.read(0, bytes).ok());
  CHECK(source.encoded_size(0) == 7);
  CHECK(source.class_names().size() == 3);
}

}  // namespace image_folder_test
