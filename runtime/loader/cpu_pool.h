// An executor that is a pool of CPU threads. Threads take single samples, oldest work first, so a chunk's latency is
// its share of the pool and no thread idles while any sample of any leased chunk is waiting.
//
//   CpuPool pool(threads, cpus, nullptr);     // makes everything itself: make_cpu_executor()
//   CpuPool pool(threads, cpus, &offload);    // leaves images to `offload`, which makes them elsewhere and later
//
// With a PoolOffload (gpu_feeder.cpp has the one there is) the threads make samples but for the images that it takes.
//   It gathers those in batches; one is away from its first image (PooledWork::away) until come_back(). A work is done
//   when all its samples are made and finished, and nothing of it is away.
// Calls to the offload, for one work: begin(), then for each sample its threads' begin(), take() and keep() or
//   forget(), flush() when no thread is at the work, end() before next_done() has it. begin(), flush() and end() are
//   called under the pool's lock, so the offload must not call the pool while it holds a lock that these three take.
// Thread-safety: the Executor's; come_back() from any thread. The destructor ends the threads, then stops the offload,
//   which may still call come_back(), and drops the works that are not done.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/loader/executor.h"
#include "runtime/sample/image_offload.h"
#include "transport/wakeup.h"

namespace penstock {

class CpuPool;

// What an offload keeps of a work.
struct OffloadNotes {
  virtual ~OffloadNotes() = default;
};

// A work on its way through the pool. It stays where it is until it is done.
struct PooledWork {
  explicit PooledWork(CpuPool& in) : pool(in) {}

  CpuPool& pool;
  std::unique_ptr<ChunkWork> work;
  FieldLayout layout;                   // of its chunk buffer
  std::unique_ptr<OffloadNotes> notes;  // nullptr: the pool has no offload
  std::atomic<size_t> away{0};          // the offload's batches with images of it; raised while a sample is being made

  // The pool's own.
  size_t next = 0;  // sample that the next thread takes
  size_t unfinished = 0;
  std::vector<size_t> again;   // samples whose image came back unmade
  std::vector<size_t> finish;  // samples whose image came back
};

// One thread's way to leave images to an offload.
class ThreadOffload : public ImageOffload {
 public:
  // The sample that everything else is about from now on; `maker` is to ask take() for it.
  virtual void begin(PooledWork& work, size_t sample, SampleMaker& maker) = 0;
  // What it took to hand the image over; nullopt: it was not taken.
  virtual std::optional<Nanoseconds> taken() const noexcept = 0;
  // The sample, at which the thread has been since `begun`, is whole but for an image that was taken.
  virtual void keep(Nanoseconds begun) = 0;
};

class PoolOffload {
 public:
  virtual ~PoolOffload() = default;
  virtual std::unique_ptr<ThreadOffload> for_thread() = 0;
  virtual std::unique_ptr<OffloadNotes> begin(const ChunkWork& work) = 0;
  // The threads have no more for the batch that is being gathered.
  virtual void flush(PooledWork& work) = 0;
  virtual void end(PooledWork& work) = 0;
  // Waits for everything that is away.
  virtual void stop() = 0;
};

class CpuPool final : public Executor {
 public:
  // `offload` must outlive the pool; nullptr: there is none.
  CpuPool(int threads, const std::vector<int>& cpus, PoolOffload* offload);
  ~CpuPool() override;

  void submit(std::unique_ptr<ChunkWork> work) override;
  std::unique_ptr<ChunkWork> next_done() override;
  int done_fd() const override { return wakeup_.fd(); }
  std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) override;
  ExecutorFigures figures() const override;

  // A batch with images of the work is back: the samples whose image is there (needed only where the work has a
  // `finish`), and those whose image the pool has to make. Afterwards the work may be gone.
  void come_back(PooledWork& item, std::span<const size_t> made, std::span<const size_t> unmade);

 private:
  class Makers;
  // What a thread does with a sample.
  enum class Step : uint8_t { make, again, finish };
  struct Done {
    MakeTimes times;
    Nanoseconds busy_ns = 0;
    std::optional<Nanoseconds> feed_ns;  // of it, to leave the image to the offload
    std::string failure;
  };

  void end_threads();
  void run(const std::vector<int>& cpus);
  PooledWork* next_item() PENSTOCK_REQUIRES(mutex_);
  Step begin_step(PooledWork& item, size_t& sample) PENSTOCK_REQUIRES(mutex_);
  static Done make(PooledWork& item, size_t sample, SampleMaker& maker, ThreadOffload* offload);
  // The work, where it is whole now and has an `on_done`: for hand_over().
  std::unique_ptr<ChunkWork> end_step(PooledWork& item, Step step, const Done& done) PENSTOCK_REQUIRES(mutex_);
  std::unique_ptr<ChunkWork> finish_item(PooledWork& item) PENSTOCK_REQUIRES(mutex_);
  static void hand_over(std::unique_ptr<ChunkWork> work);

  PoolOffload* const offload_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::list<PooledWork> queue_ PENSTOCK_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<ChunkWork>> done_ PENSTOCK_GUARDED_BY(mutex_);
  ExecutorFigures figures_ PENSTOCK_GUARDED_BY(mutex_);
  bool stopping_ PENSTOCK_GUARDED_BY(mutex_) = false;
  std::atomic<bool> ending_ = false;  // the same for a thread in the middle of a sample
  Wakeup wakeup_;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
