// A folder that nothing is written out of, whatever the files are called.
//
//   ContainedFolder folder("photos", false);
//   bool made = folder.write("cats/1.jpg", bytes);    // false: it was there, the same
//   folder.save();                                    // everything is on the disk
//
// Each step of a name is opened by itself and links are no steps, so that neither ".." nor a planted link leads
// elsewhere. A file appears under its name when it is whole; what a killed process leaves is one file,
// .penstock-unpack.part in the folder itself, which the next one removes.
// Ownership: the folder is locked while this lives (flock): one writer at a time. Thread-safety: one thread.
// Failure: FileError for the disk, with what to do; Error(usage) for names that lead out, for other files in the way
//   where they are not to be replaced, and for a folder that another process writes to.
#pragma once

#include <span>
#include <string>

#include "runtime/base/memory.h"

namespace penstock {

inline constexpr size_t kMaxNameStep = 255;  // bytes between slashes

class ContainedFolder {
 public:
  // Makes the folder where it does not exist. `overwrite`: files and links in the way are replaced.
  ContainedFolder(const std::string& path, bool overwrite);

  bool write(const std::string& name, std::span<const std::byte> bytes);
  void save();

 private:
  [[noreturn]] void refuse_to_replace(const std::string& name) const;
  void name_it(int parent, const std::string& leaf, const std::string& name) const;
  int enter(const std::string& folder);

  std::string path_;
  bool overwrite_;
  UniqueFd top_;
  UniqueFd parent_;  // of the file written last
  std::string entered_;
};

// Why `name` cannot be a file below a folder; empty: it can.
std::string unsafe_name(const std::string& name);

}  // namespace penstock
