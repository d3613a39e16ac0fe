// A file that appears under its name when it is whole and on the disk, or not at all.
//
//   AtomicFile file("pack/shard-00000.pack");  // writes pack/shard-00000.pack.1f0c77aa-90b1d2e3f4a5.part
//   file.write(bytes);
//   file.close();                            // fsync: from here on nothing can be lost
//   file.publish();                          // rename, and fsync of the folder
//
// Several writers of one path: each has a part file of its own, so none touches another's. The last rename wins, and
//   whoever reads the path meanwhile finds a whole file.
// What a kill leaves: a part file that is not published is removed by the destructor, or else by the next writer of the
//   path. A part file is locked (flock) until it has its name, and a lock vanishes with its process; so one that can be
//   locked belongs to nobody. That is certain only where both processes ask the same kernel about the same mount, which
//   is what the first number of the name stands for: NFS and FUSE may keep locks to one host or one mount, and some disks
//   have none. A part file of elsewhere is removed when nothing was written to it for a day, by the disk's own clock.
//   Should its writer live nevertheless, it gets an error, and what stands under the path stays whole.
// A link or a device of that name is replaced, not written through: whoever lets users name it looks first.
// Thread-safety: one thread. Failure: FileError naming the path (not the part file), with what to do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/memory.h"

namespace penstock {

// "a.pack" for "a.pack.1f0c77aa-90b1d2e3f4a5.part", which is being written or was left; any other name as it is.
std::string_view without_part_suffix(std::string_view name);

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
  std::string folder_;
  std::string part_;
  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
  bool published_ = false;
};

// All at once.
void write_new_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace penstock
