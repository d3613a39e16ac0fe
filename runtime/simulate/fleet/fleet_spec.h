// A job and the fleet that it runs on, as the simulation has them: plain data.
//
//   FleetSpec spec;
//   spec.nodes = {{}, {}};                                    // trainers on the first, loaders on the second
//   spec.trainers = {{.node = 0, .step_ns = Distribution::constant(200 * kMillisecond)}};
//   spec.loaders = {{.node = 1, .threads = 8}, {.node = 1, .threads = 8}};
//   spec.samples.work_ns = Distribution::lognormal(8e6, 0.4);
//   const FleetResult result = simulate_fleet(spec, {.seed = 1});    // fleet_world.h
//
// Every time is in nanoseconds, every size in bytes, every speed in millionths (speed_profile.h). What the program
//   does itself (chunks, batch buffers, quotas, deadlines, hedges) is not described here: the production balancer and
//   sampler decide it, by the same options.
// Thread-safety: values. Failure: check() throws Error(usage) with the field's name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/base/clock.h"
#include "runtime/simulate/distribution.h"
#include "runtime/simulate/fleet/speed_profile.h"

namespace penstock {

// A machine, and its way to the others: its NIC, shared by what it sends and, apart, by what it gets.
struct FleetNode {
  int rack = 0;
  double bytes_per_s = 0;                      // of its NIC, each way; 0: no limit that matters
  Nanoseconds latency_ns = 50 * kMicrosecond;  // of a message to another node, one way: half of it here, half there
};

struct FleetRack {
  double bytes_per_s = 0;  // of its uplink, each way; 0: no limit
};

struct FleetLoader {
  int node = 0;
  int threads = 2;
  int32_t executor_class = 0;  // as the balancer learns costs: 0 CPU, 1 with GPUs
  SpeedProfile speed;          // of all that it does
  // Besides its threads, which leave samples to a GPU that could begin sooner: entered by hand, not measured.
  int gpus = 0;
  Nanoseconds gpu_sample_ns = 0;
  int depth = 0;          // leases at a time; 0: as lease_depth() has it for its threads
  int chunk_buffers = 0;  // 0: as loader.chunk_buffers chooses
  Nanoseconds joins_at = 0;
  // kill -9, or its node is lost: what it has is gone, and the others hear of it after `seen_after_ns`. Nothing: only by
  // its silence.
  std::optional<Nanoseconds> dies_at = {};
  std::optional<Nanoseconds> seen_after_ns = {};
  std::optional<Nanoseconds> comes_back_at = {};
};

struct FleetTrainer {
  int node = 0;
  Distribution step_ns = Distribution::constant(0);  // what the program does with a batch
};

// What a sample is, and what making it costs a thread of speed 1. A sample of the data set costs the same each time but
// for `noise`; all numbers follow from the seed and its index.
struct SampleModel {
  Distribution bytes = Distribution::constant(0);                // encoded
  std::shared_ptr<const std::vector<int64_t>> known_bytes = {};  // by index, from the data set's own; else `bytes`
  Distribution work_ns = Distribution::constant(0);              // whatever its bytes are
  double ns_per_byte = 0;                                        // and besides
  Distribution noise = Distribution::constant(1'000'000);        // times so many millionths, drawn for every chunk anew
  int64_t pixels = 0;                                            // of one, for what the balancer learns
  int64_t payload_bytes = 0;                                     // decoded, as it travels
  bool sizes_known = false;                                      // loaders can tell encoded sizes beforehand
};

// Where encoded samples come from; as a queue of its own for each node, or one that all share. Reads are served in the order
// in which leases come, so one that has to wait for a place among `reads_ahead` holds up those behind it.
struct StorageModel {
  double bytes_per_s = 0;                               // 0: it costs nothing
  double reads_per_s = 0;                               // 0: no limit
  Distribution latency_ns = Distribution::constant(0);  // of one read, whatever else is under way
  bool shared = false;                                  // one file server; else each node's disk
  int reads_ahead = 32;                                 // loader.read_ahead
  bool cached = false;                                  // from the second epoch on it costs nothing
};

// What the program's own work costs, measured (bench/coordinator.cpp; `penstock profile`).
struct OverheadModel {
  Nanoseconds event_ns = 0;                          // of the coordinator, for each message
  Nanoseconds grant_ns = 0;                          // and for each lease that it grants
  Nanoseconds loader_chunk_ns = 0;                   // of a loader's event loop, for each chunk
  Nanoseconds receiver_chunk_ns = 0;                 // of a receiver's event loop, for each chunk
  double receiver_ns_per_byte = 0;                   // it checks, hashes and copies them
  Nanoseconds hand_over_ns = 0;                      // from a batch's completion until the program has it
  Nanoseconds local_message_ns = 20 * kMicrosecond;  // between processes of a node
  Nanoseconds epoch_ns = 0;                          // from an epoch's end until the next one's first batch is reserved
};

// Who decides which loader makes a chunk. The others know neither costs nor faults, and give a chunk away as soon as there
// is room for its batch: what balancing is worth is seen beside them.
enum class FleetPolicy : uint8_t {
  production,      // balancer.h: loaders pull, by cost, deadline and distance
  fixed,           // each trainer has loaders of its own, as PyTorch's workers are
  round_robin,     // all loaders in turn
  shortest_queue,  // the one with the fewest leases
  power_of_two,    // the one of two, drawn by chance, with fewer leases
};

inline constexpr FleetPolicy kFleetPolicies[] = {FleetPolicy::production, FleetPolicy::fixed, FleetPolicy::round_robin,
                                                 FleetPolicy::shortest_queue, FleetPolicy::power_of_two};
constexpr const char* name_of(FleetPolicy policy) {
  constexpr const char* names[] = {"production", "fixed", "round-robin", "shortest-queue", "power-of-two"};
  return names[static_cast<size_t>(policy)];
}

// What goes wrong by chance, drawn for each loader from the seed; besides what FleetLoader says.
struct FaultModel {
  double loader_mtbf_s = 0;  // mean time from a loader's start until it is lost; 0: none is
  double restart_s = 0;      // until a lost one is back; 0: it stays away
  Nanoseconds seen_after_ns = 2 * kMillisecond;
  double slow_share = 0;  // of the loaders that have
  double slow_speed = 1;  // this much of their speed
};

struct FleetSpec {
  std::vector<FleetNode> nodes = {{}};
  std::vector<FleetRack> racks = {};  // empty: nothing between the nodes' NICs limits
  std::vector<FleetLoader> loaders;
  std::vector<FleetTrainer> trainers;
  SampleModel samples;
  StorageModel storage;
  OverheadModel overhead;
  FaultModel faults;

  int64_t dataset_size = 0;
  int64_t batch_size = 1;  // per trainer
  bool shuffle = true;
  int64_t epochs = 1;
  int64_t steps = 0;          // of each epoch, at most; 0: all
  int64_t warmup_steps = 0;   // of the first epoch, which count for nothing that is told
  int64_t chunk_samples = 0;  // 0: as the coordinator chooses
  int prefetch = 2;
  int hold = 2;
  int ranks_per_replica = 1;  // so many trainers after each other get the same samples
  bool barrier = true;        // after each step the trainers wait for each other (a gradient is exchanged)
  Nanoseconds heartbeat_ns = 500 * kMillisecond;
  BalancerOptions balancer;
  FleetPolicy policy = FleetPolicy::production;

  void check() const;
};

}  // namespace penstock
