// A loader rank: takes leases, has its executor make the chunks in its chunk buffers, sends them to the receivers that
//   want them.
//
//   const std::unique_ptr<Loader> loader = make_loader(options, std::move(endpoint));
//   loader->run();           // until the coordinator says Goodbye, or is lost
//
// One thread, one event loop: endpoint, executor's done queue, timers. Executors have threads of their own and know
// nothing of the network.
//
//   LeaseGranted -> free chunk buffer of its split -> executor -> ChunkDone to the coordinator, chunk to its receiver
//                                                     `-> failed: ChunkUndone, chunk buffer free again
//   ChunkBufferReturned -> chunk buffer free, ChunkBufferFree to the coordinator (its quota counts chunk buffers)
//
// Samples of leases are read ahead in the order of the leases (datasets/read_ahead.h). While reads are slow the loader
// asks for more leases than its depth (LeasesAhead), so that there are enough reads to have under way.
// A lease may come while its split's dataset is still being listed (this loader joined late): it waits for that.
//
// A loader that was silent for too long is given up, and hears of it when it can listen again (GivenUp):
//
//   at work --GivenUp--> dropping what it has --executor idle--> at work, as the next incarnation
//
//   What it has published stays as it is until each receiver returns it: one may be reading it, and takes what fits. The
//   next incarnation has chunk buffers of its own, so that it and the coordinator agree on what is in use.
//
// Invariant: the coordinator never grants more leases than chunk buffers are free, so taking one cannot fail; where it
//   does, peers disagree: an Error.
// Failure: Error(peer_lost) when the coordinator is lost. A dead receiver only brings its chunk buffers back.
// Thread-safety: run(), or begin() and turn(), in one thread; stop() and report_json() from any; the rest before run(),
//   after it, or from what it calls. Ownership: the endpoint, the executor, splits and their chunk buffers; what
//   LoaderOptions points to must outlive it.
// Parts: loader_splits.h has the splits, their lists and chunk buffers; executor.h makes the chunks; leases_in_transit.h
//   says how many more leases to ask for; memory_exporter.h shows GPUs' memory to receivers, by gpu_links.h where no
//   descriptor gets there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/balancer/lease_rules.h"
#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/datasets/read_ahead.h"
#include "runtime/datasets/source.h"
#include "runtime/gpu/gpus.h"
#include "runtime/gpu/in_flight_batches.h"
#include "runtime/job/job.h"
#include "runtime/sample/split_context.h"
#include "transport/transport.h"

namespace penstock {

class Executor;

// What a simulation puts in the place of time, threads and disks (runtime/simulate); empty: the real ones.
struct LoaderSeams {
  const Clock* clock = nullptr;
  std::function<std::unique_ptr<Executor>()> executor;
  // In the loader's own loop, and not in a thread.
  std::function<std::shared_ptr<const SplitContext>(const ResolvedSplit& split)> open_split;
};

struct LoaderOptions {
  PeerId coordinator = 0;
  int threads = 2;
  int chunk_buffers = 16;                   // per split
  int64_t memory_bytes = int64_t{2} << 30;  // shared as memory_shares() of loader_splits.h says
  bool payload_crc = false;
  Nanoseconds heartbeat_ns = 500 * kMillisecond;
  Nanoseconds silence_ns = 0;  // of the coordinator, after which run() fails; 0: silence means nothing
  // For so long the opening of a split that fails by what may pass by itself (a disk, memory) is tried again.
  Nanoseconds retry_ns = 0;
  std::vector<int> cpus;  // for the executor's threads
  ExecutorKind executor = ExecutorKind::cpu;
  CpuFraction cpu_fraction;  // executor.h
  // where the executor has any; `loader_number` is for whoever starts several loaders on a node
  GpuChoice gpus;
  InFlightOptions in_flight_batches;
  bool gpu_links = false;       // what GPUs export is linked to trainers' GPUs that no descriptor gets to
  FileSystem* files = nullptr;  // null: the real one
  PythonSpec python;            // for datasets and transforms in Python
  bool only_here = false;       // it is the program's own: see PythonHost
  SourceBudget sources;         // of each split's dataset
  ReadAheadOptions read_ahead;  // of all splits; memory beyond the chunk buffers counts within memory_bytes
  // The budget of all splits for what is learned of their JPEG files (decode/jpeg/learned_index.h), within half of what
  // the chunk buffers leave of memory_bytes; 0: nothing is.
  int64_t index_memory_bytes = int64_t{512} << 20;
  LoaderSeams seams;
  // Hears, from any thread, what people should know though the job goes on: a worker that had to be replaced.
  std::function<void(const std::string&)> on_notice;
};

// What the job file says, with what it leaves open chosen.
LoaderOptions loader_options(const Job& job);
// LoaderOptions::silence_ns of a loader that is a process of its own. Twice lost_after_s, so that ranks that know more
// say first who is gone; and no sooner than the job gives up waiting for it, where the job waits for lost loaders.
Nanoseconds coordinator_silence_ns(const BalancerSpec& balancer);

class Loader {
 public:
  virtual ~Loader() = default;

  // Returns true when the coordinator ended the job in good order.
  virtual bool run() = 0;
  // One turn of run()'s loop, without waiting; false: that would return. For who has an event loop already; begin()
  // comes first.
  virtual void begin() = 0;
  virtual bool turn() = 0;
  // True after run() threw because the coordinator cannot be reached, so the job is over for this loader. Other errors end
  // only this loader.
  virtual bool lost_coordinator() const noexcept = 0;
  // After run(): what the coordinator said in its Goodbye.
  virtual bool all_alive() const noexcept = 0;
  virtual int exit_code() const noexcept = 0;  // of the job, by that goodbye
  // Makes run() return false soon; from any thread.
  virtual void stop() noexcept = 0;
  // Calls `ready` in the thread of run() whenever the descriptor is readable (signals of the program, its parent's end).
  virtual void watch(int fd, std::function<void()> ready) = 0;
  // It is to go: it asks the coordinator to be let go, and run() returns when it holds nothing any more and has reported.
  // Without another loader it stays. From the thread of run(), as in what watch() calls.
  virtual void leave(const std::string& reason) = 0;
  // So far; from any thread.
  virtual std::string report_json() const = 0;
};

// Throws Error(runtime) where the executor is `gpu` and there is none.
std::unique_ptr<Loader> make_loader(const LoaderOptions& options, std::unique_ptr<Endpoint> endpoint);

}  // namespace penstock
