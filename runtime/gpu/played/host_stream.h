// The stream of a GPU that is this CPU (host_gpu.h): does nothing before wait(), and then all of it in order.
//
//   HostStream stream([&stream](…) { … });
//   stream.upload(to, from, n);                          // as gpu.h
//   stream.later([…] { … }, &GpuTimes::copy_ns);         // what else shall be done there, and whose time it is
//   stream.wait(0);
//
// Thread-safety, ownership: as gpu.h. Failure: what is done later throws out of wait(), and what was behind it is
//   dropped.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/gpu/gpu.h"

namespace penstock {

class HostStream final : public GpuStream {
 public:
  using MakeDecoder = std::function<std::unique_ptr<PictureDecoder>(HostStream&)>;
  explicit HostStream(MakeDecoder make_decoder) : make_decoder_(std::move(make_decoder)) {}
  ~HostStream() override;
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void upload(std::byte* to, const std::byte* from, size_t bytes) override { copy(to, from, bytes, times_.upload_ns); }
  void download(std::byte* to, const std::byte* from, size_t bytes) override {
    copy(to, from, bytes, times_.download_ns);
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override { copy(to, from, bytes, times_.copy_ns); }
  void launch(std::byte* memory, const StageLaunch& launch) override;
  void later(std::function<void()> run, Nanoseconds GpuTimes::*time) {
    work_.push_back({std::move(run), &(times_.*time)});
  }
  void wait(Nanoseconds timeout_ns) override;
  GpuTimes take_times() override;
  std::unique_ptr<PictureDecoder> picture_decoder(const PictureDecoderOptions&) override {
    return make_decoder_(*this);
  }

 private:
  struct Work {
    std::function<void()> run;
    Nanoseconds* time;
  };
  void copy(std::byte* to, const std::byte* from, size_t bytes, Nanoseconds& time);

  MakeDecoder make_decoder_;
  std::vector<Work> work_;
  GpuTimes times_;
};

}  // namespace penstock
