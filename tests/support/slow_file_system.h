// A disk far away: every read takes its time, and one that hangs does so until it is let go.
//
//   SlowFileSystem disk(std::chrono::milliseconds(5));   // reads the real one, 5 ms later
//   disk.hang("cat/3.jpg");                              // reads of paths that end so wait for release()
//   disk.release();
//
// Thread-safety: like any FileSystem.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/thread_annotations.h"

namespace penstock {

class SlowFileSystem final : public FileSystem {
 public:
  explicit SlowFileSystem(std::chrono::microseconds latency, FileSystem& disk = posix_file_system())
      : latency_(latency), disk_(disk) {}

  void hang(const std::string& path_end) {
    MutexLock lock(mutex_);
    hanging_ = path_end;
  }
  void release() {
    MutexLock lock(mutex_);
    hanging_.clear();
    changed_.notify_all();
  }
  void set_latency(std::chrono::microseconds latency) { latency_ = latency; }
  int64_t reads() const { return reads_; }
  int64_t waiting() const { return waiting_; }  // for release()

  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    wait(path);
    return disk_.read_file(path, max_bytes, bytes);
  }
  std::unique_ptr<FileReader> open_file(const std::string& path) override {
    return std::make_unique<Reader>(*this, disk_.open_file(path));
  }
  int64_t file_size(const std::string& path) override { return disk_.file_size(path); }
  Directory list_directory(const std::string& path) override { return disk_.list_directory(path); }

 private:
  class Reader final : public FileReader {
   public:
    Reader(SlowFileSystem& disk, std::unique_ptr<FileReader> file) : disk_(disk), file_(std::move(file)) {}
    const std::string& path() const noexcept override { return file_->path(); }
    uint64_t size() const noexcept override { return file_->size(); }
    int64_t modified_ns() const noexcept override { return file_->modified_ns(); }
    void read_at(uint64_t offset, std::span<std::byte> into) const override {
      disk_.wait(file_->path());
      file_->read_at(offset, into);
    }

   private:
    SlowFileSystem& disk_;
    std::unique_ptr<FileReader> file_;
  };

  void wait(const std::string& path) {
    ++reads_;
    std::this_thread::sleep_for(latency_.load());
    MutexLock lock(mutex_);
    ++waiting_;
    while (!hanging_.empty() && path.ends_with(hanging_)) changed_.wait(mutex_);
    --waiting_;
  }

  std::atomic<std::chrono::microseconds> latency_;
  FileSystem& disk_;
  Mutex mutex_;
  CondVar changed_;
  std::string hanging_ PENSTOCK_GUARDED_BY(mutex_);
  std::atomic<int64_t> reads_{0};
  std::atomic<int64_t> waiting_{0};
};

}  // namespace penstock
