#include "runtime/datasets/index_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/files_here.h"
#include "runtime/datasets/folder_walk.h"
#include "runtime/datasets/image_folder.h"
#include "runtime/datasets/table_source.h"

namespace penstock {
namespace {

// Parquet files are read through an index or not at all.
std::string remedy(const DatasetSpec& dataset, const char* again) {
  return std::string("make it ") + again + "with `penstock index`" +
         (dataset.parquet.empty() ? ", or leave dataset.index out" : "");
}

std::string root_of(const DatasetSpec& dataset) {
  return container_kind(dataset).empty() ? dataset.folder : container_root(dataset);
}

// All folders of a data set of class folders, "." first, by their paths.
std::vector<TableFile> folders_below(const std::string& root, FileSystem& files) {
  std::vector<TableFile> out;
  FolderWalk walk(files, root, "");
  std::string path;
  Directory directory;
  while (walk.next(path, directory)) {
    TableFile facts;
    facts.path = path.empty() ? "." : path;
    facts.modified_ns = files.examine(root + "/" + facts.path).modified_ns;
    out.push_back(std::move(facts));
  }
  std::sort(out.begin(), out.end(), [](const TableFile& a, const TableFile& b) { return a.path < b.path; });
  return out;
}

SampleTable folder_table(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files) {
  TableBuilder table("folder");
  // Before the samples: a file that comes while they are listed makes the index old, not wrong.
  for (TableFile& folder : folders_below(dataset.folder, files)) table.add_file(std::move(folder));
  const ImageFolder folder(dataset.folder, limits.max_encoded_bytes, files, part_of(dataset));
  table.facts().options = container_options(dataset);
  table.facts().classes = folder.class_names();
  for (int64_t i = 0; i < folder.size(); ++i) table.add(folder.key(i), folder.label(i), kOwnFile, 0, 0);
  return table.finish();
}

// Up to here an index is read into memory of its own, where nothing that happens to the file can hurt; larger ones are
// mapped, and the ranks of a node share them.
constexpr size_t kLargestCopy = size_t{64} << 20;

struct Mapping {
  void* data = MAP_FAILED;
  size_t bytes = 0;
  ~Mapping() {
    if (data != MAP_FAILED) ::munmap(data, bytes);
  }
};

}  // namespace

SampleTable map_table(const std::string& path, const std::string& remedy_if_missing, FileSystem& files) {
  std::unique_ptr<FileReader> file;
  try {
    file = files.open_file(path);
  } catch (const FileError& error) {
    throw FileError(error.code(), path, error.message(), error.code() == ENOENT ? remedy_if_missing : error.remedy());
  }
  if (file->size() == 0) throw Error(ErrorKind::dataset, "it is empty");
  const auto size = static_cast<size_t>(file->size());
  if (size <= kLargestCopy || file->descriptor() < 0) {
    auto copy = std::make_shared<std::vector<uint64_t>>((size + 7) / 8);  // for the alignment
    const auto bytes = std::as_writable_bytes(std::span(*copy)).first(size);
    file->read_at(0, bytes);
    return SampleTable::parse(bytes, copy);
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->bytes = size;
  mapping->data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file->descriptor(), 0);
  if (mapping->data == MAP_FAILED) {
    const int code = errno;
    throw FileError(code, path, "cannot map '" + path + "': " + std::strerror(code));
  }
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(mapping->data), mapping->bytes);
  return SampleTable::parse(bytes, mapping);
}

namespace {

// What differs between the index and the data; empty: nothing.
std::string difference(const SampleTable& table, const DatasetSpec& dataset, const DecodeLimits& limits,
                       FileSystem& files) {
  const TableFacts& facts = table.facts();
  const std::string container = container_kind(dataset);
  const std::string kind = container.empty() ? "folder" : container;
  if (facts.kind != kind)
    return "it was made of a data set of kind '" + facts.kind.substr(0, 40) + "', and this is one of kind '" + kind +
           "'";
  if (facts.options != container_options(dataset)) {
    return "it was made with other options: " + facts.options.substr(0, 200) + ", and here it is " +
           container_options(dataset);
  }
  const uint64_t then_passed_over = facts.passed_over_above;
  if (then_passed_over != 0 && then_passed_over != static_cast<uint64_t>(limits.max_encoded_bytes)) {
    return "it was made with limits.max_encoded_bytes " + std::to_string(then_passed_over) +
           ", and records above that were not looked into; here it is " + std::to_string(limits.max_encoded_bytes);
  }
  const std::string root = root_of(dataset);
  if (!dataset.local && find_dataset_kind(kind)->place == DatasetPlace::pattern) {
    const std::vector<std::string> names = container_files(dataset, files);
    const size_t first = kind == "parquet" && !facts.files.empty() ? 1 : 0;  // after the copy
    const std::span<const TableFile> then = std::span(facts.files).subspan(first);
    for (size_t i = 0; i < std::max(names.size(), then.size()); ++i) {
      const std::string here = i < names.size() ? relative_to(root, names[i]) : "nothing";
      const std::string there = i < then.size() ? then[i].path : "nothing";
      if (here != there) return "file " + std::to_string(i) + " of the data set is " + here + ", and was " + there;
    }
  }
  if (dataset.local && kind == "folder") return {};  // a node's part of a folder has another time of change
  for (const TableFile& file : facts.files) {
    const std::string path = under_root(root, file.path);
    if (dataset.local && !is_here(path, files)) continue;
    FileFacts now;
    try {
      now = files.examine(path);
    } catch (const FileError& error) {
      if (error.code() != ENOENT) throw;
      return "'" + path + "' is gone";
    }
    if (kind != "folder" && now.bytes != file.bytes) {
      return "'" + file.path + "' has " + std::to_string(now.bytes) + " bytes, and had " + std::to_string(file.bytes);
    }
    if (!dataset.local && now.modified_ns != file.modified_ns) return "'" + file.path + "' was changed since";
  }
  return {};
}

// What writers of an index write to first: FILE.new.PID, locked while they live.
constexpr const char* kFreshSuffix = ".new.";

bool lock_at_once(const UniqueFd& fd) {
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

// Removes what killed writers have left. The lock decides, not the process number in the name, which may be another
// machine's.
void remove_leftovers(const std::string& path) noexcept try {
  namespace fs = std::filesystem;
  const fs::path parent = fs::path(path).parent_path();
  const std::string begin = fs::path(path).filename().string() + kFreshSuffix;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent.empty() ? "." : parent)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || name.find_first_not_of("0123456789", begin.size()) != std::string::npos) continue;
    const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd && lock_at_once(fd)) ::unlink(entry.path().c_str());
  }
} catch (...) {
  // A folder that cannot be listed keeps them: nothing depends on it.
}

// A process that cleans up may take the file for a leftover before it is locked: then it is made once more.
UniqueFd create_locked(const std::string& path) {
  const auto fail = [&](int code, const char* remedy) {
    throw FileError(code, path, "cannot create '" + path + "': " + std::strerror(code), remedy);
  };
  for (int i = 0; i < 5; ++i) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd && errno != EEXIST) fail(errno, "");
    // Where locks are not to be had nobody takes it away either.
    if (!fd || (!lock_at_once(fd) && errno == EWOULDBLOCK)) continue;
    struct stat status {};
    if (::fstat(fd.get(), &status) == 0 && status.st_nlink > 0) return fd;
  }
  fail(EEXIST, "another process writes it");
  return {};
}

}  // namespace

SampleTable index_table(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files, ShardFiles& shards) {
  if (!container_kind(dataset).empty()) {
    TableBuilder table(list_samples({dataset, shards, files, limits.max_encoded_bytes}));
    table.facts().options = container_options(dataset);
    return table.finish();
  }
  if (!dataset.pack.empty()) throw Error(ErrorKind::usage, "the pack '" + dataset.pack + "' has its index in it");
  if (dataset.folder.empty()) throw Error(ErrorKind::usage, dataset.title() + " has no files that could be indexed");
  return folder_table(dataset, limits, files);
}

void write_index(const SampleTable& table, const std::string& path) {
  remove_leftovers(path);
  const std::string fresh = path + kFreshSuffix + std::to_string(::getpid());
  const UniqueFd lock = create_locked(fresh);
  try {
    write_file(fresh, {table.bytes()});
    if (::rename(fresh.c_str(), path.c_str()) != 0) {
      const int code = errno;
      throw FileError(code, path, "cannot replace '" + path + "': " + std::strerror(code));
    }
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
}

SampleTable open_index(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files) {
  const std::string name = "the index '" + dataset.index + "': ";
  std::string why;
  try {
    SampleTable table = map_table(dataset.index, remedy(dataset, ""), files);
    why = difference(table, dataset, limits, files);
    if (why.empty()) return table;
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.kind(), name + error.message(), remedy(dataset, "again "));
  }
  throw Error(
      ErrorKind::dataset, name + "it does not fit '" + dataset.title() + "': " + why,
      remedy(dataset, "again ") +
          (dataset.local ? "" : "; or some files are missing on this node: copy them, or set dataset.local: true"));
}

}  // namespace penstock
