#include "runtime/simulate/plan/bounds.h"

#include <algorithm>
#include <map>

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
    add(gpus > 0 ? "the loaders' threads and GPUs" : "the loaders' threads", threads / work_s + gpus);
  }

  double slowest_step_s = 0;
  for (const FleetTrainer& trainer : spec.trainers)
    slowest_step_s = std::max(slowest_step_s, trainer.step_ns.mean() * 1e-9);
  const auto trainers = static_cast<double>(spec.trainers.size());
  if (slowest_step_s > 0) add("the training program", trainers * static_cast<double>(spec.batch_size) / slowest_step_s);

  const double receiver_s = spec.overhead.receiver_ns_per_byte * static_cast<double>(spec.samples.payload_bytes) * 1e-9;
  if (receiver_s > 0) add("the receivers", trainers / receiver_s);

  // What has to cross: all that the trainers of a node take, if none of its own loaders makes it.
  std::map<int, double> takes, threads_at;
  double threads = 0;
  for (const FleetTrainer& trainer : spec.trainers) takes[trainer.node] += 1 / trainers;
  for (const FleetLoader& loader : spec.loaders) threads_at[loader.node] += loader.threads, threads += loader.threads;
  const auto payload = static_cast<double>(spec.samples.payload_bytes);
  double in = 0, out = 0;
  for (const auto& [node, share] : takes) {
    const double crosses = std::max(0.0, share - threads_at[node] / threads);
    const double capacity = spec.nodes[static_cast<size_t>(node)].bytes_per_s;
    if (capacity > 0 && crosses > 0) in = std::max(in, crosses * payload / capacity);
  }
  for (const auto& [node, its] : threads_at) {
    const double crosses = std::max(0.0, its / threads - takes[node]);
    const double capacity = spec.nodes[static_cast<size_t>(node)].bytes_per_s;
    if (capacity > 0 && crosses > 0) out = std::max(out, crosses * payload / capacity);
  }
  if (in > 0) add("the NICs of machines that train", 1 / in);
  if (out > 0) add("the NICs of machines that load", 1 / out);

  const StorageModel& storage = spec.storage;
  std::map<int, bool> nodes_with_loaders;
  for (const FleetLoader& loader : spec.loaders) nodes_with_loaders[loader.node] = true;
  const double disks = storage.shared ? 1 : static_cast<double>(nodes_with_loaders.size());
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
