// Batches on their way through GPUs: several at a time, each with memory and a GPU stream of its own.
//
//   InFlightBatches in_flight_batches(open_gpus(choice), options, done);  // done(batch, error): see below
//   if (InFlightBatch* in_flight = in_flight_batches.take()) {  // nullptr: all are busy, or no GPU is left
//     in_flight->batch.begin(...); reserve and fill; in_flight->images.push_back({number, where the image goes});
//     // seals, copies, launches, waits, in the in-flight batch's thread
//     in_flight_batches.submit(*in_flight);
//   }
//   ...                                                     // in done(): images that are `made` are there, or error is set
//   in_flight_batches.give_back(*in_flight);
//
// States of an in-flight batch: free → take() → the caller's → submit() → its thread's → done() → the caller's →
//   give_back() → free. Only the one whose it is touches it; take(), submit() and done() hand it over with all that was
//   written.
// Memory: options.memory_bytes a GPU, in parts for its in-flight batches (equal, unless memory was short), and pinned
//   memory of three quarters of that here. Where a GPU has less, the in-flight batches are halved until they fit, so
//   that batches become smaller; a GPU on which not even kSmallestBatchBytes can be had is left out, and one that
//   fails meanwhile is too. figures() says so from the beginning.
// Failure: the constructor throws where no GPU is left, or threads cannot be had. done()'s error says which GPU
//   failed and how; what the batch held is then unmade. After anything but a want of memory the GPU is not asked
//   again: its in-flight batches are never free.
// A GPU's library (picture_decoder.h), where options.library asks for it: each in-flight batch has a decoder, and the
//   in-flight batches of that GPU three quarters of its memory, the library the rest. Where a GPU has none, or it
//   fails, figures() says why, and its in-flight batches go on without: pictures planned for it come back unmade, of
//   which refused tells how many, and why.
// Exporting, where options.exported_bytes asks for it: an InFlightImage may name a place in buffer_ranges(gpu) of its
//   in-flight batch's GPU, and the image is there too when it is `made`, or there alone, with its hash here. Where a
//   GPU exports nothing figures() says why, and all else is as without.
// Waiting: a batch that a GPU has not finished by options.timeout_ns counts as lost. With options.duty below 1 a GPU
//   has one batch at a time, and rests behind each; callers find its in-flight batches busy meanwhile, and its speed is
//   what is left.
// Thread-safety: all from any thread; done() is called by in-flight batches' threads. stop(), and so the destructor,
//   waits for batches under way; done() may still use the in-flight batches then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/hash.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/batch_builder.h"
#include "runtime/gpu/buffer_ranges.h"
#include "runtime/gpu/duty_cycle.h"
#include "runtime/gpu/gpu.h"

namespace penstock {

inline constexpr size_t kSmallestBatchBytes = size_t{1} << 20;

struct InFlightOptions {
  int64_t memory_bytes = int64_t{512} << 20;  // of a GPU
  // of a GPU: one being filled, one being made, one being fetched
  int in_flight_batches = 3;
  Nanoseconds timeout_ns = 10 * kSecond;
  double duty = 1;                          // of a GPU's time (duty_cycle.h)
  std::optional<ChromaUpsampling> library;  // jobs of arithmetic `fast`
  GpuEntropy entropy;                       // what callers of in-flight batches leave to GPUs
  int64_t exported_bytes = 0;  // of a GPU, besides memory_bytes: for images that other processes read; 0: none
};

// What a GPU's library (picture_decoder.h) has done so far.
struct GpuLibraryFigures {
  PictureDecoderFacts facts;  // name: empty: the GPU has none
  std::string failure;        // why it is not used, or no more
  int64_t images = 0;
  std::array<int64_t, kRefusals> refused{};
};

// What a GPU has exported to other processes so far.
struct GpuExportFigures {
  int64_t bytes = 0;
  std::string failure;  // why there is none
  BufferRanges::Figures buffer_ranges;
};

// What one GPU has done so far.
struct GpuFigures {
  std::string name;
  int number = 0;
  int64_t memory_bytes = 0;  // taken from it
  int in_flight_batches = 0;
  int64_t batches = 0;
  int64_t images = 0;
  int64_t uploaded_bytes = 0;
  int64_t busy_ns = 0;                       // of its in-flight batches, from upload to the last byte fetched
  int64_t active_ns = 0;                     // with a batch of one in-flight batch at least
  GpuTimes times;                            // of those batches, by stage
  int64_t deliver_ns = 0;                    // of its in-flight batches, from pinned memory to where images go
  std::string failure;                       // why it is not asked any more, or never was
  std::optional<GpuLibraryFigures> library;  // where it was asked for
  std::optional<GpuExportFigures> exported;  // the same
};

struct InFlightImage {
  size_t sample = 0;
  std::byte* image = nullptr;     // nullptr: not wanted any more
  std::byte* exported = nullptr;  // GPU memory that has it as well, once it is back; nullptr: none
  bool stays = false;             // and `image` does not get it, but `digest` its hash (BatchBuilder::set_record())
  Sum128 digest;
  bool made = false;  // once it is back; else the CPU has to make it
};

struct InFlightBatch {
  InFlightBatch(Gpu& on, size_t number_of_gpu, size_t bytes);

  size_t gpu;
  size_t memory_bytes;
  GpuBlock memory;
  GpuBlock upload;
  GpuBlock outputs;
  std::unique_ptr<GpuStream> stream;        // goes before the memory that it works on
  std::unique_ptr<PictureDecoder> decoder;  // nullptr: none; goes before the GPU stream
  BatchBuilder batch;
  std::vector<InFlightImage> images;  // by place
  size_t most_outputs(size_t bytes_each) const noexcept { return memory_bytes / 4 / bytes_each; }

  // The caller's own.
  void* owner = nullptr;
  size_t pending = 0;
  bool closed = false;
  // Images that are.
  int64_t wanted() const noexcept;

  // From the in-flight batch's thread, for done().
  // The GPU's: since its batch before this one was back, or since it had nothing to do; its rests too.
  Nanoseconds gpu_ns = 0;
  Nanoseconds deliver_ns = 0;
  GpuTimes times;
  std::array<int64_t, kRefusals> refused{};  // pictures that were planned for the library
  int64_t library_images() const noexcept;   // made
};

class InFlightBatches {
 public:
  using Done = std::function<void(InFlightBatch& in_flight, const GpuError* error)>;

  InFlightBatches(std::vector<std::unique_ptr<Gpu>> gpus, const InFlightOptions& options, Done done);
  ~InFlightBatches();

  // A free in-flight batch of the GPU where `wait` is least; without `wait` the GPUs take turns.
  InFlightBatch* take(const std::function<double(size_t gpu)>& wait = {});
  void submit(InFlightBatch& in_flight);
  void give_back(InFlightBatch& in_flight);
  void stop();
  std::vector<GpuFigures> figures() const;
  // While any GPU's library is of use: what all of those can do.
  std::optional<LibraryOffer> library() const;
  // Only for an in-flight batch that the caller has.
  bool has_library(const InFlightBatch& in_flight) const;
  // nullptr: that GPU exports nothing.
  BufferRanges* buffer_ranges(size_t gpu) const noexcept { return buffer_ranges_[gpu].get(); }

 private:
  struct Place {
    std::unique_ptr<InFlightBatch> in_flight;
    bool free = true;
    bool submitted = false;
  };

  std::optional<PictureDecoderOptions> find_library(size_t gpu, const InFlightOptions& options)
      PENSTOCK_REQUIRES(mutex_);
  void add_batches(size_t gpu, const InFlightOptions& options) PENSTOCK_REQUIRES(mutex_);
  void run(size_t place);
  void begin_batch(size_t gpu) PENSTOCK_REQUIRES(mutex_);
  void await_turn(size_t gpu) PENSTOCK_REQUIRES(mutex_);
  void end_batch(InFlightBatch& in_flight, Nanoseconds begun) PENSTOCK_REQUIRES(mutex_);
  std::optional<GpuError> attempt(InFlightBatch& in_flight) const;
  void make(InFlightBatch& in_flight) const;
  static void decode_pictures(InFlightBatch& in_flight);
  static void copy_exported(InFlightBatch& in_flight);
  static void download(InFlightBatch& in_flight);
  bool library_of(size_t gpu) const PENSTOCK_REQUIRES(mutex_);

  void add_buffer_ranges(size_t gpu) PENSTOCK_REQUIRES(mutex_);

  std::vector<std::unique_ptr<Gpu>> gpus_;
  // of each GPU; behind the in-flight batches that write there
  std::vector<std::unique_ptr<BufferRanges>> buffer_ranges_;
  InFlightOptions options_;
  Done done_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Place> places_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<GpuFigures> figures_ PENSTOCK_GUARDED_BY(mutex_);
  struct Activity {
    int batches = 0;        // under way
    Nanoseconds since = 0;  // counted so far
  };
  std::vector<Activity> activity_ PENSTOCK_GUARDED_BY(mutex_);  // of each GPU
  std::vector<DutyCycle> duty_ PENSTOCK_GUARDED_BY(mutex_);     // of each GPU
  // where take() begins to look: in-flight batches take turns
  size_t next_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  bool stopping_ PENSTOCK_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
