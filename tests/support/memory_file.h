// A FileReader over bytes in memory: parsers under test and fuzzers read what never was a file.
//
//   MemoryFile file("shard.tar", bytes);
#pragma once

#include <cstring>
#include <string>

#include "runtime/base/file_system.h"

namespace penstock {

class MemoryFile final : public FileReader {
 public:
  MemoryFile(std::string path, std::span<const std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}
  const std::string& path() const noexcept override { return path_; }
  uint64_t size() const noexcept override { return bytes_.size(); }
  int64_t modified_ns() const noexcept override { return 0; }
  void read_at(uint64_t offset, std::span<std::byte> into) const override {
    if (offset > bytes_.size() || into.size() > bytes_.size() - offset) {
      throw FileError(0, path_, "cannot read '" + path_ + "': beyond its end");
    }
    if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace penstock
