// A trainer in a simulated fleet: its rank's receiver and its program.
//
// As iterations.h has it: batch buffers for so many steps ahead of the program, chunks copied by the receiver's one
//   thread, batches in order. The program asks, works for the step's time, waits for the other trainers where there is a
//   barrier, and asks again; it lets go of a batch when it has the next one.
// Thread-safety: none. Ownership: FleetParts'.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/simulate/fleet/fleet_parts.h"
#include "runtime/simulate/fleet/server_pool.h"

namespace penstock {

class TrainerModel {
 public:
  TrainerModel(FleetParts& parts, ReceiverId id);

  void open_epoch();  // asks for its lease stream
  void ready();       // it has it: tells for which steps there is room
  void ask();         // next()
  void chunk_came(uint32_t lease);

  LeaseStreamId lease_stream() const noexcept;
  int node() const noexcept { return parts_.spec.trainers[static_cast<size_t>(id_)].node; }
  bool waiting() const noexcept { return waiting_; }
  bool stepping() const noexcept { return stepping_; }
  int64_t cursor() const noexcept { return cursor_; }
  Nanoseconds waited_ns() const noexcept { return waited_ns_; }
  Nanoseconds at_barrier_ns() const noexcept { return at_barrier_ns_; }
  // From the first next() of an epoch to its last batch, of all epochs: what a job's report divides by, too.
  Nanoseconds elapsed_ns() const noexcept { return elapsed_ns_; }
  int64_t batches() const noexcept { return batches_taken_; }
  ServerPool& event_loop() noexcept { return event_loop_; }

 private:
  struct Batch {
    int32_t missing = 0;
    std::vector<bool> chunks;  // that are there
    Nanoseconds ready_at = 0;
  };
  void reserve();
  void take(uint32_t lease);
  void serve();
  void step();
  void stepped();

  FleetParts& parts_;
  ReceiverId id_;
  ServerPool event_loop_;
  std::deque<Batch> batches_;  // of steps cursor_ … next_reserve_ - 1
  int64_t cursor_ = 0;
  int64_t next_reserve_ = 0;
  int held_ = 0;
  bool open_ = false;
  bool waiting_ = false;
  bool stepping_ = false;
  Nanoseconds asked_at_ = 0;
  Nanoseconds waited_ns_ = 0;
  Nanoseconds at_barrier_ns_ = 0;
  Nanoseconds first_asked_at_ = -1;  // in this epoch
  Nanoseconds last_answered_at_ = -1;
  Nanoseconds stepped_at_ = -1;
  Nanoseconds elapsed_ns_ = 0;
  int64_t batches_taken_ = 0;
};

}  // namespace penstock
