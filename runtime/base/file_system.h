// The disk, as a seam: production reads through PosixFileSystem, tests through one that fails on purpose.
//
//   FileSystem& files = posix_file_system();
//   for (const DirectoryEntry& entry : files.list_directory("train").entries) ...
//   files.read_file("train/cat/1.jpg", /*max_bytes=*/limit, bytes);   // false: larger than the limit
//   write_file("out/labels.npy", {header, data});
//
// Reading is whole-file where a file is a sample: encoded images are small, and one open, one fstat and one pread is
//   the least a network disk can be asked for. Shards stay open and are read in parts (open_file).
// Thread-safety: one FileSystem serves any number of threads at once.
// Ownership: the caller owns every buffer; `bytes` keeps its capacity, so one buffer per thread serves all files.
// Failure: FileError (kind runtime) naming the path and the system's reason. Interrupted and short calls are continued;
//   a file that changes while it is read is an error, never a silently shorter file. Where descriptors or memory ran
//   out it is no FileError but an Error(runtime): callers that take a file for missing must not take that for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace penstock {

// An Error that knows the system's reason, for callers that treat "missing" and "forbidden" differently.
class FileError : public Error {
 public:
  FileError(int code, const std::string& path, const std::string& message, std::string remedy = {})
      : Error(ErrorKind::runtime, message, std::move(remedy)), code_(code), path_(path) {}

  int code() const noexcept { return code_; }  // an errno value; 0 where the system gave none
  const std::string& path() const noexcept { return path_; }

 private:
  int code_;
  std::string path_;
};

// Whether what an errno value says may pass by itself: trouble of a disk, of a network or of the machine, and no file
// that is missing or forbidden.
bool may_pass(int code) noexcept;

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;  // symbolic links are followed; a broken one is not a directory
};

// Which directory it is, whatever path led there: how loops of symbolic links are found.
struct DirectoryId {
  uint64_t device = 0;
  uint64_t inode = 0;

  friend bool operator==(const DirectoryId&, const DirectoryId&) = default;
};

struct Directory {
  DirectoryId id;
  std::vector<DirectoryEntry> entries;  // without "." and "..", in no particular order
};

// An open file, for reading parts of it. Thread-safe; the file stays open as long as the object lives.
class FileReader {
 public:
  virtual ~FileReader() = default;
  virtual const std::string& path() const noexcept = 0;
  virtual uint64_t size() const noexcept = 0;        // when it was opened
  virtual int64_t modified_ns() const noexcept = 0;  // since 1970
  // Fills `into` from `offset` on; bytes beyond the end are a FileError: something cut the file.
  virtual void read_at(uint64_t offset, std::span<std::byte> into) const = 0;
  // The kernel's, where offsets of it are offsets of this; -1: there is no way in but read_at().
  virtual int descriptor() const noexcept { return -1; }
};

struct FileFacts {
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970

  friend bool operator==(const FileFacts&, const FileFacts&) = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Makes `bytes` the whole content. False, with `bytes` empty and no memory taken, if it is larger than `max_bytes`.
  // Only regular files are read: a pipe named like an image must not stall a loader.
  virtual bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) = 0;

  // For files that hold many samples. Regular files only.
  virtual std::unique_ptr<FileReader> open_file(const std::string& path) = 0;

  virtual int64_t file_size(const std::string& path) = 0;

  // The facts about a file or a folder; links are followed.
  virtual FileFacts examine(const std::string& path);

  // Takes no stat per entry where the file system tells types in its directories (all common ones do).
  virtual Directory list_directory(const std::string& path) = 0;

  // Paths mean to the kernel what they mean here, so that reads may be given to it directly (io_uring).
  virtual bool is_the_kernels() const noexcept { return false; }
};

FileSystem& posix_file_system();

// A reader of `bytes` bytes from `begin` on in a file without a name; `path` stands in messages.
std::unique_ptr<FileReader> make_file_reader(std::shared_ptr<const class UniqueFd> fd, uint64_t begin, uint64_t bytes,
                                             const std::string& path);

// Creates or replaces `path` with the parts, one after the other; an Error names the path. Not atomic: a reader may see
// the file growing. Folders on the way must exist.
void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts);

inline std::span<const std::byte> as_bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace penstock
