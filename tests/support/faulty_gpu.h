// A GPU in front of another one, that fails when told to.
//
//   auto faults = std::make_shared<GpuFaults>();
//   FaultyGpu gpu(open_host_gpu(0, bytes), faults);
//   faults->after(20, GpuFault::failed);         // the 21st call from now on, and all behind it
//   faults->once(3, GpuFault::out_of_memory);    // only the 4th
//   faults->most_bytes = 4 << 20;                // larger allocations fail
//   faults->most_exported_bytes = 0;               // larger exports fail, as where a driver knows none
//   faults->slow_ms = 50;                        // longer, every batch
//   faults->busy = [] { return true; };          // its streams are never done
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/gpu.h"

namespace penstock {

class GpuFaults {
 public:
  void after(int calls, GpuFault fault) { set(calls, fault, false); }
  void once(int calls, GpuFault fault) { set(calls, fault, true); }
  std::atomic<size_t> most_bytes = SIZE_MAX;
  std::atomic<size_t> most_exported_bytes = SIZE_MAX;
  std::atomic<int> slow_ms = 0;
  std::function<bool()> busy;  // set before there are streams

  // One of a stream's calls; waits are calls too.
  void call(const GpuInfo& info) {
    MutexLock lock(mutex_);
    if (!armed_ || left_-- > 0) return;
    if (once_) armed_ = false;
    throw GpuError(fault_, "GPU " + std::to_string(info.number) + " (" + info.name + "): a fault of the test");
  }

 private:
  void set(int calls, GpuFault fault, bool once) {
    MutexLock lock(mutex_);
    armed_ = true;
    left_ = calls;
    fault_ = fault;
    once_ = once;
  }

  Mutex mutex_;
  bool armed_ PENSTOCK_GUARDED_BY(mutex_) = false;
  bool once_ PENSTOCK_GUARDED_BY(mutex_) = false;
  int left_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  GpuFault fault_ PENSTOCK_GUARDED_BY(mutex_) = GpuFault::failed;
};

class FaultyGpu final : public Gpu {
 public:
  FaultyGpu(std::unique_ptr<Gpu> gpu, std::shared_ptr<GpuFaults> faults)
      : gpu_(std::move(gpu)), faults_(std::move(faults)) {}

  const GpuInfo& info() const noexcept override { return gpu_->info(); }
  std::byte* allocate(size_t bytes, GpuMemory where) override {
    if (bytes > faults_->most_bytes) throw GpuError(GpuFault::out_of_memory, "a GPU of the test is short of memory");
    return gpu_->allocate(bytes, where);
  }
  void release(std::byte* memory, GpuMemory where) noexcept override { gpu_->release(memory, where); }
  std::unique_ptr<GpuStream> stream() override {
    return std::make_unique<Stream>(gpu_->stream(), gpu_->info(), faults_);
  }
  std::unique_ptr<ExportedMemory> export_memory(size_t bytes) override {
    if (bytes > faults_->most_exported_bytes) throw Error(ErrorKind::runtime, "a GPU of the test exports no memory");
    return gpu_->export_memory(bytes);
  }
  std::unique_ptr<ExportedMemory> open_exported(UniqueFd fd, size_t bytes) override {
    return gpu_->open_exported(std::move(fd), bytes);
  }

 private:
  class Stream final : public GpuStream {
   public:
    Stream(std::unique_ptr<GpuStream> stream, const GpuInfo& info, std::shared_ptr<GpuFaults> faults)
        : stream_(std::move(stream)), info_(info), faults_(std::move(faults)) {}
    void upload(std::byte* to, const std::byte* from, size_t bytes) override {
      faults_->call(info_);
      stream_->upload(to, from, bytes);
    }
    void launch(std::byte* memory, const StageLaunch& launch) override {
      faults_->call(info_);
      stream_->launch(memory, launch);
    }
    void download(std::byte* to, const std::byte* from, size_t bytes) override {
      faults_->call(info_);
      stream_->download(to, from, bytes);
    }
    void copy(std::byte* to, const std::byte* from, size_t bytes) override {
      faults_->call(info_);
      stream_->copy(to, from, bytes);
    }
    void wait(Nanoseconds timeout_ns) override {
      faults_->call(info_);
      std::this_thread::sleep_for(std::chrono::milliseconds(faults_->slow_ms));
      stream_->wait(timeout_ns);
    }
    bool done() override { return !(faults_->busy && faults_->busy()) && stream_->done(); }
    GpuTimes take_times() override { return stream_->take_times(); }
    std::unique_ptr<PictureDecoder> picture_decoder(const PictureDecoderOptions& options) override {
      return stream_->picture_decoder(options);
    }

   private:
    std::unique_ptr<GpuStream> stream_;
    GpuInfo info_;
    std::shared_ptr<GpuFaults> faults_;
  };

  std::unique_ptr<Gpu> gpu_;
  std::shared_ptr<GpuFaults> faults_;
};

}  // namespace penstock
