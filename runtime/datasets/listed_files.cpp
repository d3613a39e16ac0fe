#include "runtime/datasets/listed_files.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/datasets/files_here.h"

namespace penstock {
namespace {

constexpr int64_t kSettledAfterNs = 2'000'000'000;

int64_t now_ns() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
}

}  // namespace

Looked look(const FileStamps& then, FileSystem& files) {
  bool sure = true;
  for (const auto& [path, stamp] : then) {
    try {
      const FileFacts now = files.examine(path);
      if (stamp.missing || now.modified_ns != stamp.modified_ns || (!stamp.folder && now.bytes != stamp.bytes))
        return Looked::changed;
    } catch (const FileError& error) {
      if (!stamp.missing || !is_missing(error)) return Looked::changed;
    } catch (const Error&) {
      return Looked::changed;
    }
    sure = sure && stamp.settled;
  }
  return sure ? Looked::same : Looked::unsure;
}

bool same_files(const FileStamps& a, const FileStamps& b) {
  const auto files_of = [](const FileStamps& all) {
    std::vector<FileStamps::value_type> files;
    std::copy_if(all.begin(), all.end(), std::back_inserter(files),
                 [](const auto& item) { return !item.second.folder; });
    return files;
  };
  return files_of(a) == files_of(b);
}

// One call of the file system below. What it throws besides FileError is a shortage of the machine.
template <class Call>
auto ListedFiles::ask(const Call& call) {
  try {
    return call();
  } catch (const FileError& error) {
    if (may_pass(error.code())) met_trouble_ = true;
    throw;
  } catch (const Error&) {
    met_trouble_ = true;
    throw;
  }
}

FileStamps ListedFiles::finish() {
  listing_ = false;
  MutexLock lock(mutex_);
  return std::exchange(stamps_, {});
}

void ListedFiles::note(const std::string& path, FileStamp stamp) {
  MutexLock lock(mutex_);
  stamps_.emplace(path, stamp);  // the first look counts: what changes after it is a change
}

void ListedFiles::note_missing(const FileError& error, const std::string& path) {
  if (listing_ && is_missing(error)) note(path, {.missing = true});
}

void ListedFiles::note_file(const std::string& path) {
  if (!listing_) return;
  try {
    (void)examine(path);
  } catch (const FileError&) {  // as in list_directory
  }
}

bool ListedFiles::read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) {
  note_file(path);
  return ask([&] { return below_.read_file(path, max_bytes, bytes); });
}

std::unique_ptr<FileReader> ListedFiles::open_file(const std::string& path) {
  auto file = ask([&] { return below_.open_file(path); });
  if (listing_) note(path, {file->size(), file->modified_ns()});
  return file;
}

int64_t ListedFiles::file_size(const std::string& path) {
  note_file(path);
  return ask([&] { return below_.file_size(path); });
}

FileFacts ListedFiles::examine(const std::string& path) {
  try {
    const FileFacts facts = ask([&] { return below_.examine(path); });
    if (listing_) note(path, {facts.bytes, facts.modified_ns});
    return facts;
  } catch (const FileError& error) {
    note_missing(error, path);
    throw;
  }
}

Directory ListedFiles::list_directory(const std::string& path) {
  if (listing_) {
    try {
      const int64_t modified_ns = ask([&] { return below_.examine(path); }).modified_ns;  // before it is listed
      note(path, {0, modified_ns, /*folder=*/true, modified_ns < now_ns() - kSettledAfterNs});
    } catch (const FileError& error) {  // what follows says it in better words
      note_missing(error, path);
    }
  }
  return ask([&] { return below_.list_directory(path); });
}

}  // namespace penstock
