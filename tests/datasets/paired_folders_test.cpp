#include "runtime/datasets/paired_folders.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/job/job.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temporary_folder.h"

namespace paired_folders_test {

using namespace penstock;

namespace {

constexpr int64_t kLimit = 1000;

DatasetSpec spec_of(const TemporaryFolder& folder, bool targets, bool masks) {
  DatasetSpec spec;
  spec.images = folder.path("images");
  if (targets) spec.targets = folder.path("targets");
  if (masks) spec.masks = folder.path("masks");
  return spec;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string refusal(const DatasetSpec& spec) {
  try {
    const PairedFolders source(spec, kLimit);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::dataset);
    return error.what();
  }
  FAIL("opened");
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("pictures find their partners by name, whatever the extension and the depth") {
  TemporaryFolder folder;
  folder.write("images/b.jpg", "image b");
  folder.write("images/a/1.JPG", "image a/1");
  folder.write("images/notes.txt", "no image");
  folder.write("targets/b.png", "target b");
  folder.write("targets/a/1.JPG", "the same name wins");
  folder.write("targets/a/1.png", "not this one");
  folder.write("targets/without.png", "left alone");
  folder.write("masks/b.png", "mask b");
  folder.write("masks/a/1.png", "mask a/1");
  const PairedFolders source(spec_of(folder, true, true), kLimit);
  REQUIRE(source.size() == 2);
  CHECK(source.key(0) == "a/1.JPG");
  CHECK(source.key(1) == "b.jpg");
  CHECK(source.class_names().empty());
  CHECK(source.label(1) == 0);
  REQUIRE(source.fields().size() == 4);
  CHECK(source.fields()[2].name == "mask");
  CHECK(source.fields()[2].kind == FieldKind::mask);
  CHECK(source.fields()[3].name == "target");
  CHECK(source.fields()[3].kind == FieldKind::image);
  SourceSample sample;
  for (int round = 0; round < 2; ++round) {
    REQUIRE(source.load({.index = 1}, sample).ok());
    CHECK(text_of(sample.image) == "image b");
    REQUIRE(sample.fields.size() == 2);
    CHECK(text_of(sample.fields[0]) == "mask b");
    CHECK(text_of(sample.fields[1]) == "target b");
    REQUIRE(source.load({.index = 0}, sample).ok());
    CHECK(text_of(sample.fields[1]) == "the same name wins");
  }
  CHECK(source.encoded_size(1) == 7 + 8 + 6);
  CHECK_THROWS_AS((void)source.key(2), Error);
  CHECK_THROWS_AS((void)source.encoded_size(-1), Error);

  const Sum128 before = source.fingerprint();
  CHECK(PairedFolders(spec_of(folder, true, true), kLimit).fingerprint() == before);
  CHECK_FALSE(PairedFolders(spec_of(folder, true, false), kLimit).fingerprint() == before);
  folder.write("images/a/0.jpg", "one more");
  folder.write("targets/a/0.jpg", "one more");
  folder.write("masks/a/0.png", "one more");
  CHECK_FALSE(PairedFolders(spec_of(folder, true, true), kLimit).fingerprint() == before);
}

TEST_CASE("small and large letters part no pair, and never make one where the same name is there") {
  TemporaryFolder folder;
  folder.write("images/IMG_1.JPG", "image");
  folder.write("images/b/2.JPG", "image");
  folder.write("targets/img_1.png", "other letters");
  folder.write("targets/b/2.jpg", "the same but for letters");
  folder.write("targets/b/2.png", "not this one");
  const PairedFolders source(spec_of(folder, true, false), kLimit);
  REQUIRE(source.size() == 2);
  CHECK(source.name(1, 0) == "img_1.png");
  CHECK(source.name(1, 1) == "b/2.jpg");

  folder.write("targets/IMG_1.png", "the same name");
  CHECK(PairedFolders(spec_of(folder, true, false), kLimit).name(1, 0) == "IMG_1.png");
  folder.write("images/img_1.jpg", "another image");
  const PairedFolders both(spec_of(folder, true, false), kLimit);
  REQUIRE(both.size() == 3);
  CHECK(both.name(1, 0) == "IMG_1.png");
  CHECK(both.name(1, 2) == "img_1.png");

  folder.write("images/Img_1.jpg", "a third, which two could belong to");
  CHECK(contains(refusal(spec_of(folder, true, false)), "'Img_1.jpg' has two targets in '"));
  std::filesystem::remove(folder.path("targets/IMG_1.png"));
  CHECK(contains(refusal(spec_of(folder, true, false)), "share one target in '"));
}

TEST_CASE("what does not fit together is refused by name") {
  TemporaryFolder folder;
  folder.make_folder("images");
  CHECK(contains(refusal(spec_of(folder, true, false)), "images' holds no image"));
  for (int i = 0; i < 5; ++i) folder.write("images/" + std::to_string(i) + ".jpg", "x");
  CHECK(contains(refusal(spec_of(folder, true, false)), "targets' does not exist"));
  folder.write("targets/0.jpg", "x");
  const std::string missing = refusal(spec_of(folder, true, false));
  CHECK(contains(missing, "4 of the 5 images have no target in '"));
  CHECK(contains(missing, "'1.jpg', '2.jpg', '3.jpg', ..."));
  for (int i = 0; i < 5; ++i) folder.write("masks/" + std::to_string(i) + ".png", "x");
  folder.write("masks/3.bmp", "x");
  CHECK(contains(refusal(spec_of(folder, false, true)), "'3.jpg' has two masks in '"));
  std::filesystem::remove(folder.path("masks/3.bmp"));
  folder.write("images/4.png", "x");
  CHECK(contains(refusal(spec_of(folder, false, true)), "share one mask in '"));
  folder.write("masks/4.jpg", "x");  // each has one with its own full name now
  CHECK(PairedFolders(spec_of(folder, false, true), 1000).size() == 6);
  folder.write("file", "x");
  DatasetSpec spec = spec_of(folder, true, false);
  spec.targets = folder.path("file");
  CHECK(contains(refusal(spec), "file' is a file"));
  REQUIRE(::symlink("..", folder.path("images/loop").c_str()) == 0);
  CHECK(contains(refusal(spec_of(folder, false, true)), "symbolic link to a folder above"));
}

TEST_CASE("a partner that is too large is a status with its name") {
  TemporaryFolder folder;
  folder.write("images/1.jpg", "x");
  folder.write("masks/1.png", std::string(kLimit + 1, 'x'));
  const PairedFolders source(spec_of(folder, false, true), kLimit);
  SourceSample sample;
  CHECK(contains(source.load({.index = 0}, sample).reason, "the file '1.png' is larger"));
}

}  // namespace paired_folders_test
