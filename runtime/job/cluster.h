// The machines that a job may run on, typed: what cluster.yaml means once defaults, overrides and checks are done.
//
//   Cluster cluster = load_cluster("cluster.yaml", {"nodes.cpu.count=4"});   // throws Error(config) listing everything
//
//   nodes:
//     gpu: {count: 2, cores: 64, cores_for_training: 32, trainers: 8, network_gbit: 100, price_per_hour: 30}
//     cpu: {count: 16, cores: 32, network_gbit: 25, price_per_hour: 1.5}
//   storage: {kind: shared, mb_per_s: 4000, reads_per_s: 200000, latency_ms: 2}
//   program: {step_ms: 210}
//
// Read as a job file is, by the same code; keys, defaults and bounds are one table (cluster.cpp). Nothing here decides
//   what a stream contains.
// Thread-safety: values; the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace penstock {

// One kind of machine.
struct ClusterNode {
  int count = 1;
  int cores = 1;
  int cores_for_training = 0;       // of these, that loader threads must leave alone
  int trainers = 0;                 // trainer ranks on each
  int loaders = -1;                 // loader ranks on each; -1: as many as the cores have room for
  double speed = 1;                 // of a loader thread, beside one of the machine that was profiled
  int gpus = 0;                     // on each, that loaders use
  double gpu_images_per_s = 0;      // of each; by hand
  double network_gbit = 0;          // of its NIC, each way; 0: no limit that matters
  double network_for_training = 0;  // share of it that the training itself takes
  double price_per_hour = 0;
  int rack = 0;
};

enum class StorageKind : uint8_t { memory = 0, local = 1, shared = 2 };

struct Cluster {
  std::map<std::string, ClusterNode> nodes;

  struct Network {
    double latency_us = 50;
    double rack_uplink_gbit = 0;  // each way; 0: no limit
  } network;

  struct Storage {
    StorageKind kind = StorageKind::memory;  // all in the page cache; a disk of each node; one file server
    double mb_per_s = 0;
    double reads_per_s = 0;
    double latency_ms = 0;
    double latency_spread = 0;  // of its logarithm: 1 is a long tail
    bool cached = false;        // from the second epoch on it costs nothing
  } storage;

  struct Program {
    double step_ms = 0;      // what the program takes for a batch; 0: as the profile says
    double step_spread = 0;  // of its logarithm
  } program;

  struct Faults {
    double loader_mtbf_h = 0;  // mean time between losses of one loader; 0: none is lost
    double restart_s = 0;      // until a lost one is back; 0: it is not
    double slow_share = 0;     // of the loaders that are slower than they should be
    double slow_speed = 1;     // these
  } faults;

  std::string currency = "$";
  std::string path;  // of the file, for messages

  int trainers() const noexcept {
    int sum = 0;
    for (const auto& [name, node] : nodes) sum += node.count * node.trainers;
    return sum;
  }
};

// Error(config) with every complaint, each with its place, as load_job() has them.
Cluster load_cluster(const std::string& path, const std::vector<std::string>& overrides = {});
Cluster parse_cluster(const std::string& text, const std::string& path, const std::vector<std::string>& overrides = {});
// JSON Schema (draft 7) of the file, for editors.
std::string cluster_schema();

}  // namespace penstock
