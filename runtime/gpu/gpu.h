// A GPU, as far as the loader needs one: memory, copies, the stages of batch_layout.h, and waiting.
//
//   std::unique_ptr<Gpu> gpu = open_gpu(0);                    // gpus.h
//   GpuBlock memory(*gpu, bytes, GpuMemory::device);
//   std::unique_ptr<GpuStream> stream = gpu->stream();
//   stream->upload(memory.data(), pinned.data(), n);           // in the order of the calls, none of which waits
//   stream->launch(memory.data(), launch);
//   stream->download(pinned.data(), memory.data() + at, m);
//   stream->wait(timeout_ns);                                  // until all of it is done
//   // memory that another process opens by ring->fd()
//   std::unique_ptr<ExportedMemory> ring = gpu->export_memory(bytes);
//   std::unique_ptr<GpuLink> link = gpu->link(id, end);         // to a GPU that is not reached so (gpu_link.h)
//
// The seam between what is said to a GPU and how: cuda/ says it with CUDA, played/host_gpu.h does it on this CPU, and
//   tests put faults in between. No header of CUDA is seen from here.
// Failure: GpuError, with what kind it is: memory is short (ask for less), a call failed, or the GPU is gone. After
//   `failed` and `lost` the GPU and its streams are good for nothing but being destroyed; a GPU stream's outcome is
//   unknown.
// Sharing: memory behind a descriptor lives until nobody has it open, mapped or on its way, whoever made it and
//   whatever became of them: what was written before a process died is there for the others. Nothing orders what two
//   processes tell their GPUs: the one that writes waits for its GPU stream before it says so, the one that reads waits
//   for its own before it gives the memory back. Both are said through the CPU, so there are no events between
//   processes.
// Ownership: blocks, exported memory and GPU streams must go before their GPU. A stream that is destroyed waits for
//   what it was told, as the memory it works on goes next; behind `lost` neither waits, and the memory stays until the
//   process ends.
// Thread-safety: a GPU from any thread; a GPU stream from one at a time. A call may leave the GPU current in its thread
//   (CUDA's notion): who uses CUDA there besides puts that right.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/gpu_link.h"
#include "runtime/gpu/picture_decoder.h"

namespace penstock {

enum class GpuFault : uint8_t { out_of_memory, failed, lost };

class GpuError : public Error {
 public:
  GpuError(GpuFault fault, const std::string& message, const std::string& remedy = {})
      : Error(ErrorKind::runtime, message, remedy), fault_(fault) {}
  GpuFault fault() const noexcept { return fault_; }

 private:
  GpuFault fault_;
};

struct GpuInfo {
  int number = 0;    // as the driver counts
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;
};

enum class GpuMemory : uint8_t { device, pinned };  // on the GPU; here, where copies to and from a GPU are fast

// How long the work took, by the GPU's own clock. Where several GPU streams are at work, a stage's time includes what
// the GPU did for the others meanwhile.
struct GpuTimes {
  Nanoseconds upload_ns = 0;
  Nanoseconds library_ns = 0;  // a PictureDecoder's work
  std::array<Nanoseconds, kGpuStages> stage_ns{};
  Nanoseconds download_ns = 0;
  Nanoseconds copy_ns = 0;  // from GPU memory to GPU memory

  // To pixels; and all that comes behind.
  Nanoseconds decode_ns() const noexcept {
    Nanoseconds sum = library_ns;
    for (const GpuStage stage :
         {GpuStage::entropy, GpuStage::sync, GpuStage::sum, GpuStage::write, GpuStage::inverse, GpuStage::colour}) {
      sum += stage_ns[static_cast<size_t>(stage)];
    }
    return sum;
  }
  Nanoseconds augment_ns() const noexcept {
    Nanoseconds sum = library_ns - decode_ns();
    for (const Nanoseconds ns : stage_ns) sum += ns;
    return sum;
  }

  GpuTimes& operator+=(const GpuTimes& other) {
    upload_ns += other.upload_ns;
    library_ns += other.library_ns;
    for (size_t s = 0; s < kGpuStages; ++s) stage_ns[s] += other.stage_ns[s];
    download_ns += other.download_ns;
    copy_ns += other.copy_ns;
    return *this;
  }
};

class GpuStream {
 public:
  virtual ~GpuStream() = default;
  // Memory here must stay as it is until wait() returned.
  virtual void upload(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual void launch(std::byte* memory, const StageLaunch& launch) = 0;
  virtual void download(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // From GPU memory to GPU memory; one of them may be exported memory, and so another GPU's.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // GpuError(lost) when the time passes first.
  virtual void wait(Nanoseconds timeout_ns) = 0;
  // Would wait() return at once, or throw? For whoever has something else to look at meanwhile.
  virtual bool done() { return true; }
  // What libraries for such GPUs know the stream by (a cudaStream_t); nullptr: there is nothing.
  virtual void* native() const noexcept { return nullptr; }
  // The times of what was done since the last call; only after wait().
  virtual GpuTimes take_times() = 0;
  // Error(runtime), with what to do, where there is no such library.
  virtual std::unique_ptr<PictureDecoder> picture_decoder(const PictureDecoderOptions&) {
    throw Error(ErrorKind::runtime, "this GPU has no library that decodes JPEG files");
  }
};

// GPU memory that other processes can have as well; see Sharing, above. A mapping of this process, which ends with it.
class ExportedMemory {
 public:
  virtual ~ExportedMemory() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual size_t bytes() const noexcept = 0;  // at least what was asked for
  virtual int fd() const noexcept = 0;        // the exported memory's; -1: it was opened
};

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const GpuInfo& info() const noexcept = 0;
  virtual std::byte* allocate(size_t bytes, GpuMemory where) = 0;
  virtual void release(std::byte* memory, GpuMemory where) noexcept = 0;
  virtual std::unique_ptr<GpuStream> stream() = 0;
  // A GPU stream on a CUDA stream that somebody else has made on this GPU and keeps (a cudaStream_t, torch's for
  // example). Its work is ordered with theirs, and wait() and the destructor wait for both, so theirs must outlive it.
  // GPUs without CUDA streams make a stream of their own.
  virtual std::unique_ptr<GpuStream> stream_on(void* /*theirs*/) { return stream(); }
  // Error(runtime), with what to do, where memory of this GPU cannot be exported.
  virtual std::unique_ptr<ExportedMemory> export_memory(size_t bytes) = 0;
  // Opens memory that another process has exported, perhaps on another GPU, for this GPU to read. `bytes`: its bytes().
  // The call owns the descriptor, whether it succeeds or not. Error(runtime) where this GPU does not reach the memory.
  virtual std::unique_ptr<ExportedMemory> open_exported(UniqueFd fd, size_t bytes) = 0;
  // Which GPU it is, of all machines'; the same in every process. Empty: nobody knows.
  virtual std::string identity() const { return {}; }
  // Error(runtime), with what to do, where there is nothing that links GPUs; why_no_links() says it before.
  virtual std::string link_id() { throw Error(ErrorKind::runtime, why_no_links()); }
  virtual std::unique_ptr<GpuLink> link(const std::string& /*id*/, LinkEnd /*end*/) {
    throw Error(ErrorKind::runtime, why_no_links());
  }
  virtual std::string why_no_links() const { return "this GPU has no library that links it to others"; }
};

// Owned memory of a GPU.
class GpuBlock {
 public:
  GpuBlock(Gpu& gpu, size_t bytes, GpuMemory where) : gpu_(&gpu), where_(where), data_(gpu.allocate(bytes, where)) {}
  GpuBlock(GpuBlock&& other) noexcept
      : gpu_(other.gpu_), where_(other.where_), data_(std::exchange(other.data_, nullptr)) {}
  GpuBlock& operator=(GpuBlock&&) = delete;
  ~GpuBlock() {
    if (data_ != nullptr) gpu_->release(data_, where_);
  }
  std::byte* data() const noexcept { return data_; }

 private:
  Gpu* gpu_;
  GpuMemory where_;
  std::byte* data_;
};

}  // namespace penstock
