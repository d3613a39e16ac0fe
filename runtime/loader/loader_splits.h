// The splits that a loader has open: lists of files, chunk buffers, and what stays of them once they are closed.
//
//   LoaderSplits splits(options, endpoint, ahead, wakeup);
//   splits.prepare(prepare_split);           // lists the dataset in a thread of its own, or looks at a list again
//   // with a chunk buffer of its own; nullptr: it waits for its split, or cannot be
//   auto work = splits.lease(lease_granted);
//   for (auto& work : splits.collect()) …    // after a wakeup: splits are answered, and this waited for them
//   splits.free_chunk_buffer(chunk_buffer);  // it is home
//   splits.close(split_closed);              // nobody has it open any more
//
//   asked for --collect()--> open --close()--> closed --last buffer home--> list kept for a while, buffers given back
//                             |  ^
//                             |  '-- the same list: buffers taken back
//                             '--asked for again, buffers out--> old list and buffers set aside until they are home
//
// A split that is asked for again is looked at again, also while chunks of an iteration that ended are on their way: a
// new list gets chunk buffers of its own, and waits for those that are out where there is no room for both.
//
// Invariant: a chunk buffer is in its split's `free_chunk_buffers`, or belongs to one work, or is published, for one
//   receiver.
// Memory: chunk buffers count within loader.memory_gb; what they leave is shared by what is read ahead, what is
//   learned, and large pictures while they are made (memory_shares()).
// Thread-safety: the loader's event loop alone. Threads that list set `wakeup`.
// Ownership: lists and chunk buffers; whoever works with a split keeps its context. What the constructor takes must
//   outlive it.
// Failure: a split that cannot be opened is answered with the reason; Error(peer_lost) for leases that cannot be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/datasets/listed_files.h"
#include "runtime/datasets/read_ahead.h"
#include "runtime/loader/executor.h"
#include "runtime/protocol/messages.h"
#include "runtime/sample/split_context.h"
#include "transport/transport.h"
#include "transport/wakeup.h"

namespace penstock {

struct LoaderOptions;

// Who has what of loader.memory_gb, where chunk buffers take `chunk_buffer_bytes` of it.
struct MemoryShares {
  int64_t read_ahead = 0;  // at most, as its own key says less
  int64_t learned = 0;
  int64_t large = 0;  // pictures whose pixels take kLargeMemory and more
};
MemoryShares memory_shares(const LoaderOptions& options, int64_t chunk_buffer_bytes);

// Whether it was closed, and with it the workers in Python that it needs: its samples cannot be made any more.
bool ended(const SplitContext& context);

class LoaderSplits {
 public:
  LoaderSplits(const LoaderOptions& options, Endpoint& endpoint, ReadAhead& ahead, Wakeup& wakeup);
  ~LoaderSplits();

  void prepare(const PrepareSplit& m);
  void tell_sizes(const SizesAsked& m);
  void close(const SplitClosed& m);
  // As if each were closed, and no lease waited for one: this loader was given up. Chunk buffers that are out stay so
  // until they come home, of which the coordinator hears nothing.
  void drop_all();
  bool listing() const;  // a dataset, whose answer is still to be said
  std::vector<std::unique_ptr<ChunkWork>> collect();
  void let_kept_go();  // now and then: lists that take more than their share

  std::unique_ptr<ChunkWork> lease(LeaseGranted m);
  void revoke(const LeaseKey& lease);  // one that still waits for its split
  void free_chunk_buffer(const ChunkBufferRef& chunk_buffer);

  const LearnedMemory* learned() const noexcept { return learned_.get(); }  // nullptr: nothing is learned

  const LargeMemory& large() const noexcept { return *large_; }

  // Nobody waits for workers in Python any more, or for memory.
  void stop() noexcept {
    python_stop_.request_stop();
    large_->close();
  }
  void join();  // with the threads that list

 private:
  // What a split was listed from, and what became of it.
  struct Listed {
    std::shared_ptr<const SplitContext> context;
    FileStamps stamps;
    SplitPrepared answer;
    bool may_pass = false;  // it failed by what may pass by itself
  };
  struct Split {
    std::shared_ptr<const SplitContext> context;
    FileStamps stamps;  // of what was listed
    Fingerprint described = 0;
    Fingerprint like = 0;                                      // that it may turn out to be the same as
    std::unique_ptr<Arena> arena = std::make_unique<Arena>();  // the endpoint knows it by its place
    std::vector<uint32_t> free_chunk_buffers;
    // Lists the dataset, and then takes memory for chunk buffers, so that heartbeats go on meanwhile.
    std::thread opening;
    std::future<void> opened;  // valid until the coordinator has its answer; ready when the dataset is listed
    std::future<SharedMemory> memory;
    size_t counted = 0;  // bytes of arena_bytes_ that are its memory's while that is being taken
    int32_t max_chunk_samples = 1;
    Listed fresh;  // the opening thread's, until `opened` is ready
    SplitPrepared answer;
    std::vector<LeaseGranted> early;  // came while the dataset is being listed
    bool closed = false;              // nobody has it open: it goes with its last chunk buffer
    bool worth_keeping = true;        // its list
  };
  struct Kept {
    Fingerprint described = 0;
    Listed listed;
  };
  // A split's list and chunk buffers, when it was opened anew while chunks were on their way: they stay until those are
  // home.
  struct Leaving {
    std::shared_ptr<const SplitContext> context;
    std::unique_ptr<Arena> arena;
    std::vector<uint32_t> free_chunk_buffers;
  };
  using Splits = std::map<Fingerprint, Split>;

  Listed open(const PrepareSplit& m, Listed before) const;
  Listed open_once(const PrepareSplit& m, Listed& before) const;
  void list_anew(const PrepareSplit& m, FileSystem& files, Listed& fresh) const;
  bool in_use(const Arena& arena) const;
  void retire(Splits::iterator split);
  Listed set_aside(Splits::iterator it);
  void forget_arena(const Arena& arena);
  void let_closed_go();
  bool has_chunk_buffers_for(const Leaving& one, const std::shared_ptr<const SplitContext>& context,
                             int32_t samples) const;
  bool wants_memory(const Split& split) const;
  void take_back_chunk_buffers(Split& split);
  bool waits_for_room(const Split& split) const;
  void take_memory(Split& split);
  void make_arena(Split& split);
  std::unique_ptr<ChunkWork> begin(Split& split, LeaseGranted m);
  void send(const ControlMessage& message);  // the coordinator
  void share_memory();

  const LoaderOptions& options_;
  Endpoint& endpoint_;
  ReadAhead& ahead_;
  Wakeup& wakeup_;
  std::shared_ptr<LearnedMemory> learned_;
  std::shared_ptr<LargeMemory> large_;
  Splits splits_;
  std::list<Leaving> leaving_;
  std::deque<Kept> kept_;  // of splits that are closed, the last one at the end
  struct Use {
    PeerId receiver = 0;
    bool counted = true;  // by the coordinator
  };
  std::map<std::pair<uint32_t, uint32_t>, Use> in_use_;  // chunk buffers
  uint32_t next_arena_ = 1;
  size_t arena_bytes_ = 0;  // taken, and being taken
  std::stop_source python_stop_;
};

}  // namespace penstock
