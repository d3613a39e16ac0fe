// The coordinator: drives the balancer and holds the plans. It lives in trainer 0's receiver, because synchronous
// training ends with any trainer anyway, so it is never a separate thing to lose.
//
//   const std::unique_ptr<Coordinator> coordinator = make_coordinator(options, clock, send);   // `clock` must outlive it
//   coordinator->handle(peer, message);      // LoaderHello, OpenSplit, BatchBufferFree, ChunkDone, …
//   coordinator->tick();
//   moved = coordinator->resume();           // after `wake` was called: what waited for long work goes on
//
// What it adds to the pure balancer: the conversation with peers (runtime/protocol/messages.h), what loaders see of
//   each split (split_registry.h) and which samples lie where (sample_placement.h), the permutations (plan_cache.h; only
//   it needs them: leases carry indices), the check that all replicas open and begin the same (replica_agreement.h), and
//   the log.
// Thread-safety: of the receiver's event loop alone. Sampler files and permutations that take long are read and made by a
//   thread of its own (background_work.h), and the conversation goes on meanwhile: what a receiver says of an iteration
//   whose plan is still being made waits for it.
// Ownership: the balancer, the plans and what is known of splits; `clock` must outlive it.
// Failure: what a peer did wrong is answered to that peer (SplitRefused, LeaseStreamFailed); Error(peer_lost) where the
//   protocol is broken.
// Parts: those named above, and epoch_plan.h (from a split to a plan), balancer_options.h, balance_report.h.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/job/job.h"
#include "runtime/protocol/messages.h"

namespace penstock {

struct CoordinatorOptions {
  std::vector<PeerId> loaders;     // that are to join
  std::vector<PeerId> receivers;   // trainers, in order
  std::vector<int> nodes;          // node number of every peer, by PeerId
  std::vector<std::string> hosts;  // its host, for messages; empty: they are all on one
  BalancerSpec balancer;
  int chunk_samples = 0;       // 0: chosen
  Nanoseconds listing_ns = 0;  // see SplitRegistryOptions; balancer.retry_s at least
  bool embedded = false;       // see BalancerOptions
  bool serving = false;        // the job does not end with its programs
};

class Coordinator {
 public:
  using Send = std::function<void(PeerId, const ControlMessage&)>;
  using Notice = std::function<void(const std::string&)>;

  virtual ~Coordinator() = default;

  virtual void handle(PeerId peer, const ControlMessage& message) = 0;
  // `dead`: its process has ended; otherwise it is only silent: it is sent GivenUp, and may join again.
  virtual void peer_lost(PeerId peer, const std::string& reason, bool dead) = 0;
  // A loader has said all it has to say: one that was told to leave is told goodbye.
  virtual void reported(PeerId loader) = 0;
  virtual void tick() = 0;    // several times a second
  virtual bool resume() = 0;  // true: something went on

  // `penstock serve`: since when no program lives at any receiver, after the first came.
  virtual std::optional<Nanoseconds> idle_since() const = 0;
  // Loaders that have neither left nor been lost.
  virtual std::vector<PeerId> living_loaders() const = 0;
  // Is a loader given up, dead or gone, or did not all that loaders made arrive where it was sent? Then MPI cannot end in
  // good order.
  virtual bool any_away() const = 0;
  // Why splits were refused or lease streams failed for want of any loader, or would, where it is serving; empty: there
  // are loaders, or nobody wants any.
  virtual std::string all_lost() const = 0;
  static constexpr size_t kMostListed = 1000;

  struct Figures {
    int64_t granted = 0;
    int64_t regranted = 0;
    int64_t hedged = 0;       // of those, late by what leases usually take
    Nanoseconds busy_ns = 0;  // what coordinating took of the event loop
    // "rank 3 (loader): its socket closed; 12.3 s after the start, with 5 chunks in hand", and when it was back. The last
    // kMostListed of `losses`: a loader that comes and goes all day is listed each time.
    std::vector<std::string> lost;
    std::vector<std::string> left;  // in good order, likewise
    std::vector<std::string> back;  // loaders that were lost and have joined again, each once: "rank 3 (loader)"
    int64_t losses = 0;
    int64_t leaves = 0;
  };
  virtual Figures figures() const = 0;
  virtual nlohmann::json balance() const = 0;  // balance_report.h
};

// `notice`: what people should hear of without the job ending. `wake`: called by another thread, when resume() has
// something to do; until the destructor has returned.
std::unique_ptr<Coordinator> make_coordinator(const CoordinatorOptions& options, const Clock& clock,
                                              Coordinator::Send send, Coordinator::Notice notice = {},
                                              std::function<void()> wake = {});

}  // namespace penstock
