// What listing a data set meets of the file system's troubles.
#include "runtime/datasets/listed_files.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/temporary_folder.h"

namespace listed_files_test {

using namespace penstock;

// The disk, where looking at a file or folder fails: by a shortage, which is a plain Error, or by an errno value.
class FailingLooks final : public FileSystem {
 public:
  explicit FailingLooks(int code) : code_(code) {}
  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    return disk_.read_file(path, max_bytes, bytes);
  }
  std::unique_ptr<FileReader> open_file(const std::string& path) override { return disk_.open_file(path); }
  int64_t file_size(const std::string& path) override { return disk_.file_size(path); }
  FileFacts examine(const std::string& path) override {
    const std::string message = "cannot examine '" + path + "': " + std::strerror(code_);
    if (code_ == ENOMEM) throw Error(ErrorKind::runtime, message, "");
    throw FileError(code_, path, message);
  }
  Directory list_directory(const std::string& path) override { return disk_.list_directory(path); }

 private:
  FileSystem& disk_ = posix_file_system();
  int code_;
};

TEST_CASE(
    "what may pass by itself is noted while a folder is listed; a file that is missing or forbidden is none of it") {
  TemporaryFolder folder;
  folder.write("a.jpg", "x");
  const auto meets_trouble = [&](int code) {
    FailingLooks disk(code);
    ListedFiles files(disk);
    try {
      (void)files.list_directory(folder.path(""));
    } catch (const Error&) {
      CHECK(code == ENOMEM);  // with others the listing itself goes on
    }
    return files.met_trouble();
  };
  for (const int code : {ENOMEM, EIO, ESTALE, EMFILE}) CHECK(meets_trouble(code));
  for (const int code : {ENOENT, EACCES, ENOTDIR}) CHECK_FALSE(meets_trouble(code));
}

}  // namespace listed_files_test
