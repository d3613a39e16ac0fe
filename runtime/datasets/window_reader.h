// Small parts of a file, read through a window: headers that lie near each other cost one read.
//
//   WindowReader window(file);
//   std::span<const std::byte> header = window.at(offset, 512);   // valid until the next call
//
// The caller has made sure that the part lies inside the file and is at most kWindow bytes long; beyond that it is a
// FileError as for any read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/file_system.h"

namespace penstock {

class WindowReader {
 public:
  static constexpr size_t kWindow = 4096;

  explicit WindowReader(const FileReader& file, size_t window = kWindow) : file_(file), buffer_(window) {}

  std::span<const std::byte> at(uint64_t offset, size_t bytes) {
    if (offset < begin_ || offset - begin_ > filled_ || bytes > filled_ - (offset - begin_)) {
      if (bytes > buffer_.size()) buffer_.resize(bytes);
      const uint64_t there = offset < file_.size() ? file_.size() - offset : 0;
      filled_ = 0;  // should reading fail
      const size_t wanted = std::max<size_t>(bytes, static_cast<size_t>(std::min<uint64_t>(buffer_.size(), there)));
      file_.read_at(offset, std::span(buffer_).first(wanted));
      begin_ = offset;
      filled_ = wanted;
    }
    return std::span<const std::byte>(buffer_).subspan(static_cast<size_t>(offset - begin_), bytes);
  }

 private:
  const FileReader& file_;
  std::vector<std::byte> buffer_;
  uint64_t begin_ = 0;
  size_t filled_ = 0;
};

}  // namespace penstock
