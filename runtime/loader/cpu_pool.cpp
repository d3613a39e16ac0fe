#include "runtime/loader/cpu_pool.h"

#include <pthread.h>

#include <atomic>
#include <system_error>
#include <utility>

#include "runtime/base/cpu_set.h"
#include "runtime/base/error.h"

namespace penstock {

// One thread's makers, by split. They keep no split alive: one that the loader has closed may have processes and a list
// of millions of files.
class CpuPool::Makers {
 public:
  // A maker in the middle of a search for a substitute stops once `ending` is set.
  explicit Makers(const std::atomic<bool>& ending) : ending_(ending) {}

  // Good while the caller has `split`.
  SampleMaker& of(const std::shared_ptr<const SplitContext>& split) {
    for (const Entry& entry : entries_) {
      if (entry.split.lock() == split) return *entry.maker;
    }
    std::erase_if(entries_, [](const Entry& entry) { return entry.split.expired(); });
    const std::shared_ptr<const SplitContext> borrowed(std::shared_ptr<void>(), split.get());
    entries_.push_back({split, std::make_unique<SampleMaker>(borrowed)});
    entries_.back().maker->give_up_when(&ending_);
    return *entries_.back().maker;
  }

 private:
  struct Entry {
    std::weak_ptr<const SplitContext> split;
    std::unique_ptr<SampleMaker> maker;
  };
  const std::atomic<bool>& ending_;
  std::vector<Entry> entries_;
};

CpuPool::CpuPool(int threads, const std::vector<int>& cpus, PoolOffload* offload) : offload_(offload) {
  figures_.threads = threads;
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, cpus] { run(cpus); });
  } catch (const std::system_error& problem) {
    end_threads();  // no destructor will
    throw Error(ErrorKind::runtime, "cannot start " + std::to_string(threads) + " threads: " + problem.what(),
                "lower loader.threads, or raise the limits on processes and memory");
  }
}

CpuPool::~CpuPool() {
  end_threads();
  // What the offload has is written to chunk buffers until this returns.
  if (offload_ != nullptr) offload_->stop();
}

void CpuPool::submit(std::unique_ptr<ChunkWork> work) {
  const size_t samples = work->lease.samples.size();
  work->records.resize(samples);
  MutexLock lock(mutex_);
  queue_.emplace_back(*this);
  queue_.back().work = std::move(work);
  queue_.back().unfinished = samples;
  changed_.notify_all();
}

std::unique_ptr<ChunkWork> CpuPool::next_done() {
  MutexLock lock(mutex_);
  if (done_.empty()) {
    wakeup_.clear();
    return nullptr;
  }
  auto work = std::move(done_.front());
  done_.pop_front();
  return work;
}

std::unique_ptr<ChunkWork> CpuPool::withdraw(const LeaseKey& lease) {
  MutexLock lock(mutex_);
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    if (it->next != 0 || it->work->lease.lease != lease) continue;
    auto work = std::move(it->work);
    queue_.erase(it);
    return work;
  }
  return nullptr;
}

ExecutorFigures CpuPool::figures() const {
  MutexLock lock(mutex_);
  return figures_;
}

void CpuPool::come_back(PooledWork& item, std::span<const size_t> made, std::span<const size_t> unmade) {
  std::unique_ptr<ChunkWork> whole;
  {
    MutexLock lock(mutex_);
    if (!item.work->finish) made = {};
    item.finish.insert(item.finish.end(), made.begin(), made.end());
    item.again.insert(item.again.end(), unmade.begin(), unmade.end());
    item.unfinished += made.size() + unmade.size();
    figures_.remade += std::ssize(unmade);
    if (!made.empty() || !unmade.empty()) changed_.notify_all();
    --item.away;
    whole = finish_item(item);
  }
  hand_over(std::move(whole));
}

void CpuPool::end_threads() {
  ending_ = true;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void CpuPool::run(const std::vector<int>& cpus) {
  ::pthread_setname_np(::pthread_self(), "penstock-cpu");
  if (!cpus.empty()) {
    const CpuSet set(cpus);
    (void)::pthread_setaffinity_np(::pthread_self(), set.bytes(), set.get());  // a hint; the kernel may know better
  }
  const MonotonicClock clock;
  Makers makers(ending_);
  const std::unique_ptr<ThreadOffload> mine = offload_ != nullptr ? offload_->for_thread() : nullptr;
  for (;;) {
    PooledWork* item = nullptr;
    size_t sample = 0;
    Step step = Step::make;
    std::unique_ptr<ChunkWork> whole;
    bool spoilt = false;
    {
      MutexLock lock(mutex_);
      while ((item = next_item()) == nullptr) {
        if (stopping_) return;
        changed_.wait(mutex_);
      }
      if (stopping_) return;
      step = begin_step(*item, sample);
      // Once an error of the environment has spoilt the chunk, the rest of it would be work for nothing.
      spoilt = !item->work->failure.empty();
      if (spoilt) whole = end_step(*item, step, {});
    }
    if (spoilt) {
      hand_over(std::move(whole));
      continue;
    }
    // A list's elements stay where they are while others come and go, and this item cannot go before we count off.
    const Nanoseconds begun = clock.now();
    ThreadOffload* const offload = step == Step::make ? mine.get() : nullptr;
    Done done;
    try {
      if (step != Step::finish) done = make(*item, sample, makers.of(item->work->split), offload);
      if (item->work->finish && !done.feed_ns) item->work->finish(sample);
      if (offload != nullptr) offload->keep(begun);
    } catch (const std::exception& error) {
      done.feed_ns.reset();
      done.failure = error.what();
      if (offload != nullptr) offload->forget();
    }
    done.busy_ns = clock.now() - begun;
    {
      MutexLock lock(mutex_);
      if (!done.failure.empty() && item->work->failure.empty()) item->work->failure = done.failure;
      whole = end_step(*item, step, done);
    }
    hand_over(std::move(whole));
  }
}

PooledWork* CpuPool::next_item() {
  for (PooledWork& item : queue_) {
    if (!item.finish.empty() || !item.again.empty() || item.next < item.work->lease.samples.size()) return &item;
  }
  return nullptr;
}

CpuPool::Step CpuPool::begin_step(PooledWork& item, size_t& sample) {
  for (const Step step : {Step::finish, Step::again}) {
    std::vector<size_t>& samples = step == Step::finish ? item.finish : item.again;
    if (samples.empty()) continue;
    sample = samples.back();
    samples.pop_back();
    return step;
  }
  sample = item.next++;
  if (sample == 0) {
    item.layout = chunk_layout(item.work->split->fields(), std::ssize(item.work->lease.samples));
    if (offload_ != nullptr) item.notes = offload_->begin(*item.work);
  }
  return Step::make;
}

CpuPool::Done CpuPool::make(PooledWork& item, size_t sample, SampleMaker& maker, ThreadOffload* offload) {
  ChunkWork& work = *item.work;
  const FieldTable& table = work.split->fields();
  if (offload != nullptr) {
    offload->begin(item, sample, maker);
  } else {
    maker.leave_images_to(nullptr);
  }
  const MakeTimes before = maker.times();
  std::vector<std::byte*> fields;
  for (size_t f = 0; f < table.size() && work.memory != nullptr; ++f) {
    fields.push_back(work.memory + item.layout.offsets[f] + sample * table[f].bytes_per_sample());
  }
  work.records[sample] =
      work.make ? work.make(maker, sample, fields) : maker.make(work.lease.samples[sample], work.lease.epoch, fields);
  const MakeTimes after = maker.times();
  Done done;
  done.times = {after.read_ns - before.read_ns,
                after.decode_ns - before.decode_ns,
                after.augment_ns - before.augment_ns,
                after.encoded_bytes - before.encoded_bytes,
                after.source_pixels - before.source_pixels,
                after.python_ns - before.python_ns};
  if (offload != nullptr) done.feed_ns = offload->taken();
  return done;
}

std::unique_ptr<ChunkWork> CpuPool::end_step(PooledWork& item, Step step, const Done& done) {
  const MakeTimes& times = done.times;
  item.work->busy_ns += done.busy_ns;
  item.work->bytes += times.encoded_bytes;
  item.work->pixels += times.source_pixels;
  figures_.busy_ns += done.busy_ns;
  figures_.read_ns += times.read_ns;
  figures_.python_ns += times.python_ns;
  figures_.decode_ns += times.decode_ns;
  figures_.augment_ns += times.augment_ns;
  figures_.encoded_bytes += times.encoded_bytes;
  if (step == Step::make) {
    ++figures_.samples;
    figures_.sample_ns.add(done.busy_ns);
    figures_.sample_bytes.add(times.encoded_bytes);
    figures_.sample_ns_bytes += static_cast<double>(done.busy_ns) * static_cast<double>(times.encoded_bytes);
    figures_.fed += done.feed_ns ? 1 : 0;
    figures_.feed_ns += done.feed_ns.value_or(0);
  }
  if (--item.unfinished == 0 && item.notes) offload_->flush(item);
  return finish_item(item);
}

std::unique_ptr<ChunkWork> CpuPool::finish_item(PooledWork& item) {
  if (item.unfinished > 0 || item.away > 0) return nullptr;
  if (item.notes) offload_->end(item);
  std::unique_ptr<ChunkWork> work = std::move(item.work);
  queue_.remove_if([&](const PooledWork& one) { return &one == &item; });
  if (work->on_done) return work;
  done_.push_back(std::move(work));
  wakeup_.set();
  return nullptr;
}

void CpuPool::hand_over(std::unique_ptr<ChunkWork> work) {
  if (work == nullptr) return;
  const auto on_done = std::move(work->on_done);
  on_done(std::move(work));
}

std::unique_ptr<Executor> make_cpu_executor(int threads, const std::vector<int>& cpus) {
  return std::make_unique<CpuPool>(threads, cpus, nullptr);
}

}  // namespace penstock
