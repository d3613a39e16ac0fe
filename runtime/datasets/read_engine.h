// Reads that somebody else carries out: by the kernel (io_uring), or by threads that wait for the disk.
//
//   std::string why;
//   std::shared_ptr<ReadEngine> engine = make_uring_engine({.reads = 32, .done = done}, why);
//   if (!engine) engine = make_thread_engine({.reads = 32, .done = done}, files);
//   engine->start(job);                    // returns at once; `done` is called once, from a thread of the engine
//   engine->cancel(job);                   // a request: `done` comes sooner, with job->good false, or as if nothing was
//   engine->stop(5 * kSecond);             // how many reads have not come back
//
// Whatever is not an ordinary read of an ordinary file (missing, a folder, a pipe, too large, shorter than it said,
//   changed on the way, an error of the disk) makes a job that is not good, without a reason: whoever wants the bytes
//   reads them himself then, and hears the reason from the file system in the words that he would have heard anyway.
// Two engines behind one interface: many containers forbid io_uring_setup, and fakes of tests are no kernel.
// Thread-safety: start() and cancel() from any thread; stop() once, at the end. Nothing here waits but stop().
// Ownership: a job belongs to whoever holds it; between start() and `done` its data are the engine's alone to write.
// Failure: none after making; where no thread can be had, every job is one that is not good, and start() itself calls
//   `done`. A read that a dead disk holds up at stop() keeps its buffer, its descriptor and the thread that waits for
//   it until the kernel gives them back, because the kernel may still write there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"

namespace penstock {

struct ReadJob {
  std::string path;
  std::shared_ptr<const FileReader> reader;  // where the file is open already
  uint64_t offset = 0;
  uint64_t bytes = 0;  // a part of the file; or, where `whole`, the most that it may have
  bool whole = false;

  std::vector<std::byte> data;
  bool good = false;
  Nanoseconds waited_ns = 0;  // for the disk; what came out of memory counts little or nothing
  std::atomic<bool> cancelled{false};
};

struct ReadEngineOptions {
  int reads = 32;  // at a time
  std::function<void(const std::shared_ptr<ReadJob>&)> done;
  std::vector<int> cpus;  // to run on; empty: leave it to the kernel
};

class ReadEngine {
 public:
  virtual ~ReadEngine() = default;
  virtual const char* name() const noexcept = 0;
  // At most `reads` that are not done yet; after stop() nothing happens.
  virtual void start(std::shared_ptr<ReadJob> job) = 0;
  virtual void cancel(const std::shared_ptr<ReadJob>& job) = 0;
  // Ends the engine's threads; jobs that were not begun are dropped without `done`.
  virtual int stop(Nanoseconds wait_limit) = 0;
};

// Null, with the reason in `why_not`, where the kernel is too old, a security profile forbids it (EPERM, ENOSYS),
// memory may not be locked (ENOMEM), no thread can be started, or the build has no liburing.
std::shared_ptr<ReadEngine> make_uring_engine(const ReadEngineOptions& options, std::string& why_not);

// At most options.reads threads, started when they are needed. `files` must outlive the engine.
std::shared_ptr<ReadEngine> make_thread_engine(const ReadEngineOptions& options, FileSystem& files);

// How often the calling thread has given the processor away to wait for something: tells a read that waited for a disk
// from one that was merely interrupted.
int64_t voluntary_switches() noexcept;

// For engines' threads: their name, their cores, and no signals of the program.
void begin_read_thread(const std::vector<int>& cpus);

}  // namespace penstock
