// A file in a process's memory is found by its whole name, and read as any other.
#include "runtime/base/kept_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "tests/support/error_of.h"

namespace penstock {
namespace {

UniqueFd keep(const std::string& name, const std::string& text, bool whole = true) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd);
  REQUIRE(::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  if (whole) REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0);
  return fd;
}

TEST_CASE("a kept file is read under the kernel's name for it") {
  const std::string name = "penstock-kept-" + std::to_string(::getpid());
  const UniqueFd longer = keep(name + "-longer", "another");
  const std::string path = "/memfd:" + name;
  CHECK(is_kept_file(path));
  CHECK_FALSE(is_kept_file("/tmp/memfd:" + name));
  CHECK_THROWS_AS(open_kept_file(path, 0), FileError);
  const UniqueFd half = keep(name, "0\n", false);  // somebody is still writing it
  CHECK_THROWS_AS(open_kept_file(path, 0), FileError);
  {
    const UniqueFd fd = keep(name, "0\n1\n");
    FileSystem& files = posix_file_system();
    std::vector<std::byte> bytes;
    REQUIRE(files.read_file(path, 100, bytes));
    CHECK(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == "0\n1\n");
    CHECK(files.file_size(path) == 4);
    CHECK(files.examine(path).bytes == 4);
    CHECK(files.open_file(path)->size() == 4);
    CHECK_FALSE(files.read_file(path, 3, bytes));
  }
  const Error gone = error_of([&] { open_kept_file(path, 0); });
  CHECK(gone.message().find(name) != std::string::npos);
  CHECK(gone.remedy().find("every node that loads") != std::string::npos);
}

}  // namespace
}  // namespace penstock
