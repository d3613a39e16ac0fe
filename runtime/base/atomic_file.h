// A file that appears under its name when it is whole and on the disk, or not at all.
//
//   AtomicFile file("pack/shard-00000.pack");  // writes pack/shard-00000.pack.part
//   file.write(bytes);
//   file.close();                            // fsync: from here on nothing can be lost
//   file.publish();                          // rename, and fsync of the folder
//
// A .part file that is not published is removed by the destructor; what a kill leaves is replaced by the next one.
// A link or a device of that name is replaced, not written through: whoever lets users name it looks first.
// Thread-safety: one thread. Failure: FileError naming the path (not the .part file), with what to do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/memory.h"

namespace penstock {

inline constexpr const char* kPartSuffix = ".part";

class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  uint64_t size() const noexcept { return size_; }
  void close();
  void publish();

 private:
  void flush();
  [[noreturn]] void fail(const std::string& action, int code) const;

  std::string path_;
  std::string part_;
  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
  bool published_ = false;
};

// All at once.
void write_new_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace penstock
