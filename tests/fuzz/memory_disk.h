// What fuzz targets of data sets share: a disk that is in memory, and a data set opened from it and read to its end.
//
//   MemoryDisk disk;
//   disk.add("/d/a.tar", bytes);
//   read_all(spec, disk);            // every sample; Errors are answers, anything else is a find
#pragma once

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>

#include "runtime/datasets/containers.h"
#include "runtime/datasets/table_source.h"
#include "runtime/job/job.h"
#include "tests/support/memory_file.h"

namespace penstock {

class MemoryDisk final : public FileSystem {
 public:
  void add(const std::string& path, std::span<const std::byte> bytes) { files_[path] = bytes; }

  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    const auto content = at(path);
    bytes.clear();
    if (std::ssize(content) > max_bytes) return false;
    bytes.assign(content.begin(), content.end());
    return true;
  }
  std::unique_ptr<FileReader> open_file(const std::string& path) override {
    return std::make_unique<MemoryFile>(path, at(path));
  }
  int64_t file_size(const std::string& path) override { return std::ssize(at(path)); }
  FileFacts examine(const std::string& path) override { return {at(path).size(), 0}; }
  Directory list_directory(const std::string& path) override {
    Directory out;
    for (const auto& [name, bytes] : files_) {
      if (name.starts_with(path + "/")) out.entries.push_back({name.substr(path.size() + 1), false});
    }
    return out;
  }

 private:
  std::span<const std::byte> at(const std::string& path) const {
    const auto found = files_.find(path);
    if (found == files_.end()) throw FileError(ENOENT, path, "no '" + path + "'");
    return found->second;
  }
  std::map<std::string, std::span<const std::byte>> files_;
};

inline void read_all(const Source& source) {
  SourceSample sample;
  for (int64_t i = 0; i < std::min<int64_t>(source.size(), 64); ++i) {
    DrawKey key;
    key.index = static_cast<uint64_t>(i);
    (void)source.key(i);
    (void)source.label(i);
    try {
      if (!source.load(key, sample).ok()) continue;
      // Every byte that was promised is there.
      volatile unsigned sum = 0;
      for (const std::byte byte : sample.image) sum = sum + std::to_integer<unsigned>(byte);
      for (const auto& field : sample.fields) {
        for (const std::byte byte : field) sum = sum + std::to_integer<unsigned>(byte);
      }
    } catch (const Error&) {
    }
  }
}

inline void read_all(const DatasetSpec& spec, FileSystem& disk) {
  DecodeLimits limits;
  limits.max_encoded_bytes = 1 << 20;
  try {
    auto shards = std::make_shared<ShardFiles>(disk, uint64_t{1} << 20);
    SampleTable table = list_samples({spec, *shards, disk, limits.max_encoded_bytes});
    read_all(TableSource(std::move(table), container_root(spec), limits, shards, disk));
  } catch (const Error&) {
  }
}

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

}  // namespace penstock
