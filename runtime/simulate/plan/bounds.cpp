#include "runtime/simulate/plan/bounds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace penstock {

Bounds bounds_of(const FleetSpec& spec) {
  Bounds bounds;
  const auto add = [&](const std::string& name, double images_per_s) { bounds.parts.push_back({name, images_per_s}); };
  const double noise = spec.samples.noise.mean() * 1e-6;
  const double work_s =
      (spec.samples.work_ns.mean() + spec.samples.ns_per_byte * spec.samples.bytes.mean()) * noise * 1e-9;
  if (work_s > 0) {
    double threads = 0, gpus = 0;
    for (const FleetLoader& loader : spec.loaders) {
      const double speed = static_cast<double>(loader.speed.at(0)) / static_cast<double>(kFullSpeed);
      threads += loader.threads * speed;
      if (loader.gpus > 0) gpus += loader.gpus * speed * 1e9 / static_cast<double>(loader.gpu_sample_ns);
    }
    add(gpus > 0 ? "the loaders' threads and GPUs" : "the loaders' threads",
        (threads / work_s + gpus) / spec.ranks_per_replica);
  }

  double slowest_step_s = 0;
  for (const FleetTrainer& trainer : spec.trainers)
    slowest_step_s = std::max(slowest_step_s, trainer.step_ns.mean() * 1e-9);
  const auto trainers = static_cast<double>(spec.trainers.size());
  if (slowest_step_s > 0)
    add("the training program",
        trainers * static_cast<double>(spec.batch_size) / slowest_step_s / spec.ranks_per_replica);

  const double receiver_s = spec.overhead.receiver_ns_per_byte * static_cast<double>(spec.samples.payload_bytes) * 1e-9;
  if (receiver_s > 0) add("the receivers", trainers / receiver_s / spec.ranks_per_replica);

  // A machine's trainers, or a rack's, have what crosses into it and what its own loaders make; loaders send no more out of
  // it than crosses. Whichever loader makes what, no more can be had.
  const auto payload = static_cast<double>(spec.samples.payload_bytes);
  struct Place {
    double takes = 0;         // share of all images
    double images_per_s = 0;  // that its own threads make; 0 where nothing is known of their work
    double bytes_per_s = 0;   // each way; 0: no limit
  };
  const auto crossing = [&](const auto& place_of, const std::string& in_name, const std::string& out_name) {
    if (payload <= 0 || work_s <= 0) return;
    std::map<int, Place> places;
    for (size_t node = 0; node < spec.nodes.size(); ++node) {
      const auto [place, bytes_per_s] = place_of(static_cast<int>(node));
      places[place].bytes_per_s = bytes_per_s;
    }
    for (const FleetTrainer& trainer : spec.trainers) places[place_of(trainer.node).first].takes += 1 / trainers;
    for (const FleetLoader& loader : spec.loaders) {
      const double speed = static_cast<double>(loader.speed.at(0)) / static_cast<double>(kFullSpeed);
      double& rate = places[place_of(loader.node).first].images_per_s;
      rate += loader.threads * speed / work_s;
      if (loader.gpus > 0) rate += loader.gpus * speed * 1e9 / static_cast<double>(loader.gpu_sample_ns);
    }
    double in = INFINITY, out = 0;
    bool out_limits = false;
    for (const auto& [number, place] : places) {
      const double crosses = place.bytes_per_s > 0 ? place.bytes_per_s / payload : INFINITY;
      if (place.takes > 0) in = std::min(in, (crosses + place.images_per_s) / place.takes);
      const bool limits = place.takes == 0 && crosses < place.images_per_s;
      out += limits ? crosses : place.images_per_s;
      out_limits = out_limits || limits;
    }
    // An image goes to each rank of a replica, and counts once.
    if (in < INFINITY) add(in_name, in / spec.ranks_per_replica);
    if (out_limits) add(out_name, out / spec.ranks_per_replica);
  };
  crossing([&](int node) { return std::pair(node, spec.nodes[static_cast<size_t>(node)].bytes_per_s); },
           "the NICs of machines that train", "the NICs of machines that load");
  if (!spec.racks.empty()) {
    crossing(
        [&](int node) {
          const int rack = spec.nodes[static_cast<size_t>(node)].rack;
          return std::pair(rack, spec.racks[static_cast<size_t>(rack)].bytes_per_s);
        },
        "the uplinks of racks that train", "the uplinks of racks that load");
  }

  const StorageModel& storage = spec.storage;
  std::map<int, bool> nodes_with_loaders;
  for (const FleetLoader& loader : spec.loaders) nodes_with_loaders[loader.node] = true;
  // Where all is cached then, later epochs read nothing; the ranks of a replica read their samples each.
  const double epochs = storage.cached ? static_cast<double>(spec.epochs) : 1;
  const double disks =
      (storage.shared ? 1 : static_cast<double>(nodes_with_loaders.size())) * epochs / spec.ranks_per_replica;
  if (storage.reads_per_s > 0) add("the storage's reads", storage.reads_per_s * disks);
  if (storage.bytes_per_s > 0 && spec.samples.bytes.mean() > 0)
    add("the storage's bandwidth", storage.bytes_per_s * disks / spec.samples.bytes.mean());

  if (bounds.parts.empty()) return bounds;
  const auto least =
      std::min_element(bounds.parts.begin(), bounds.parts.end(),
                       [](const Bounds::Part& a, const Bounds::Part& b) { return a.images_per_s < b.images_per_s; });
  bounds.images_per_s = least->images_per_s;
  bounds.limit = least->name;
  return bounds;
}

}  // namespace penstock
