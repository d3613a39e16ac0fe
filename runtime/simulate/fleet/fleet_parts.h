// What the models of a simulated fleet share: the event loop, the links, the leases in progress, and each other.
//
// A lease is known by its place in `leases` until nothing refers to it any more: its loader does until its chunk buffer
//   is back, the message with its result until the coordinator has it, and the chunk until it is accepted or dropped.
// Thread-safety: none. Ownership: of all models; FleetWorld has it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/simulate/event_loop.h"
#include "runtime/simulate/fleet/fleet_links.h"
#include "runtime/simulate/fleet/fleet_spec.h"
#include "runtime/simulate/fleet/little_law.h"
#include "runtime/simulate/fleet/sample_costs.h"
#include "runtime/simulate/fleet/server_pool.h"
#include "sampler/plan.h"

namespace penstock {

class FleetCoordinator;
class LoaderModel;
class TrainerModel;
struct FleetSpan;

struct FleetLease {
  enum class Place : uint8_t { nowhere, at_loader, on_its_way };

  LeaseKey key;
  LoaderId loader = 0;
  ReceiverId receiver = 0;
  uint32_t incarnation = 0;  // of the loader that has it
  int32_t samples = 0;
  int32_t holds = 0;
  Place place = Place::nowhere;
  bool begun = false;
  Nanoseconds came_at = 0;  // to its loader
  Nanoseconds begun_at = 0;
  Nanoseconds sent_at = 0;
  Nanoseconds busy_ns = 0;                // of whoever made its samples, added
  Nanoseconds thread_ns = 0;              // of these, threads
  int64_t bytes = 0;                      // encoded
  std::vector<Nanoseconds> read_at = {};  // when each sample's bytes are there; empty: at once
};

class FleetLeases {
 public:
  uint32_t add(FleetLease lease) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(all_.size()));
      all_.emplace_back();
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    all_[place] = std::move(lease);
    return place;
  }
  FleetLease& operator[](uint32_t place) { return all_[place]; }
  void hold(uint32_t place) { ++all_[place].holds; }
  void drop(uint32_t place) {
    if (--all_[place].holds > 0) return;
    all_[place].place = FleetLease::Place::nowhere;
    free_.push_back(place);
  }
  const std::deque<FleetLease>& all() const noexcept { return all_; }

 private:
  std::deque<FleetLease> all_;
  std::vector<uint32_t> free_;
};

// A hash of everything that happens, with its time; and the text, where somebody wants to read it.
class FleetLog {
 public:
  explicit FleetLog(std::string* text) : text_(text) {}
  void note(Nanoseconds now, const char* what, int64_t a, int64_t b = 0, int64_t c = 0) {
    for (const int64_t value : {now, int64_t{what[0]}, a, b, c}) {
      hash_ = (hash_ ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
      hash_ ^= hash_ >> 29;
    }
    if (text_ != nullptr) write(now, what, a, b, c);
  }
  uint64_t hash() const noexcept { return hash_; }

 private:
  void write(Nanoseconds now, const char* what, int64_t a, int64_t b, int64_t c) {
    *text_ += std::to_string(now) + " " + what + " " + std::to_string(a) + " " + std::to_string(b) + " " +
              std::to_string(c) + "\n";
  }

  std::string* text_;
  uint64_t hash_ = 1;
};

struct FleetParts {
  FleetParts(const FleetSpec& described, uint64_t seed, std::string* text);
  ~FleetParts();  // where the models are known
  FleetParts(const FleetParts&) = delete;
  FleetParts& operator=(const FleetParts&) = delete;

  const FleetSpec& spec;
  EventLoop loop;
  SampleCosts costs;
  FleetLinks links;
  FleetLog log;
  FleetLeases leases;
  LittleLaw leases_at_loaders, chunks_on_their_way, batches_ready;
  std::vector<ServerPool> disks;     // by node, or one
  std::shared_ptr<const Plan> plan;  // of the epoch
  int64_t epoch = 0;
  int64_t steps = 0;  // of each epoch
  int32_t chunk_samples = 1;

  std::unique_ptr<FleetCoordinator> coordinator;
  std::vector<LoaderModel> loaders;
  std::vector<TrainerModel> trainers;
  std::vector<FleetSpan>* spans = nullptr;                        // wanted
  std::string* balancer_log = nullptr;                            // wanted
  std::function<void(ReceiverId)> on_stepped;                     // its program has done a step
  std::function<void(Nanoseconds waited, bool counts)> on_batch;  // one was delivered

  int64_t trainer_count() const { return std::ssize(spec.trainers); }
  int node_of_coordinator() const { return spec.trainers.front().node; }
  int32_t chunks_of(int64_t step) const {
    return static_cast<int32_t>((plan->batch_length(step) + chunk_samples - 1) / chunk_samples);
  }
  int32_t samples_of(const LeaseKey& lease) const {
    return static_cast<int32_t>(
        std::min<int64_t>(chunk_samples, plan->batch_length(lease.step) - int64_t{lease.chunk} * chunk_samples));
  }
  // The data set's sample in that row of the chunk.
  int64_t index_of(const LeaseKey& lease, ReceiverId receiver, int32_t row) const {
    const int64_t in_replica = lease.step * spec.batch_size + int64_t{lease.chunk} * chunk_samples + row;
    const int64_t replicas = trainer_count() / spec.ranks_per_replica;
    return plan->at(in_replica * replicas + receiver / spec.ranks_per_replica).index;
  }
};

}  // namespace penstock
