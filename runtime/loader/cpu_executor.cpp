// A pool of CPU threads. Threads take single samples, oldest work first, so a chunk's latency is its share of the pool
// and no thread idles while any sample of any leased chunk is waiting.
#include <pthread.h>
#include <sched.h>

#include <deque>
#include <list>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/loader/executor.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

// One thread's makers, by split. They keep no split alive: one that the loader has closed may have processes and a list
// of millions of files.
class Makers {
 public:
  // Good while the caller has `split`.
  SampleMaker* of(const std::shared_ptr<const SplitContext>& split) {
    for (const Entry& entry : entries_) {
      if (entry.split.lock() == split) return entry.maker.get();
    }
    std::erase_if(entries_, [](const Entry& entry) { return entry.split.expired(); });
    const std::shared_ptr<const SplitContext> borrowed(std::shared_ptr<void>(), split.get());
    entries_.push_back({split, std::make_unique<SampleMaker>(borrowed)});
    return entries_.back().maker.get();
  }

 private:
  struct Entry {
    std::weak_ptr<const SplitContext> split;
    std::unique_ptr<SampleMaker> maker;
  };
  std::vector<Entry> entries_;
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(int threads, const std::vector<int>& cpus) {
    figures_.threads = threads;
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, cpus] { run(cpus); });
  }
  ~CpuExecutor() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(std::unique_ptr<ChunkWork> work) override {
    const size_t samples = work->lease.samples.size();
    work->records.resize(samples);
    MutexLock lock(mutex_);
    queue_.push_back({std::move(work), 0, samples, {}});
    changed_.notify_all();
  }
  std::unique_ptr<ChunkWork> next_done() override {
    MutexLock lock(mutex_);
    if (done_.empty()) {
      wakeup_.clear();
      return nullptr;
    }
    auto work = std::move(done_.front());
    done_.pop_front();
    return work;
  }
  int done_fd() const override { return wakeup_.fd(); }

  std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) override {
    MutexLock lock(mutex_);
    for (auto it = queue_.begin(); it != queue_.end(); ++it) {
      if (it->next != 0 || it->work->lease.lease != lease) continue;
      auto work = std::move(it->work);
      queue_.erase(it);
      return work;
    }
    return nullptr;
  }
  ExecutorFigures figures() const override {
    MutexLock lock(mutex_);
    return figures_;
  }

 private:
  struct Item {
    std::unique_ptr<ChunkWork> work;
    size_t next = 0;     // sample that the next thread takes
    size_t unfinished = 0;
    FieldLayout layout;
  };

  void run(const std::vector<int>& cpus) {
    ::pthread_setname_np(::pthread_self(), "penstock-cpu");
    if (!cpus.empty()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (const int cpu : cpus) CPU_SET(cpu, &set);
      (void)::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);  // a wish; the kernel may know better
    }
    const MonotonicClock clock;
    Makers makers;
    for (;;) {
      Item* item = nullptr;
      size_t sample = 0;
      {
        MutexLock lock(mutex_);
        for (;;) {
          if (stopping_) return;
          for (Item& candidate : queue_) {
            if (candidate.next < candidate.work->lease.samples.size()) {
              item = &candidate;
              break;
            }
          }
          if (item != nullptr) break;
          changed_.wait(mutex_);
        }
        sample = item->next++;
        if (sample == 0) {
          item->layout = chunk_layout(item->work->split->fields(), std::ssize(item->work->lease.samples));
        }
        // Once an error of the environment has spoilt the chunk, the rest of it would be work for nothing.
        if (!item->work->failure.empty()) {
          finish_sample(*item, 0, {});
          continue;
        }
      }
      // A list's elements stay where they are while others come and go, and this item cannot go before we count off.
      ChunkWork& work = *item->work;
      const Nanoseconds begun = clock.now();
      MakeTimes times;
      std::string failure;
      try {
        SampleMaker* const maker = makers.of(work.split);
        const MakeTimes before = maker->times();
        std::vector<std::byte*> fields;
        for (size_t f = 0; f < work.split->fields().size(); ++f) {
          fields.push_back(work.memory + item->layout.offsets[f] + sample * work.split->fields()[f].bytes_per_sample());
        }
        work.records[sample] = maker->make(work.lease.samples[sample], work.lease.epoch, fields);
        const MakeTimes after = maker->times();
        times = {after.read_ns - before.read_ns, after.decode_ns - before.decode_ns,
                 after.augment_ns - before.augment_ns, after.encoded_bytes - before.encoded_bytes,
                 after.source_pixels - before.source_pixels};
      } catch (const std::exception& error) {
        failure = error.what();
      }
      MutexLock lock(mutex_);
      if (!failure.empty() && work.failure.empty()) work.failure = failure;
      finish_sample(*item, clock.now() - begun, times);
    }
  }

  void finish_sample(Item& item, int64_t busy_ns, const MakeTimes& times) PENSTOCK_REQUIRES(mutex_) {
    item.work->busy_ns += busy_ns;
    item.work->bytes += times.encoded_bytes;
    item.work->pixels += times.source_pixels;
    ++figures_.samples;
    figures_.busy_ns += busy_ns;
    figures_.read_ns += times.read_ns;
    figures_.decode_ns += times.decode_ns;
    figures_.augment_ns += times.augment_ns;
    figures_.encoded_bytes += times.encoded_bytes;
    if (--item.unfinished > 0) return;
    done_.push_back(std::move(item.work));
    for (auto it = queue_.begin(); it != queue_.end(); ++it) {
      if (&*it == &item) {
        queue_.erase(it);
        break;
      }
    }
    wakeup_.set();
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::list<Item> queue_ PENSTOCK_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<ChunkWork>> done_ PENSTOCK_GUARDED_BY(mutex_);
  ExecutorFigures figures_ PENSTOCK_GUARDED_BY(mutex_);
  bool stopping_ PENSTOCK_GUARDED_BY(mutex_) = false;
  Wakeup wakeup_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(int threads, const std::vector<int>& cpus) {
  return std::make_unique<CpuExecutor>(threads, cpus);
}

}  // namespace penstock
