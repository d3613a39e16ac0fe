// A folder as a disk far away shows it: every open and every read takes so many microseconds, any number at a time.
//
//   slow_disk FOLDER MOUNTPOINT 5000      # until it is unmounted (fusermount3 -u MOUNTPOINT)
//
// Files are not kept in memory by the kernel (direct_io), so each epoch reads them anew, as a data set larger than
// memory would be; names and sizes are, as network file systems keep them.
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::string root;
useconds_t latency_us = 0;

std::string real(const char* path) {
  return root + path;
}

int get_attr(const char* path, struct stat* out, fuse_file_info*) {
  return ::stat(real(path).c_str(), out) == 0 ? 0 : -errno;
}

int read_dir(const char* path, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*, fuse_readdir_flags) {
  DIR* const folder = ::opendir(real(path).c_str());
  if (folder == nullptr) return -errno;
  while (const dirent* entry = ::readdir(folder)) {
    struct stat status {};
    status.st_ino = entry->d_ino;
    status.st_mode = static_cast<mode_t>(entry->d_type) << 12;
    fill(buffer, entry->d_name, &status, 0, static_cast<fuse_fill_dir_flags>(0));
  }
  ::closedir(folder);
  return 0;
}

int open_file(const char* path, fuse_file_info* info) {
  ::usleep(latency_us);
  const int fd = ::open(real(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  info->fh = static_cast<uint64_t>(fd);
  info->direct_io = 1;
  info->noflush = 1;
  return 0;
}

int read_file(const char*, char* buffer, size_t size, off_t offset, fuse_file_info* info) {
  ::usleep(latency_us);
  const ssize_t got = ::pread(static_cast<int>(info->fh), buffer, size, offset);
  return got < 0 ? -errno : static_cast<int>(got);
}

int release(const char*, fuse_file_info* info) {
  return ::close(static_cast<int>(info->fh));
}

void* begin(fuse_conn_info* connection, fuse_config* config) {
  config->attr_timeout = config->entry_timeout = 3600;
  connection->max_background = 1024;
  connection->congestion_threshold = 1024;
  return nullptr;
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return std::fprintf(stderr, "usage: slow_disk FOLDER MOUNTPOINT MICROSECONDS\n"), 2;
  char resolved[PATH_MAX];
  if (::realpath(words[1], resolved) == nullptr) return std::perror(words[1]), 1;
  root = resolved;
  latency_us = static_cast<useconds_t>(std::atoi(words[3]));
  fuse_operations operations{};
  operations.getattr = get_attr;
  operations.readdir = read_dir;
  operations.open = open_file;
  operations.read = read_file;
  operations.release = release;
  operations.init = begin;
  std::string program = words[0];
  std::string options = "-omax_threads=256,max_idle_threads=256,ro";
  std::string foreground = "-f";
  std::vector<char*> arguments{program.data(), foreground.data(), options.data(), words[2]};
  return ::fuse_main(static_cast<int>(arguments.size()), arguments.data(), &operations, nullptr);
}
