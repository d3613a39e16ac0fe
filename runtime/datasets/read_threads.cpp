#include <pthread.h>
#include <sys/resource.h>

#include <chrono>
#include <deque>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "runtime/base/cpu_set.h"
#include "runtime/base/signals_blocked.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/datasets/read_engine.h"

namespace penstock {
namespace {

void read_now(ReadJob& job, FileSystem& files) {
  try {
    if (job.whole) {
      job.good = files.read_file(job.path, static_cast<int64_t>(job.bytes), job.data);
      return;
    }
    const std::shared_ptr<const FileReader> reader = job.reader ? job.reader : files.open_file(job.path);
    job.data.resize(job.bytes);
    reader->read_at(job.offset, job.data);
    job.good = true;
  } catch (const std::exception&) {
    // The thread that wants the bytes meets the error again, at the sample concerned.
    job.good = false;
  }
}

class ThreadEngine final : public ReadEngine {
 public:
  ThreadEngine(const ReadEngineOptions& options, FileSystem& files)
      : shared_(std::make_shared<Shared>(options, files)) {}
  ~ThreadEngine() override { (void)stop(0); }

  const char* name() const noexcept override { return "threads"; }

  void start(std::shared_ptr<ReadJob> job) override {
    const std::shared_ptr<Shared> shared = shared_;
    {
      MutexLock lock(shared->mutex);
      if (shared->stopping) return;
      shared->queue.push_back(std::move(job));
      const bool enough = shared->idle >= std::ssize(shared->queue) || std::ssize(threads_) >= shared->options.reads;
      if (enough || (!add_thread() && !threads_.empty())) {
        shared->changed.notify_one();
        return;
      }
      if (!threads_.empty()) return;
      // There is nobody to read. `done` may call start(): what that leaves is given up here too, not one call deeper.
      if (std::exchange(shared->refusing, true)) return;
    }
    refuse_all(*shared);
  }

  void cancel(const std::shared_ptr<ReadJob>& job) override { job->cancelled = true; }

  int stop(Nanoseconds wait_limit) override {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + wait_limit;
    std::list<Thread> threads;
    int left = 0;
    {
      MutexLock lock(shared_->mutex);
      shared_->stopping = true;
      shared_->queue.clear();
      shared_->changed.notify_all();
      threads.swap(threads_);
      for (;;) {
        left = 0;
        for (const Thread& thread : threads) left += *thread.ended ? 0 : 1;
        const Nanoseconds more = deadline - clock.now();
        if (left == 0 || more <= 0) break;
        (void)shared_->changed.wait_for(shared_->mutex, std::chrono::microseconds(more / 1000 + 1));
      }
      // Decided under the lock: a thread that ends later frees what it holds by itself.
      for (Thread& thread : threads) {
        if (!*thread.ended) thread.thread.detach();
      }
    }
    for (Thread& thread : threads) {
      if (thread.thread.joinable()) thread.thread.join();
    }
    return left;
  }

 private:
  struct Shared {
    Shared(const ReadEngineOptions& wanted, FileSystem& below) : options(wanted), files(below) {}
    const ReadEngineOptions options;
    FileSystem& files;
    Mutex mutex;
    CondVar changed;
    std::deque<std::shared_ptr<ReadJob>> queue PENSTOCK_GUARDED_BY(mutex);
    int64_t idle PENSTOCK_GUARDED_BY(mutex) = 0;
    bool stopping PENSTOCK_GUARDED_BY(mutex) = false;
    bool refusing PENSTOCK_GUARDED_BY(mutex) = false;  // somebody is in refuse_all()
  };
  struct Thread {
    std::thread thread;
    std::shared_ptr<bool> ended = std::make_shared<bool>(false);  // under Shared::mutex
  };

  // False: the system gives no more threads (a limit of the container, memory). Under Shared::mutex.
  bool add_thread() {
    const SignalsBlocked blocked;
    const size_t before = threads_.size();
    try {
      Thread& mine = threads_.emplace_back();
      mine.thread = std::thread([shared = shared_, ended = mine.ended] {
        begin_read_thread(shared->options.cpus);
        run(*shared);
        MutexLock ending(shared->mutex);
        *ended = true;
        shared->changed.notify_all();
      });
      return true;
    } catch (const std::exception&) {
      if (threads_.size() > before) threads_.pop_back();
      return false;
    }
  }

  static void refuse_all(Shared& shared) {
    for (;;) {
      std::shared_ptr<ReadJob> job;
      {
        MutexLock lock(shared.mutex);
        if (shared.queue.empty()) {
          shared.refusing = false;
          return;
        }
        job = std::move(shared.queue.front());
        shared.queue.pop_front();
      }
      shared.options.done(job);
    }
  }

  static void run(Shared& shared) {
    const MonotonicClock clock;
    for (;;) {
      std::shared_ptr<ReadJob> job;
      {
        MutexLock lock(shared.mutex);
        ++shared.idle;
        while (!shared.stopping && shared.queue.empty()) shared.changed.wait(shared.mutex);
        --shared.idle;
        if (shared.stopping) return;
        job = std::move(shared.queue.front());
        shared.queue.pop_front();
      }
      const Nanoseconds begun = clock.now();
      const int64_t switches = voluntary_switches();
      if (!job->cancelled) read_now(*job, shared.files);
      if (voluntary_switches() != switches) job->waited_ns = clock.now() - begun;
      shared.options.done(job);
    }
  }

  std::shared_ptr<Shared> shared_;
  std::list<Thread> threads_;  // under Shared::mutex; the analysis cannot follow that through the pointer
};

}  // namespace

int64_t voluntary_switches() noexcept {
  rusage usage{};
  (void)::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

void begin_read_thread(const std::vector<int>& cpus) {
  ::pthread_setname_np(::pthread_self(), "penstock-read");
  if (cpus.empty()) return;
  const CpuSet set(cpus);
  (void)::pthread_setaffinity_np(::pthread_self(), set.bytes(), set.get());  // a hint; the kernel may know better
}

std::shared_ptr<ReadEngine> make_thread_engine(const ReadEngineOptions& options, FileSystem& files) {
  return std::make_shared<ThreadEngine>(options, files);
}

}  // namespace penstock
