// A whole job in virtual time, under faults that a seed draws: the production receivers, coordinator, balancer and
// loaders, with simulated networks, executors and programs.
//
//   const WorldResult result = FaultWorld(seed).run();
//   if (!result.failure.empty()) std::cerr << "seed " << seed << ": " << result.failure;
//
// What is drawn: the shape of the job (receivers, loaders, chunk buffers, times), what programs do (pause, hold batches,
//   break off), and faults of loaders: killed, seen at once or never; stopped for a while; cut off one way or both ways;
//   slow; failing, alone or all at once as where a disk is shared; with damaged messages and chunks; asked to leave. One
//   loader at least stays healthy otherwise, unless the seed says that all are lost.
// What is checked: every batch of every program, in its order, to the last byte; both hashes against those of the same
//   job without faults; that no program waits longer than the faults explain; that the job ends, in good order, or by
//   name where all loaders are lost; what SimNetwork checks; and the budget of hedges.
// The same seed gives the same world: WorldResult::log is a hash of everything that arrived, with its time.
// Thread-safety: none. Failure: what goes wrong in the world is its result; Error(usage) for what cannot be drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/clock.h"

namespace penstock {

struct WorldResult {
  std::string failure;  // empty: everything held
  std::string hashes;   // of the stream: order_hash and pixel_hash, one after the other
  std::string log;
  int64_t batches = 0;
  int64_t losses = 0;
  int64_t returns = 0;  // of loaders that had been given up
  int64_t granted = 0;
  int64_t regranted = 0;
  int64_t hedged = 0;
  int64_t left = 0;              // loaders, in good order
  int64_t compared = 0;          // chunks that were made twice, and equal
  int64_t differences = 0;       // that ended the job, as each receiver heard of it
  bool none_was_left = false;    // all loaders were lost
  int64_t waiting_openings = 0;  // of programs whose split was not open before a lost loader was back
  Nanoseconds longest_wait_ns = 0;
  Nanoseconds end_took_ns = 0;  // from the last loader's end, where that ended the job
  Nanoseconds took_ns = 0;
};

class FaultWorld {
 public:
  struct Options {
    bool faults = true;
    bool all_lost = false;        // in the end
    bool wrong = false;           // one loader's samples are not what they should be, half of the time; no other faults
    bool damaged_chunks = false;  // chunks that arrive damaged are the only faults
    // Loaders that are given up, because they are cut off or a message of theirs is damaged, and come back, are the only
    // ones; chunk buffers are few, and what ranks say to each other crosses.
    bool returns = false;
    // The job waits for lost loaders. All of them are lost about at once, in many worlds before a split is open, and at
    // least one comes back in time; there are no other faults.
    bool waits = false;
    // Loaders can read some of the samples only, as where each node's disks have some (dataset.local); but for the one
    // that stays healthy.
    bool local = false;
    bool late = false;   // all loaders become slow at once, which makes many leases late; no other faults
    bool logged = true;  // WorldResult::log is wanted
    // Everything that arrives and happens, a line each; for looking at one world.
    std::string* text = nullptr;
  };
  explicit FaultWorld(uint64_t seed) : FaultWorld(seed, {}) {}
  FaultWorld(uint64_t seed, const Options& options);
  ~FaultWorld();

  WorldResult run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
