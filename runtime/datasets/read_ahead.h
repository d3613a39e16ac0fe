// Reads of samples that somebody is about to ask for, started before a decoding thread has to wait for them.
//
//   auto ahead = ReadAhead::make({.reads = 32, .memory_bytes = 64 << 20}, posix_file_system());
//   auto source = make_source(dataset, limits, ahead->files());        // reads through it
//   uint64_t ticket = ahead->plan(*source, indices);                   // in the order they will be asked for
//   source->load(key, sample);                                         // finds its bytes there, or reads as ever
//   ahead->drop(ticket);                                               // made, or taken away: what is left is given up
//   ahead->stop();
//
// Content is untouched: a read that ran ahead either has exactly the bytes that the file system would give, or is
//   forgotten, and the thread that wants them reads for itself; so every error (missing, EIO, cut short, too large)
//   comes from the file system below, in its words, at the sample that wanted the bytes.
// It follows the disk: nothing runs ahead while reads are answered from memory, as two clock readings a read tell, and
//   after a slow one, for a second, the kernel's count of times that the thread slept (`eager`: always). So it costs
//   nothing then; where reads begin to wait, it begins, and ends when they no longer do.
// Bounds: `reads` under way at a time; `memory_bytes` of data read or being read and not yet taken. Beyond it parts
//   wait, in order; whoever comes to a part that has not begun reads for himself, so nothing waits for room.
// Waiting: a thread waits only for a read that is under way, for `wait_limit_ns` at most; then it says so (on_notice),
//   by file and time, reads for itself, and nothing runs ahead for a minute.
//
// Life of a part:   queued -> started -> ready -> taken
//                     |          |         '----> dropped
//                     |          '-> failed (asked of the file system again), abandoned (its bytes go as they come)
//                     '-> asked for too early, dropped
//
// Thread-safety: everything, from any thread; `done` of the engine comes from its threads.
// Ownership: outlives the sources made with files(), which must outlive nothing else of it. plan() keeps no reference
//   to the source. stop() leaves nothing behind but what a dead disk holds (read_engine.h).
// Failure: none; where io_uring is not to be had, threads read, and figures() says why.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/datasets/read_engine.h"
#include "runtime/datasets/source.h"
#include "runtime/job/job.h"

namespace penstock {

struct ReadAheadOptions {
  int reads = 0;  // at a time; 0: nothing runs ahead
  int64_t memory_bytes = int64_t{64} << 20;
  ReadMethod method = ReadMethod::automatic;
  bool eager = false;  // whatever the disk's speed: for tests and comparisons
  Nanoseconds wait_limit_ns = 10 * kSecond;
  std::vector<int> cpus;
  std::function<void(const std::string&)> on_notice;
};

struct ReadAheadFigures {
  std::string method;       // "io_uring", "threads", or empty: nothing had to run ahead so far
  std::string why_threads;  // where io_uring was refused
  int64_t reads = 0;        // that ran ahead, and
  int64_t bytes = 0;
  int64_t taken = 0;       // parts that were there, or under way, when they were asked for
  int64_t waited = 0;      // ... of them those under way
  int64_t early = 0;       // parts that were asked for before their reads had begun
  int64_t failed = 0;      // reads left to the file system and its error
  int64_t dropped = 0;     // reads that nobody asked for
  int64_t held_bytes = 0;  // now
  int64_t under_way = 0;   // now
  int64_t waiting = 0;     // threads, for reads under way, now
};

class ReadAhead : public std::enable_shared_from_this<ReadAhead> {
 public:
  // `files` must outlive every read: the real one, or a test's.
  static std::shared_ptr<ReadAhead> make(const ReadAheadOptions& options, FileSystem& files);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  FileSystem& files() noexcept { return *front_; }

  // 0 where nothing runs ahead at the moment.
  uint64_t plan(const Source& source, const std::vector<int64_t>& indices);
  void drop(uint64_t ticket);

  // Reads are being waited for, so work known further ahead is of use.
  bool awake() const noexcept { return awake_.load(std::memory_order_relaxed); }
  void set_memory(int64_t bytes);
  ReadAheadFigures figures() const;

  // Ends everything within `wait_limit_ns`; threads that wait for a read get Error(runtime). Once.
  void stop(Nanoseconds wait_limit_ns = 5 * kSecond);

 private:
  class Front;
  class FrontReader;
  class Watch;
  struct Key {
    std::string path;
    uint64_t offset = 0;
    uint64_t bytes = FilePart::kWholeFile;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept;
  };
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  ReadAhead(const ReadAheadOptions& options, FileSystem& files);

  // The bytes of a part that ran ahead: into `whole` (moved) or `part` (copied). False: read it yourself.
  bool take(const Key& key, int64_t max_bytes, std::vector<std::byte>* whole, std::span<std::byte> part);
  // A thread waited so long for so many bytes.
  void observe(Nanoseconds waited, uint64_t bytes);
  void learn_size(size_t bytes);  // of a whole file that was not read ahead
  void finished(const std::shared_ptr<ReadJob>& job);
  void add_parts(uint64_t ticket, std::vector<FilePart>& parts) PENSTOCK_REQUIRES(mutex_);
  // What can begin now; to be started once the lock is gone.
  std::vector<EntryPtr> next_reads() PENSTOCK_REQUIRES(mutex_);
  void start(const std::vector<EntryPtr>& entries);
  void forget(const EntryPtr& entry) PENSTOCK_REQUIRES(mutex_);
  void release_memory(Entry& entry) PENSTOCK_REQUIRES(mutex_);
  std::shared_ptr<ReadEngine> engine() PENSTOCK_REQUIRES(mutex_);

  const ReadAheadOptions options_;
  FileSystem& below_;
  const MonotonicClock clock_;
  std::unique_ptr<FileSystem> front_;  // a Front
  // Hints, read without the lock: a late look costs one read that nobody hurried.
  std::atomic<bool> awake_{false};
  std::atomic<int64_t> slowness_ns_{0};
  std::atomic<Nanoseconds> look_closely_until_{0};
  std::atomic<int64_t> parts_{0};  // of table_

  mutable Mutex mutex_;
  std::unordered_map<Key, EntryPtr, KeyHash> table_ PENSTOCK_GUARDED_BY(mutex_);
  std::deque<EntryPtr> queue_ PENSTOCK_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<EntryPtr>> tickets_ PENSTOCK_GUARDED_BY(mutex_);
  std::shared_ptr<ReadEngine> engine_ PENSTOCK_GUARDED_BY(mutex_);
  uint64_t next_ticket_ PENSTOCK_GUARDED_BY(mutex_) = 1;
  int64_t memory_bytes_ PENSTOCK_GUARDED_BY(mutex_);
  int64_t reserved_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  int64_t under_way_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  double usual_bytes_ PENSTOCK_GUARDED_BY(mutex_) = 1 << 20;  // of a whole file: the largest of late
  Nanoseconds suspended_until_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  bool stopped_ PENSTOCK_GUARDED_BY(mutex_) = false;
  ReadAheadFigures figures_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock
