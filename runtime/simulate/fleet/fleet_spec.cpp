#include "runtime/simulate/fleet/fleet_spec.h"

#include <string>

#include "runtime/base/error.h"

namespace penstock {
namespace {

void require_fleet(bool good, const std::string& what) {
  if (!good) throw Error(ErrorKind::usage, "a fleet that cannot be simulated: " + what);
}

}  // namespace

void FleetSpec::check() const {
  require_fleet(!nodes.empty(), "it has no nodes");
  require_fleet(!trainers.empty(), "it has no trainers");
  require_fleet(!loaders.empty(), "it has no loaders");
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::string name = "nodes[" + std::to_string(i) + "]";
    require_fleet(nodes[i].bytes_per_s >= 0 && nodes[i].latency_ns >= 0, name + " has a negative speed or latency");
    const bool known = racks.empty() || (nodes[i].rack >= 0 && nodes[i].rack < std::ssize(racks));
    require_fleet(known, name + " is in rack " + std::to_string(nodes[i].rack) + ", which does not exist");
  }
  for (const FleetRack& rack : racks) require_fleet(rack.bytes_per_s >= 0, "a rack's uplink has a negative speed");
  const auto on_a_node = [this](int node) { return node >= 0 && node < std::ssize(nodes); };
  for (size_t i = 0; i < loaders.size(); ++i) {
    const FleetLoader& one = loaders[i];
    const std::string name = "loaders[" + std::to_string(i) + "]";
    require_fleet(on_a_node(one.node), name + " is on node " + std::to_string(one.node) + ", which does not exist");
    require_fleet(one.threads >= 1 && one.depth >= 0 && one.chunk_buffers >= 0,
                  name + " has no threads, or fewer than none of something");
    require_fleet(one.executor_class == 0 || one.executor_class == 1, name + " has executors of an unknown class");
    require_fleet(one.joins_at >= 0 && (!one.comes_back_at || (one.dies_at && *one.comes_back_at > *one.dies_at)),
                  name + " comes back before it has gone");
  }
  for (size_t i = 0; i < trainers.size(); ++i) {
    require_fleet(on_a_node(trainers[i].node), "trainers[" + std::to_string(i) + "] is on node " +
                                                   std::to_string(trainers[i].node) + ", which does not exist");
  }
  require_fleet(dataset_size > 0 && batch_size > 0, "dataset_size and batch_size are above 0");
  require_fleet(epochs >= 1 && steps >= 0 && chunk_samples >= 0, "epochs, steps or chunk_samples are too few");
  require_fleet(ranks_per_replica >= 1 && std::ssize(trainers) % ranks_per_replica == 0,
                "ranks_per_replica divides the number of trainers");
  require_fleet(prefetch >= 1 && hold >= 0, "prefetch is at least 1, and hold 0");
  require_fleet(samples.payload_bytes >= 0 && samples.ns_per_byte >= 0, "a sample has a negative size or cost");
  require_fleet(!samples.known_bytes || std::ssize(*samples.known_bytes) == dataset_size,
                "samples.known_bytes has as many as the data set has samples");
  require_fleet(storage.bytes_per_s >= 0 && storage.reads_per_s >= 0 && storage.reads_ahead >= 1,
                "storage has a negative speed");
  require_fleet(faults.loader_mtbf_s >= 0 && faults.restart_s >= 0 && faults.slow_share >= 0 &&
                    faults.slow_share <= 1 && faults.slow_speed > 0,
                "faults have a negative time, or a share that is none");
  require_fleet(heartbeat_ns > 0, "heartbeat_ns is above 0");
}

}  // namespace penstock
