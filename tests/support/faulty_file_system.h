// A disk that fails on purpose: what production does when an image cannot be read is tested with it.
//
//   FaultyFileSystem disk;                       // reads the real one
//   disk.fail_read("cat/3.jpg");                 // every path that ends so: Input/output error
//   disk.fail_nth_read(10);                      // the 10th read from now, once
//   disk.fail_next_lists(2);                     // of any folder, then no more
//   ImageFolder folder(path, limit, disk);
//
// Thread-safety: like any FileSystem; set the faults up before the threads start.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace penstock {

class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& disk = posix_file_system()) : disk_(disk) {}

  void fail_read(const std::string& path_end, int code = EIO) { reads_.push_back({path_end, code}); }
  void fail_list(const std::string& path_end, int code = EIO) { lists_.push_back({path_end, code}); }
  void fail_nth_read(int64_t n) { countdown_ = n; }
  void fail_next_lists(int64_t n) { failing_lists_ = n; }
  // From now on every read fails: the disk is gone.
  void fail_all_reads() { gone_ = true; }
  void repair() {
    reads_.clear();
    lists_.clear();
    countdown_ = 0;
    gone_ = false;
  }

  int64_t reads() const { return read_count_; }
  int64_t lists() const { return list_count_; }
  int64_t sizes() const { return size_count_; }

  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    ++read_count_;
    bytes.clear();
    if (gone_ || (countdown_ > 0 && --countdown_ == 0)) fail("read", path, EIO);
    fail_if_listed(reads_, "read", path);
    return disk_.read_file(path, max_bytes, bytes);
  }
  // Its parts fail as whole reads do.
  std::unique_ptr<FileReader> open_file(const std::string& path) override {
    if (gone_) fail("open", path, EIO);
    return std::make_unique<Reader>(*this, disk_.open_file(path));
  }
  int64_t file_size(const std::string& path) override {
    ++size_count_;
    if (gone_) fail("examine", path, EIO);
    return disk_.file_size(path);
  }
  Directory list_directory(const std::string& path) override {
    ++list_count_;
    if (failing_lists_ > 0 && failing_lists_-- > 0) fail("list folder", path, EIO);
    fail_if_listed(lists_, "list folder", path);
    return disk_.list_directory(path);
  }

 private:
  struct Fault {
    std::string path_end;
    int code;
  };

  class Reader final : public FileReader {
   public:
    Reader(FaultyFileSystem& disk, std::unique_ptr<FileReader> file) : disk_(disk), file_(std::move(file)) {}
    const std::string& path() const noexcept override { return file_->path(); }
    uint64_t size() const noexcept override { return file_->size(); }
    int64_t modified_ns() const noexcept override { return file_->modified_ns(); }
    void read_at(uint64_t offset, std::span<std::byte> into) const override {
      ++disk_.read_count_;
      if (disk_.gone_ || (disk_.countdown_ > 0 && --disk_.countdown_ == 0)) fail("read", path(), EIO);
      fail_if_listed(disk_.reads_, "read", path());
      file_->read_at(offset, into);
    }

   private:
    FaultyFileSystem& disk_;
    std::unique_ptr<FileReader> file_;
  };

  [[noreturn]] static void fail(const std::string& action, const std::string& path, int code) {
    throw FileError(code, path, "cannot " + action + " '" + path + "': " + std::strerror(code));
  }
  static void fail_if_listed(const std::vector<Fault>& faults, const std::string& action, const std::string& path) {
    for (const Fault& fault : faults) {
      if (path.ends_with(fault.path_end)) fail(action, path, fault.code);
    }
  }

  FileSystem& disk_;
  std::vector<Fault> reads_;
  std::vector<Fault> lists_;
  std::atomic<int64_t> countdown_{0};
  std::atomic<int64_t> failing_lists_{0};
  std::atomic<bool> gone_{false};
  std::atomic<int64_t> read_count_{0};
  std::atomic<int64_t> list_count_{0};
  std::atomic<int64_t> size_count_{0};
};

}  // namespace penstock
