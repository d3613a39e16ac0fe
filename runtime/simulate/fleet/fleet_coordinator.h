// The coordinator in a simulated fleet: the production balancer, driven by what the models say.
//
//   coordinator.receive(event);        // what arrived, in the order of arrival
//
// It shares a thread with trainer 0's receiver, and each message costs it overhead.event_ns there: where messages come
//   faster than it hears them, they queue, and grants come late. So one sees how large a fleet one coordinator serves.
// Thread-safety: none. Ownership: FleetParts'. Failure: a lease stream that the balancer fails is failure().
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/simulate/fleet/fleet_parts.h"

namespace penstock {

class FleetCoordinator {
 public:
  explicit FleetCoordinator(FleetParts& parts);

  void begin();  // its ticks
  void receive(Event event);
  void batch_buffer_free(LeaseStreamId lease_stream, int64_t step);
  void open_stream(ReceiverId receiver);
  // What a loader says counts if it is of the incarnation that joined last.
  void receive_from(LoaderId loader, uint32_t incarnation, Event event);
  void loader_joined(LoaderId loader, uint32_t incarnation);
  void loader_died(LoaderId loader, uint32_t incarnation);
  void produced(uint32_t lease);
  void accepted(uint32_t lease);
  void chunk_buffer_freed(uint32_t lease);

  const Balancer& balancer() const noexcept { return balancer_; }
  int64_t decisions() const noexcept { return decisions_; }
  int64_t grants() const noexcept { return grants_; }
  const std::string& failure() const noexcept { return failure_; }
  bool over = false;  // the job is: nothing more is put into the loop

 private:
  void decide(const Event& event);
  void carry_out(const Action& action);
  void grant(const Grant& action);
  void give_away(const BatchBufferReserved& reserved);  // by spec.policy, where that is not the balancer
  LoaderId choose(ReceiverId receiver, int64_t chunk);
  void tick();

  FleetParts& parts_;
  Balancer balancer_;
  std::deque<Event> received_;          // that its thread has not got to
  std::vector<uint32_t> incarnations_;  // that joined, by loader; 0: none, or lost
  int64_t decisions_ = 0;
  int64_t grants_ = 0;
  std::vector<LoaderId> joined_;                     // of those policies, as the next
  std::vector<BatchBufferReserved> waiting_;         // for the loaders that are there from the beginning
  std::vector<int64_t> queued_;                      // by loader: leases that are not made; of those policies
  std::set<std::pair<int64_t, LoaderId>> by_queue_;  // the same, shortest first
  SeededRandom draws_;
  std::string failure_;
};

}  // namespace penstock
