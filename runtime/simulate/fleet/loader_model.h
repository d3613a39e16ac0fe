// A loader in a simulated fleet: its threads, its event loop, its reads and its faults.
//
//   LeaseGranted -> queue -> threads, sample after sample -> event loop -> chunk to its receiver, word to the coordinator
//
// As loader.h and cpu_pool.h have it: threads take single samples, oldest lease first; one thread talks to the network.
//   A lease that was not begun can be taken back. Samples are read ahead in the order of the leases.
// Life of its process:  not there --joins--> at work --dies--> not there --comes back--> at work, as the next incarnation
//   Where it was given up while it was silent, it drops what it has when it hears of that, and joins again.
// Thread-safety: none. Ownership: FleetParts'.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/loader/leases_in_transit.h"
#include "runtime/simulate/fleet/fleet_parts.h"
#include "runtime/simulate/fleet/server_pool.h"

namespace penstock {

class LoaderModel {
 public:
  LoaderModel(FleetParts& parts, LoaderId id);

  void begin();  // puts what will happen to it into the loop
  void lease_came(uint32_t lease);
  void revoke(const LeaseKey& key);
  void given_up(uint32_t incarnation);
  // Its chunk buffer is back.
  void returned(uint32_t lease);

  bool alive() const noexcept { return alive_; }
  bool has(const FleetLease& lease) const noexcept { return alive_ && lease.incarnation == incarnation_; }
  int node() const noexcept { return spec().node; }
  Nanoseconds busy_ns() const noexcept { return busy_ns_; }
  int64_t chunks() const noexcept { return chunks_; }
  const FleetLoader& spec() const { return parts_.spec.loaders[static_cast<size_t>(id_)]; }

 private:
  void join();
  void join_at(Nanoseconds when);  // unless it dies before
  void die(uint32_t incarnation, std::optional<Nanoseconds> seen_after_ns);
  void draw_a_fault();
  void beat(uint32_t incarnation);
  void drop_all();
  void begin_next();
  void begin_lease(uint32_t lease);
  void made(uint32_t lease);
  void send(uint32_t lease);
  bool reads() const;  // it has a disk to read from, and has not all in memory
  void read_ahead(FleetLease& lease);
  template <class Event>
  bool postponed(Event again);  // it is stopped; `again` is called when it goes on
  Nanoseconds first_free() const noexcept {
    return spec().gpus > 0 ? std::min(threads_.first_free(), gpus_.first_free()) : threads_.first_free();
  }

  FleetParts& parts_;
  LoaderId id_;
  SpeedProfile speed_;
  ServerPool threads_;
  ServerPool gpus_;  // where there are any
  ServerPool event_loop_;
  ServerPool reads_;
  LeasesInTransit in_transit_;
  int32_t ahead_ = 0;
  std::deque<uint32_t> queue_;      // not begun
  std::vector<uint32_t> in_hand_;   // not made, begun or not
  Nanoseconds begins_at_ = kNever;  // an event is there for it
  bool alive_ = false;
  uint32_t incarnation_ = 0;
  uint32_t deaths_ = 0;
  Nanoseconds busy_ns_ = 0;
  int64_t chunks_ = 0;
};

}  // namespace penstock
