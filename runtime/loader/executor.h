// An executor makes chunks: a pool of CPU threads, alone or with GPUs.
//
//   executor.submit(work);                      // from the loader's event loop
//   while (auto done = executor.next_done()) …  // when done_fd() is readable
//
// Works are begun in the order of submission; several may be under way. A work is the executor's from submit() until
// next_done() returns it: only then may anybody else touch its chunk buffer.
// With GPUs the threads read and draw, decode the entropy of progressive files and the like, and leave the rest of an
//   image to a GPU that takes it (gpu/in_flight_batches.h). All other images they make themselves, and all of them
//   while no GPU is free. When a GPU fails, they make again what it had. Bytes, records and statuses are the same.
// A work that may be exported has a buffer range of one GPU's memory (gpu/buffer_ranges.h), with the images that this GPU
//   has made; their records say `on_gpu`. Where a sample is an image and a label alone, its record then has the hash,
//   and the chunk buffer does not have the image; other samples' images are in the chunk buffer, too. Everything else
//   is made in the chunk buffer.
// Thread-safety: a loader calls it from its event loop alone; the two that are made here may be called from any thread,
//   as serving does. Ownership: a work, as above, and what it keeps by shared_ptr; works
//   that are not done when the executor is destroyed are dropped, after its threads have ended.
// Failure: trouble of the environment while a sample is made is the work's `failure`, and the work is done all the same;
//   submit() and next_done() say nothing of it. Making an executor may be Error(runtime): no threads, no GPU memory.
// Parts: cpu_pool.h is the pool of threads, gpu_feeder.cpp what leaves images to GPUs and takes them back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/histogram.h"
#include "runtime/gpu/buffer_ranges.h"
#include "runtime/gpu/in_flight_batches.h"
#include "runtime/protocol/chunk.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "transport/transport.h"

namespace penstock {

struct ChunkWork {
  LeaseGranted lease;
  std::shared_ptr<const SplitContext> split;
  ChunkBufferRef chunk_buffer;
  uint64_t reads = 0;           // ReadAhead's ticket
  Nanoseconds leased_ns = -1;   // when the lease came; -1: it waited for its split
  std::byte* memory = nullptr;  // of the chunk buffer; laid out by chunk_layout(split->fields(), lease.samples.size())
                                // nullptr: `make` needs none, and gets no fields

  // How to make sample `i` where it is none of the split's source; may be called again for the same. Empty: as
  // SampleMaker::make() does.
  std::function<SampleRecord(SampleMaker& maker, size_t i, std::span<std::byte* const> fields)> make;
  // What is done to sample `i` when its image is there, by one of the threads; before the work is done, and once,
  // unless the work fails. Empty: nothing.
  std::function<void(size_t i)> finish;
  // Called with the work when it is done, by the thread that has done the last of it; must not throw. Empty: it is for
  // next_done().
  std::function<void(std::unique_ptr<ChunkWork>)> on_done;

  // GPUs, a bit each, in whose memory its images may stay, for another process to read: the one that the chunk goes to.
  uint64_t exported_gpus = 0;

  // Filled by the executor.
  struct Exported {
    size_t gpu = 0;
    // room for all images of the chunk, one after the other; the work's owner exports it, or drops it
    BufferRange buffer_range;
  };
  std::optional<Exported> exported;  // only where one has made any
  std::vector<SampleRecord> records;
  std::string failure;  // the environment's fault, naming the file; empty when the chunk is whole
  int64_t busy_ns = 0;
  int64_t bytes = 0;
  int64_t pixels = 0;
};

struct ExecutorFigures {
  int64_t samples = 0;
  int64_t busy_ns = 0;  // summed over threads
  int64_t read_ns = 0;
  int64_t python_ns = 0;  // of read_ns
  int64_t decode_ns = 0;
  int64_t augment_ns = 0;
  int64_t encoded_bytes = 0;
  Histogram sample_ns;         // a thread's time for each
  Histogram sample_bytes;      // encoded
  double sample_ns_bytes = 0;  // time times size, summed over samples: how much of the time follows from the size
  int threads = 0;
  std::vector<GpuFigures> gpus;
  int64_t fed = 0;      // images that threads left to GPUs
  int64_t feed_ns = 0;  // of decode_ns: planning those, and their coefficients or copying their bytes
  struct BySpeed {
    double gpu_share = 0;  // aimed at now, of the images that either could make
    double make_ns = 0;    // of a thread, for an image that it makes
    double feed_ns = 0;    // and for one that it leaves to a GPU, reading and all
  };
  std::optional<BySpeed> by_speed;
  int64_t remade = 0;  // images that a GPU had and did not make
  // JPEG files of fast jobs that were none for the GPUs' library, by LibraryMiss; the GPU's own stages, or the CPU,
  // made them.
  std::array<int64_t, kLibraryMisses> library_missed{};

  // Made by threads; of a running executor, too, where GPUs have some that are not done.
  int64_t cpu_images() const noexcept { return samples - fed + remade; }
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(std::unique_ptr<ChunkWork> work) = 0;
  virtual std::unique_ptr<ChunkWork> next_done() = 0;  // nullptr when nothing is done
  virtual int done_fd() const = 0;
  // Takes back a work that no thread has begun; nullptr when it is too late.
  virtual std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) = 0;
  virtual ExecutorFigures figures() const = 0;
  // What a GPU exports (InFlightOptions::exported_bytes); nullptr: nothing, or no such GPU.
  virtual BufferRanges* buffer_ranges(size_t /*gpu*/) const noexcept { return nullptr; }
};

// `cpus`: hardware threads to run on; empty: leave it to the kernel.
std::unique_ptr<Executor> make_cpu_executor(int threads, const std::vector<int>& cpus);
// Throws Error(runtime) where no GPU has the memory for a batch. `on_notice` is called, from any thread, for a GPU that
// failed or is left out from the beginning, and once for each reason why images are not left to a GPU's library though
// options.library asks for it. `cpu_fraction`: the share of the images that threads make although a GPU would take
// them. Splits with two pipelines say it themselves; where it goes by speed, it is a share of the images that are for
// GPUs.
std::unique_ptr<Executor> make_gpu_executor(int threads, const std::vector<int>& cpus,
                                            std::vector<std::unique_ptr<Gpu>> gpus, const InFlightOptions& options,
                                            std::function<void(const std::string&)> on_notice,
                                            const CpuFraction& cpu_fraction = {});

}  // namespace penstock
