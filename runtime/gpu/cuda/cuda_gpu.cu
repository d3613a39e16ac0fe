// A GPU by CUDA: the kernels of ../kernels.h in grids, and memory, copies and waiting.
//
// Compiled to libpenstock_cuda.so (../README.md). nvJPEG is for other files, nvjpeg_*.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/gpu/cuda/cuda_exported_memory.h"
#include "runtime/gpu/cuda/cuda_link.h"
#include "runtime/gpu/cuda/stage_ranges.h"
#include "runtime/gpu/cuda_component.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/kernels.h"
#ifdef PENSTOCK_NVJPEG
#include "runtime/gpu/nvjpeg/nvjpeg_on_gpu.h"
#endif

namespace penstock {
namespace {

// A group of threads a span: all read the same part.
template <class Kernel>
__global__ void __launch_bounds__(kSpanThreads)
    run_spans(uint8_t* memory, uint8_t* outputs, const PartSpan* spans, const typename Kernel::Part* parts) {
  const PartSpan span = spans[blockIdx.x];
  const typename Kernel::Part& part = parts[span.part];
  const uint32_t unit = span.first + threadIdx.x;
  if (unit < part.units) Kernel::run(memory, outputs, part, unit);
}

template <class Kernel>
void launch_kernel(uint8_t* memory, const StageLaunch& launch, cudaStream_t stream) {
  run_spans<Kernel><<<launch.spans, kSpanThreads, 0, stream>>>(
      memory, launch.outputs, reinterpret_cast<const PartSpan*>(memory + launch.spans_at),
      reinterpret_cast<const typename Kernel::Part*>(memory + launch.parts_at));
}

GpuFault fault_of(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation: return GpuFault::out_of_memory;
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorSystemNotReady: return GpuFault::lost;
    default: return GpuFault::failed;
  }
}

void check(cudaError_t code, const GpuInfo& info, const char* what) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // the next call must not report this one again
  throw GpuError(fault_of(code), "GPU " + std::to_string(info.number) + " (" + info.name + "): " + what + ": " +
                                     cudaGetErrorString(code));
}

// Events between the things that a CUDA stream was told, for how long each took.
class Stopwatch {
 public:
  Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    for (const Mark& mark : marks_) (void)cudaEventDestroy(mark.event);
  }

  // Before the first thing, and behind each: what it was. The time goes there.
  cudaError_t mark(cudaStream_t stream, Nanoseconds GpuTimes::*member) { return add(stream, {nullptr, member, -1}); }
  cudaError_t mark(cudaStream_t stream, GpuStage stage) {
    return add(stream, {nullptr, nullptr, static_cast<int>(stage)});
  }
  cudaError_t begin(cudaStream_t stream) { return used_ > 0 ? cudaSuccess : add(stream, {nullptr, nullptr, -1}); }

  // When all of it is done.
  GpuTimes take() {
    GpuTimes times;
    for (size_t i = 1; i < used_; ++i) {
      float ms = 0;
      if (cudaEventElapsedTime(&ms, marks_[i - 1].event, marks_[i].event) != cudaSuccess) {
        (void)cudaGetLastError();
        continue;
      }
      const auto ns = static_cast<Nanoseconds>(static_cast<double>(ms) * 1e6);
      if (marks_[i].member != nullptr) times.*marks_[i].member += ns;
      if (marks_[i].stage >= 0) times.stage_ns[static_cast<size_t>(marks_[i].stage)] += ns;
    }
    used_ = 0;
    return times;
  }

 private:
  struct Mark {
    cudaEvent_t event;
    Nanoseconds GpuTimes::*member;
    int stage;
  };
  cudaError_t add(cudaStream_t stream, Mark mark) {
    if (used_ == marks_.size()) {
      if (const cudaError_t code = cudaEventCreate(&mark.event); code != cudaSuccess) return code;
      marks_.push_back(mark);
    } else {
      mark.event = marks_[used_].event;
      marks_[used_] = mark;
    }
    return cudaEventRecord(marks_[used_++].event, stream);
  }

  std::vector<Mark> marks_;
  size_t used_ = 0;
};

const char* name_of(GpuStage stage) {
  switch (stage) {
    case GpuStage::entropy: return "entropy";
    case GpuStage::sync: return "sync";
    case GpuStage::sum: return "sum";
    case GpuStage::write: return "write";
    case GpuStage::inverse: return "inverse";
    case GpuStage::colour: return "colour";
    case GpuStage::across: return "across";
    case GpuStage::down: return "down";
    case GpuStage::place: return "place";
    case GpuStage::point: return "point";
    case GpuStage::tally: return "tally";
    case GpuStage::tone: return "tone";
    case GpuStage::smooth: return "smooth";
    case GpuStage::blur_across: return "blur_across";
    case GpuStage::blur_down: return "blur_down";
    case GpuStage::warp: return "warp";
    case GpuStage::gather: return "gather";
    case GpuStage::finish: return "finish";
    case GpuStage::hash: return "hash";
    case GpuStage::digest: return "digest";
  }
  return "?";
}

class CudaStream final : public GpuStream {
 public:
  explicit CudaStream(const GpuInfo& info, Hanging hanging) : info_(info), hanging_(std::move(hanging)) {
    use();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), info_, "making a CUDA stream");
  }
  // Somebody else's.
  CudaStream(const GpuInfo& info, Hanging hanging, cudaStream_t stream)
      : info_(info), hanging_(std::move(hanging)), stream_(stream), owned_(false) {}
  ~CudaStream() override {
    // The owner of the memory releases it next. A GPU that hangs is not waited for: its CUDA stream stays.
    try {
      if (*hanging_) return;
      wait(10 * kSecond);
      if (owned_) (void)cudaStreamDestroy(stream_);
    } catch (const Error&) {
    }
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void upload(std::byte* to, const std::byte* from, size_t bytes) override {
    const StageRange range("upload");
    use();
    begin();
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), info_, "copying to it");
    time(stopwatch_.mark(stream_, &GpuTimes::upload_ns));
  }
  void download(std::byte* to, const std::byte* from, size_t bytes) override {
    const StageRange range("download");
    use();
    begin();
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), info_, "copying from it");
    time(stopwatch_.mark(stream_, &GpuTimes::download_ns));
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    const StageRange range("copy");
    use();
    begin();
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), info_, "copying within it");
    time(stopwatch_.mark(stream_, &GpuTimes::copy_ns));
  }

  void launch(std::byte* at, const StageLaunch& stage) override {
    const StageRange range(name_of(stage.stage));
    use();
    begin();
    auto* const memory = reinterpret_cast<uint8_t*>(at);
    with_kernel(stage.stage, [&]<class Kernel>() { launch_kernel<Kernel>(memory, stage, stream_); });
    check(cudaGetLastError(), info_, "starting a kernel");
    time(stopwatch_.mark(stream_, stage.stage));
  }

  void wait(Nanoseconds timeout_ns) override {
    const StageRange range("wait");
    use();
    const MonotonicClock clock;
    const Nanoseconds begun = clock.now();
    for (;;) {
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state != cudaErrorNotReady) {
        check(state, info_, "a kernel or copy");
        return;
      }
      const Nanoseconds waited = clock.now() - begun;
      if (waited > timeout_ns) {
        *hanging_ = true;
        throw GpuError(GpuFault::lost, "GPU " + std::to_string(info_.number) + " (" + info_.name +
                                           ") has not finished its work for " + std::to_string(timeout_ns / kSecond) +
                                           " s");
      }
      // Work takes a millisecond or so; a thread that spins for it takes a core from decoding.
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::clamp<Nanoseconds>(waited / 8, 10'000, 500'000)));
    }
  }
  bool done() override {
    use();
    return cudaStreamQuery(stream_) != cudaErrorNotReady;  // an error is wait()'s to tell: it stays
  }
  void* native() const noexcept override { return stream_; }
  GpuTimes take_times() override {
    use();
    return stopwatch_.take();
  }
  std::unique_ptr<PictureDecoder> picture_decoder(const PictureDecoderOptions& options) override;

 private:
#ifdef PENSTOCK_NVJPEG
  class Pictures;
#endif
  void use() const {
    check(cudaSetDevice(info_.number), info_, "choosing it");
  }
  void begin() {
    time(stopwatch_.begin(stream_));
  }
  void time(cudaError_t code) const {
    check(code, info_, "timing its work");
  }

  GpuInfo info_;
  Hanging hanging_;
  cudaStream_t stream_ = nullptr;
  bool owned_ = true;
  Stopwatch stopwatch_;
};

#ifdef PENSTOCK_NVJPEG

class CudaStream::Pictures final : public PictureDecoder {
 public:
  Pictures(CudaStream& stream, const PictureDecoderOptions& options)
      : stream_(stream),
        decoder_(open_nvjpeg(
            stream.info_.number, stream.stream_, [&stream] { stream.wait(10 * kSecond); }, options)) {}
  ~Pictures() override { (void)cudaSetDevice(stream_.info_.number); }  // for what the library gives back
  Pictures(const Pictures&) = delete;
  Pictures& operator=(const Pictures&) = delete;

  const PictureDecoderFacts& facts() const noexcept override { return decoder_->facts(); }
  const std::string& reason(Refusal refusal) const noexcept override { return decoder_->reason(refusal); }
  void decode(std::byte* memory, std::span<LibraryPicture> pictures) override {
    const StageRange range("nvjpeg");
    stream_.use();
    stream_.begin();
    decoder_->decode(memory, pictures);
    // The library may have left an error that is its own; a GPU that failed says so again.
    (void)cudaGetLastError();
    stream_.time(stream_.stopwatch_.mark(stream_.stream_, &GpuTimes::library_ns));
  }

 private:
  CudaStream& stream_;
  std::unique_ptr<PictureDecoder> decoder_;
};

std::unique_ptr<PictureDecoder> CudaStream::picture_decoder(const PictureDecoderOptions& options) {
  use();
  return std::make_unique<Pictures>(*this, options);
}

void describe_nvjpeg_on(int number, NvjpegFacts* facts) {
  try {
    find_nvjpeg(*facts);
    if (number < 0) return;
    GpuInfo info;
    info.number = number;
    CudaStream stream(info, std::make_shared<std::atomic<bool>>());
    facts->engines = stream.picture_decoder({})->facts().engines;
  } catch (const Error& error) {
    facts->error = error.message();
  }
}

#else

constexpr const char* kNoNvjpeg =
    "this build has no nvJPEG: its header was not there (launch/install_cuda.sh fetches it)";

std::unique_ptr<PictureDecoder> CudaStream::picture_decoder(const PictureDecoderOptions&) {
  throw Error(ErrorKind::runtime, kNoNvjpeg);
}

void describe_nvjpeg_on(int, NvjpegFacts* facts) {
  facts->error = kNoNvjpeg;
}

#endif

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(int number) {
    info_.number = number;
    cudaDeviceProp properties{};
    check(cudaSetDevice(number), info_, "choosing it");
    check(cudaGetDeviceProperties(&properties, number), info_, "asking for its properties");
    info_.name = properties.name;
    info_.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    check(cudaFree(nullptr), info_, "making a context");  // now, where it can still be said by name
  }
  const GpuInfo& info() const noexcept override { return info_; }

  std::byte* allocate(size_t bytes, GpuMemory where) override {
    check(cudaSetDevice(info_.number), info_, "choosing it");
    void* memory = nullptr;
    if (where == GpuMemory::device) {
      check(cudaMalloc(&memory, bytes), info_, "allocating memory");
    } else {
      check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), info_, "allocating pinned memory");
    }
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, GpuMemory where) noexcept override {
    if (*hanging_) return;
    (void)cudaSetDevice(info_.number);
    (void)(where == GpuMemory::device ? cudaFree(memory) : cudaFreeHost(memory));
  }
  std::unique_ptr<GpuStream> stream() override { return std::make_unique<CudaStream>(info_, hanging_); }
  std::unique_ptr<GpuStream> stream_on(void* theirs) override {
    return std::make_unique<CudaStream>(info_, hanging_, static_cast<cudaStream_t>(theirs));
  }
  std::unique_ptr<ExportedMemory> export_memory(size_t bytes) override {
    check(cudaSetDevice(info_.number), info_, "choosing it");
    return make_cuda_exported_memory(info_, hanging_, bytes);
  }
  std::unique_ptr<ExportedMemory> open_exported(UniqueFd fd, size_t bytes) override {
    check(cudaSetDevice(info_.number), info_, "choosing it");
    return open_cuda_exported_memory(info_, hanging_, std::move(fd), bytes);
  }
  std::string identity() const override { return cuda_identity(info_); }
  std::string why_no_links() const override { return why_no_cuda_links(); }
  std::string link_id() override {
    check(cudaSetDevice(info_.number), info_, "choosing it");
    return cuda_link_id();
  }
  std::unique_ptr<GpuLink> link(const std::string& id, LinkEnd end) override { return open_cuda_link(info_, id, end); }

 private:
  GpuInfo info_;
  Hanging hanging_ = std::make_shared<std::atomic<bool>>();
};

int count_gpus(std::string* error) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  *error = cudaGetErrorString(code);
  return -1;
}

Gpu* open_gpu(int number, std::string* error) {
  try {
    return new CudaGpu(number);
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}

CudaGpuFacts gpu_facts(int number, int count) {
  CudaGpuFacts facts;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, number) != cudaSuccess) {
    facts.name = std::string("no answer: ") + cudaGetErrorString(cudaGetLastError());
    return facts;
  }
  facts.name = properties.name;
  facts.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  facts.major = properties.major;
  facts.minor = properties.minor;
  char bus[32] = {};
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, number) == cudaSuccess) facts.bus = bus;
  for (int other = 0; other < count; ++other) {
    int reached = 0;
    if (other != number && cudaDeviceCanAccessPeer(&reached, number, other) == cudaSuccess && reached != 0) {
      facts.peers.push_back(other);
    }
  }
  return facts;
}

void describe_gpus(CudaFacts* facts) {
  (void)cudaDriverGetVersion(&facts->driver);
  (void)cudaRuntimeGetVersion(&facts->runtime);
  const int count = count_gpus(&facts->error);
  for (int number = 0; number < count; ++number) facts->gpus.push_back(gpu_facts(number, count));
}

constexpr CudaComponent kCudaComponentFunctions{kCudaComponentVersion, count_gpus, open_gpu, describe_gpus,
                                                describe_nvjpeg_on};

}  // namespace
}  // namespace penstock

extern "C" const penstock::CudaComponent* penstock_cuda_component() {
  return &penstock::kCudaComponentFunctions;
}
