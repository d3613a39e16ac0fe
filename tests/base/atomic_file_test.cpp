// Writers of one path keep out of each other's way, and what a killed one leaves does not pile up.
#include "runtime/base/atomic_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> files_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// A process that ends with a part file of `path` half written; gives the part file's name.
std::string leave_part(const TemporaryFolder& folder, const std::string& path) {
  const std::vector<std::string> before = files_in(folder);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    AtomicFile file(path);
    file.write(as_bytes_of("half"));
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  for (const std::string& name : files_in(folder)) {
    if (std::find(before.begin(), before.end(), name) == before.end()) return name;
  }
  FAIL("no part file was left");
  return {};
}

void age(const std::string& path, int64_t seconds) {
  const timespec then{::time(nullptr) - seconds, 0};
  const timespec times[2] = {then, then};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

TEST_CASE("two writers of one path do not touch each other's part file; the last one to publish wins") {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.pack");
  {
    AtomicFile first(path);
    first.write(as_bytes_of("first"));
    AtomicFile second(path);
    second.write(as_bytes_of("second"));
    AtomicFile third(path);
    CHECK(files_in(folder).size() == 3);
    second.close();
    first.close();
    AtomicFile fourth(path);  // a file that is whole and has no name yet is still its writer's
    second.publish();
    CHECK(content_of(path) == "second");
    first.publish();
    CHECK(content_of(path) == "first");
  }
  CHECK(files_in(folder) == std::vector<std::string>{"a.pack"});
}

TEST_CASE("the next writer of a path removes what killed ones left of it, and nothing else") {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.pack");
  const std::string left = leave_part(folder, path);
  CHECK(without_part_suffix(left) == "a.pack");
  const std::string suffix = left.substr(std::string("a.pack").size());
  folder.write("mine", "mine");
  std::vector<std::string> others = {"a.pack.part",
                                     "a.pack.part.txt",
                                     "b.pack" + suffix,
                                     "xa.pack" + suffix,
                                     "a.pack" + suffix.substr(0, suffix.size() - 1),
                                     "a.pack.x" + suffix.substr(2)};
  for (const std::string& name : others) folder.write(name, "another's");
  std::string planted = left;
  planted[left.size() - 6] = planted[left.size() - 6] == '0' ? '1' : '0';
  REQUIRE(::symlink(folder.path("mine").c_str(), folder.path(planted).c_str()) == 0);
  for (const std::string& name : others) age(folder.path(name), 3 * 24 * 60 * 60);
  age(folder.path(planted), 3 * 24 * 60 * 60);

  write_new_file(path, as_bytes_of("whole"));
  CHECK(content_of(path) == "whole");
  CHECK(content_of(folder.path("mine")) == "mine");
  others.insert(others.end(), {"a.pack", "mine", planted});
  std::sort(others.begin(), others.end());
  CHECK(files_in(folder) == others);
}

TEST_CASE("a part file of another host or mount, whose locks nobody sees here, is removed when it is a day old") {
  const TemporaryFolder folder;
  const std::string path = folder.path("a.pack");
  const std::string left = leave_part(folder, path);
  std::string elsewhere = left;
  char& digit = elsewhere[std::string("a.pack.").size()];
  digit = digit == '0' ? '1' : '0';
  std::filesystem::rename(folder.path(left), folder.path(elsewhere));
  for (const int64_t hours : {0, 23}) {
    age(folder.path(elsewhere), hours * 60 * 60);
    write_new_file(path, as_bytes_of("whole"));
    CHECK(files_in(folder) == std::vector<std::string>{"a.pack", elsewhere});
  }
  age(folder.path(elsewhere), 25 * 60 * 60);
  write_new_file(path, as_bytes_of("whole"));
  CHECK(files_in(folder) == std::vector<std::string>{"a.pack"});
}

}  // namespace
}  // namespace penstock
