#include "runtime/simulate/plan/fleet_of.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/coordinator/balancer_options.h"

namespace penstock {
namespace {

constexpr double kSlowest = 1000;  // bytes a second, of anything that is there
// A packet of 1,514 bytes on the wire carries 1,448 bytes behind the headers of IP and TCP.
constexpr double kBytesOfGbit = 1e9 / 8 * 1448 / 1514;

[[noreturn]] void impossible(const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::config, "this job cannot run on this cluster: " + why, remedy);
}

Nanoseconds from_seconds(double seconds) {
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

FleetNode machine(const Cluster& cluster, const ClusterNode& kind) {
  FleetNode node;
  node.rack = cluster.network.rack_uplink_gbit > 0 ? kind.rack : 0;
  node.bytes_per_s = kind.network_gbit * kBytesOfGbit * (1 - kind.network_for_training);
  node.latency_ns = from_seconds(cluster.network.latency_us * 1e-6);
  return node;
}

Distribution step_of(const PlanInput& input) {
  const Cluster::Program& program = input.cluster.program;
  if (program.step_ms > 0) return Distribution::lognormal(program.step_ms * 1e6, program.step_spread);
  if (input.profile.step_ns.count() > 0) return Distribution::empirical(input.profile.step_ns.quantiles());
  impossible("nobody says how long the program takes for a batch",
             "give program.step_ms in " + input.cluster.path +
                 ", or take a profile of a run with its program (`penstock run --profile FILE`)");
}

// What a profile has not measured takes no time.
Distribution distribution_of(const Histogram& histogram) {
  return histogram.count() > 0 ? Distribution::empirical(histogram.quantiles()) : Distribution::constant(0);
}

// What is left of a sample's time when its bytes' part is taken away: as long in the mean, and as spread out, as that
// leaves. The times' own shape is kept, because only their moments are known together with the sizes.
Distribution time_besides_bytes(const Profile& profile) {
  const Histogram& times = profile.sample_ns;
  if (times.count() == 0 || profile.ns_per_byte <= 0) return distribution_of(times);
  const double of_bytes = profile.ns_per_byte * profile.sample_bytes.mean();
  const double explained = profile.ns_per_byte * profile.ns_per_byte * profile.sample_bytes.variance();
  const double left = std::max(0.0, times.variance() - explained);
  const double narrower = times.variance() > 0 ? std::sqrt(left / times.variance()) : 0;
  std::vector<std::pair<double, int64_t>> quantiles = times.quantiles();
  for (auto& [share, ns] : quantiles) {
    const double besides = (static_cast<double>(ns) - times.mean()) * narrower + times.mean() - of_bytes;
    ns = std::max<int64_t>(0, std::llround(besides));
  }
  const Distribution besides = Distribution::empirical(std::move(quantiles));
  const double wanted = std::max(0.0, times.mean() - of_bytes);
  return besides.mean() > 0 ? besides.times(wanted / besides.mean()) : besides;
}

// Whether loaders know encoded sizes without looking at a disk (Source::known_size): where a table lists the samples.
bool sizes_are_known(const DatasetSpec& dataset) {
  bool known = !dataset.index.empty() || !dataset.pack.empty();
  for (const DatasetKind& kind : kDatasetKinds) {
    known = known || (kind.container && !kind.own_pictures && !(dataset.*kind.value).empty());
  }
  return known;
}

void apply(FleetSpec& spec, const WhatIf& what) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::usage, "--what-if " + what.text + ": " + why);
  };
  const bool of_loader =
      what.kind == WhatIf::Kind::slow || what.kind == WhatIf::Kind::stop || what.kind == WhatIf::Kind::kill;
  if (of_loader && (what.which < 0 || what.which >= std::ssize(spec.loaders))) {
    refuse("there are loaders 0 to " + std::to_string(std::ssize(spec.loaders) - 1));
  }
  const bool of_node = what.kind == WhatIf::Kind::node || what.kind == WhatIf::Kind::nic;
  if (of_node && (what.which < 0 || what.which >= std::ssize(spec.nodes))) {
    refuse("there are machines 0 to " + std::to_string(std::ssize(spec.nodes) - 1));
  }
  const Nanoseconds at = from_seconds(what.at_s);
  const Nanoseconds until = what.lasts_s > 0 ? at + from_seconds(what.lasts_s) : kNever;
  const auto index = static_cast<size_t>(what.which);
  switch (what.kind) {
    case WhatIf::Kind::slow:
    case WhatIf::Kind::stop: {
      FleetLoader& loader = spec.loaders[index];
      loader.speed = loader.speed.during(at, until, what.kind == WhatIf::Kind::stop ? 0 : what.factor);
      break;
    }
    case WhatIf::Kind::kill:
      spec.loaders[index].dies_at = at;
      spec.loaders[index].seen_after_ns = 2 * kMillisecond;
      if (until != kNever) spec.loaders[index].comes_back_at = until;
      break;
    case WhatIf::Kind::node:
      if (std::any_of(spec.trainers.begin(), spec.trainers.end(),
                      [&](const FleetTrainer& one) { return one.node == what.which; })) {
        refuse("machine " + std::to_string(what.which) + " trains, and a job ends with any of its trainers");
      }
      for (FleetLoader& loader : spec.loaders) {
        if (loader.node != what.which) continue;
        loader.dies_at = at;
        if (until != kNever) loader.comes_back_at = until;
      }
      break;
    case WhatIf::Kind::nic:
      if (spec.nodes[index].bytes_per_s == 0)
        refuse("machine " + std::to_string(what.which) + " has no network_gbit that could be less");
      spec.nodes[index].bytes_per_s *= what.factor;
      break;
    case WhatIf::Kind::tail: {
      const auto times = static_cast<int64_t>(std::llround(1e6 * what.factor));
      spec.samples.noise = Distribution::empirical({{0, 1'000'000}, {0.99, 1'000'000}, {0.99, times}, {1, times}});
      break;
    }
  }
}

}  // namespace

int loaders_on(const ClusterNode& node, int threads) {
  if (node.loaders >= 0) return node.loaders;
  return std::max(0, node.cores - node.cores_for_training) / std::max(1, threads);
}

std::vector<std::string> entered_by_hand(const PlanInput& input) {
  std::vector<std::string> keys;
  for (const auto& [name, node] : input.cluster.nodes) {
    if (node.count == 0) continue;
    if (node.gpus > 0) keys.push_back("nodes." + name + ".gpu_images_per_s");
    if (node.speed != 1) keys.push_back("nodes." + name + ".speed");
  }
  if (input.cluster.program.step_ms > 0) keys.emplace_back("program.step_ms");
  return keys;
}

WhatIf parse_what_if(const std::string& text) {
  WhatIf what;
  what.text = text;
  const auto refuse = [&text] {
    throw Error(ErrorKind::usage, "'" + text + "' is no what-if",
                "slow:LOADERx0.4, stop:LOADER@SECOND+SECONDS, kill:LOADER@SECOND, node:MACHINE@SECOND, nic:MACHINEx0.5 "
                "or tail:x3");
  };
  const size_t colon = text.find(':');
  if (colon == std::string::npos) refuse();
  const std::string kind = text.substr(0, colon);
  static const std::vector<std::string> kinds = {"slow", "stop", "kill", "node", "nic", "tail"};
  const auto found = std::find(kinds.begin(), kinds.end(), kind);
  if (found == kinds.end()) refuse();
  what.kind = static_cast<WhatIf::Kind>(found - kinds.begin());
  size_t at = colon + 1;
  const auto number = [&](auto& value) {
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + at, end, value);
    if (read.ec != std::errc()) refuse();
    at = static_cast<size_t>(read.ptr - text.data());
  };
  bool factor_given = false;
  if (what.kind != WhatIf::Kind::tail) number(what.which);
  std::string marks;
  while (at < text.size()) {
    const char mark = text[at++];
    if (marks.find(mark) != std::string::npos) refuse();
    marks += mark;
    if (mark == '@') {
      number(what.at_s);
    } else if (mark == '+') {
      number(what.lasts_s);
    } else if (mark == 'x') {
      number(what.factor);
      factor_given = true;
    } else {
      refuse();
    }
  }
  const bool wants_factor =
      what.kind == WhatIf::Kind::slow || what.kind == WhatIf::Kind::nic || what.kind == WhatIf::Kind::tail;
  const bool has_time = what.kind != WhatIf::Kind::nic && what.kind != WhatIf::Kind::tail;
  constexpr double kLongest_s = 1e9;
  if ((!has_time && (what.at_s != 0 || what.lasts_s != 0)) || what.at_s > kLongest_s || what.lasts_s > kLongest_s)
    refuse();
  if (what.kind == WhatIf::Kind::tail && what.factor < 1) refuse();  // a tail is longer
  if (factor_given != wants_factor || what.which < 0 || !(what.at_s >= 0) || !(what.lasts_s >= 0) ||
      !(what.factor > 0) || what.factor > 1000)
    refuse();
  return what;
}

FleetSpec fleet_of(const PlanInput& input, const std::vector<WhatIf>& what_ifs) {
  const Job& job = input.job;
  const Cluster& cluster = input.cluster;
  const Profile& profile = input.profile;
  const auto split = job.splits.find(input.split);
  if (split == job.splits.end()) {
    throw Error(ErrorKind::config, "the job has no split '" + input.split + "'", "name one that it has with --split");
  }
  FleetSpec spec;
  spec.nodes.clear();
  const Distribution step = step_of(input);
  for (const bool trains : {true, false}) {
    for (const auto& [name, kind] : cluster.nodes) {
      if ((kind.trainers > 0) != trains) continue;
      for (int i = 0; i < kind.count; ++i) {
        const int number = static_cast<int>(spec.nodes.size());
        spec.nodes.push_back(machine(cluster, kind));
        for (int t = 0; t < kind.trainers; ++t) spec.trainers.push_back({number, step});
        FleetLoader loader;
        loader.node = number;
        loader.threads = job.loader.threads;
        loader.chunk_buffers = job.loader.chunk_buffers;
        loader.speed =
            SpeedProfile({{0, static_cast<int64_t>(std::llround(kind.speed * static_cast<double>(kFullSpeed)))}});
        const int loaders = loaders_on(kind, job.loader.threads);
        const int cores = kind.cores - kind.cores_for_training;
        if (kind.loaders > 0 && loaders * job.loader.threads > cores) {
          impossible("nodes." + name + " has " + std::to_string(cores) + " cores for loading, and " +
                         std::to_string(loaders) + " loaders of " + std::to_string(job.loader.threads) +
                         " threads need more",
                     "lower loaders or loader.threads, or raise cores");
        }
        for (int l = 0; l < loaders; ++l) {
          // The machine's GPUs go round its loaders.
          loader.gpus = kind.gpus / loaders + (l < kind.gpus % loaders ? 1 : 0);
          loader.executor_class = loader.gpus > 0 ? 1 : 0;
          if (loader.gpus > 0 && kind.gpu_images_per_s < 0.01)
            impossible("its GPUs make hardly anything", "gpu_images_per_s is in images a second");
          if (loader.gpus > 0) loader.gpu_sample_ns = from_seconds(1 / kind.gpu_images_per_s);
          spec.loaders.push_back(loader);
        }
      }
    }
  }
  for (const FleetNode& node : spec.nodes) {
    if (node.bytes_per_s > 0 && node.bytes_per_s < kSlowest)
      impossible("a NIC carries less than a kilobyte a second", "network_gbit is in Gbit/s");
  }
  if (spec.trainers.empty()) impossible("no machine trains", "give one kind of machine trainers, and a count above 0");
  if (spec.loaders.empty())
    impossible("it has no loader", "give a kind of machine more cores than training keeps, or loaders: 1");
  if (cluster.network.rack_uplink_gbit > 0) {
    int racks = 0;
    for (const FleetNode& node : spec.nodes) racks = std::max(racks, node.rack + 1);
    spec.racks.assign(static_cast<size_t>(racks), {cluster.network.rack_uplink_gbit * kBytesOfGbit});
  }

  spec.samples.work_ns = time_besides_bytes(profile);
  spec.samples.ns_per_byte = profile.ns_per_byte;
  spec.samples.bytes = distribution_of(profile.sample_bytes);
  spec.samples.sizes_known = sizes_are_known(split->second.dataset);
  spec.samples.pixels = profile.pixels;
  spec.samples.payload_bytes = profile.payload_bytes;
  const Cluster::Storage& storage = cluster.storage;
  if (storage.kind != StorageKind::memory) {
    spec.storage.bytes_per_s = storage.mb_per_s * 1e6;
    spec.storage.reads_per_s = storage.reads_per_s;
    const bool slow = (storage.mb_per_s > 0 && spec.storage.bytes_per_s < kSlowest) ||
                      (storage.reads_per_s > 0 && storage.reads_per_s < 0.01);
    if (slow)
      impossible("its storage gives hardly anything",
                 "storage.mb_per_s is in MB/s, storage.reads_per_s in reads a second");
    if (storage.latency_ms > 0)
      spec.storage.latency_ns = Distribution::lognormal(storage.latency_ms * 1e6, storage.latency_spread);
    spec.storage.shared = storage.kind == StorageKind::shared;
    spec.storage.cached = storage.cached;
    spec.storage.reads_ahead = std::max(1, job.loader.read_ahead);
  }
  spec.overhead = profile.overhead;
  // What a profile has of steps goes from a batch to the next question, and holds it already.
  if (cluster.program.step_ms == 0) spec.overhead.hand_over_ns = 0;
  spec.faults.loader_mtbf_s = cluster.faults.loader_mtbf_h * 3600;
  if (spec.faults.loader_mtbf_s > 0 && spec.faults.loader_mtbf_s < 0.1) {
    impossible("its loaders are lost as soon as they are there", "faults.loader_mtbf_h is in hours");
  }
  spec.faults.restart_s = cluster.faults.restart_s;
  spec.faults.slow_share = cluster.faults.slow_share;
  spec.faults.slow_speed = cluster.faults.slow_speed;

  spec.dataset_size = input.samples > 0 ? input.samples : profile.dataset_size;
  if (input.sizes && (input.samples == 0 || input.samples == std::ssize(*input.sizes))) {
    spec.samples.known_bytes = input.sizes;
    spec.dataset_size = std::ssize(*input.sizes);
  }
  spec.batch_size = split->second.batch_size;
  spec.shuffle = split->second.sampler.shuffle;
  spec.epochs = input.epochs;
  spec.steps = input.steps;
  spec.warmup_steps = std::max<int64_t>(0, input.warmup_steps);
  spec.chunk_samples = job.loader.chunk_samples;
  spec.prefetch = job.loader.prefetch;
  spec.hold = job.trainer.hold;
  spec.barrier = input.barrier;
  spec.heartbeat_ns = from_seconds(job.balancer.heartbeat_s);
  spec.balancer = balancer_options(job.balancer);
  spec.ranks_per_replica = job.roles.ranks_per_replica;
  if (std::ssize(spec.trainers) % spec.ranks_per_replica != 0) {
    impossible("roles.ranks_per_replica is " + std::to_string(spec.ranks_per_replica) + ", and there are " +
                   std::to_string(spec.trainers.size()) + " trainers",
               "give a number that divides them");
  }
  const int64_t global_batch = spec.batch_size * std::ssize(spec.trainers) / spec.ranks_per_replica;
  if (spec.dataset_size < global_batch) {
    impossible("the data set has " + std::to_string(spec.dataset_size) + " samples, and a step of all trainers takes " +
                   std::to_string(global_batch),
               "lower splits." + input.split + ".batch_size or the number of trainers");
  }
  const int64_t steps =
      spec.steps > 0 ? std::min(spec.steps, spec.dataset_size / global_batch) : spec.dataset_size / global_batch;
  if (spec.epochs == 1 && spec.warmup_steps >= steps) {
    throw Error(ErrorKind::usage,
                "the job has " + std::to_string(steps) + " steps, and " + std::to_string(spec.warmup_steps) +
                    " are to count for nothing",
                "lower --warmup-steps, or give more --epochs or --samples");
  }
  for (const WhatIf& what : what_ifs) apply(spec, what);
  return spec;
}

}  // namespace penstock
