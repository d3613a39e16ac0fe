// What a data set was listed from, so that a later look can tell cheaply whether the list still holds.
//
//   ListedFiles files(posix_file_system());                 // notes what passes through it
//   auto source = make_source(dataset, limits, files);      // the source goes on reading through it
//   const FileStamps then = files.finish();                 // folders, shards, lists: path, size, time of change
//   if (look(then, posix_file_system()) == Looked::same) ...
//
// Folders count with their times, files with sizes and times; files that were only read as samples, after finish(), do
//   not count. So a new file, a shard or list that was written anew are seen, and a picture written over in place is
//   not, which changes no list. Cost: one stat for each folder and shard.
// A folder that had changed within two seconds before it was listed may change again without another time of change
//   (file systems count in ticks, some in seconds): about such a one a look is unsure.
// Thread-safety: all functions, from any thread. Ownership: the file system below must outlive the object, and the
//   object the sources that read through it. Failure: as the file system below; look() takes trouble for a change.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/thread_annotations.h"

namespace penstock {

struct FileStamp {
  uint64_t bytes = 0;  // of a folder: 0
  int64_t modified_ns = 0;
  bool folder = false;
  bool settled = true;   // false: it may have changed once more within the same tick
  bool missing = false;  // it was looked for and not there: another node's, where dataset.local says so

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
using FileStamps = std::map<std::string, FileStamp>;

enum class Looked { same, unsure, changed };
Looked look(const FileStamps& then, FileSystem& files);

// Whether the files among them are the same, whatever became of folders: with equal lists of samples, nothing changed.
bool same_files(const FileStamps& a, const FileStamps& b);

class ListedFiles final : public FileSystem {
 public:
  explicit ListedFiles(FileSystem& below) : below_(below) {}

  FileStamps finish();
  // Whether a call failed by what may pass by itself, so that listing once more may succeed.
  bool met_trouble() const noexcept { return met_trouble_; }

  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override;
  std::unique_ptr<FileReader> open_file(const std::string& path) override;
  int64_t file_size(const std::string& path) override;
  FileFacts examine(const std::string& path) override;
  Directory list_directory(const std::string& path) override;

 private:
  void note(const std::string& path, FileStamp stamp);
  void note_missing(const FileError& error, const std::string& path);
  void note_file(const std::string& path);
  template <class Call>
  auto ask(const Call& call);

  FileSystem& below_;
  std::atomic<bool> listing_{true};
  std::atomic<bool> met_trouble_{false};
  Mutex mutex_;
  FileStamps stamps_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock
