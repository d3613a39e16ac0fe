// Which Open MPI is taken where there are several: that of the mpirun in PATH.
#include "runtime/base/library_search.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace penstock::library_search_test {

// Set for as long as this lives; then what it was before.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = ::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

using Files = std::vector<std::string>;

TEST_CASE("what LD_LIBRARY_PATH says comes first, then the active environment, then the loader's own places") {
  const TemporaryFolder folder;
  folder.write("said/libx.so.1", "");
  folder.write("venv/lib/libx.so.1", "");
  const std::string said = folder.path("said/libx.so.1");
  const std::string active = folder.path("venv/lib/libx.so.1");
  const LibrarySearch search{.names = {"libx.so.1"}, .in_environment = {"libx.so.1"}};
  const Variable no_libraries("LD_LIBRARY_PATH", "");
  const Variable no_environment("VIRTUAL_ENV", "");
  CHECK(library_candidates(search) == Files{"libx.so.1"});
  const Variable environment("VIRTUAL_ENV", folder.path("venv"));
  CHECK(library_candidates(search) == Files{active, "libx.so.1"});
  const Variable libraries("LD_LIBRARY_PATH", folder.path("nothing") + "::" + folder.path("said"));
  CHECK(library_candidates(search) == Files{said, active, "libx.so.1"});
  // Without a file of this name only the loader is asked.
  CHECK(library_candidates({.names = {"liby.so.1"}, .in_environment = {"liby.so.1"}}) == Files{"liby.so.1"});
}

TEST_CASE("NVIDIA's packages come after the loader's own places; a file that is named stands alone") {
  const TemporaryFolder folder;
  folder.write("lib/python3.11/site-packages/nvidia/nccl/lib/libx.so.1", "");
  const Variable environment("VIRTUAL_ENV", folder.path());
  const LibrarySearch search{.names = {"libx.so.1"}, .in_packages = {"nccl/lib/libx.so.1"}};
  CHECK(library_candidates(search) ==
        Files{"libx.so.1", folder.path("lib/python3.11/site-packages/nvidia/nccl/lib/libx.so.1")});
  LibrarySearch named = search;
  named.named = "/there/libx.so";
  CHECK(library_candidates(named) == Files{"/there/libx.so"});
}

}  // namespace penstock::library_search_test
