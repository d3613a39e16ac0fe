// A folder of one's own, removed at the end of the test.
//
//   TemporaryFolder folder;
//   folder.write("cat/1.jpg", "text");    // makes the folders on the way
//   folder.path("cat");
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "runtime/base/file_system.h"

namespace penstock {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  void make_folder(const std::string& name) const { std::filesystem::create_directories(path(name)); }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    write_file(path(name), {as_bytes_of(content)});
  }

 private:
  std::string path_;
};

}  // namespace penstock
