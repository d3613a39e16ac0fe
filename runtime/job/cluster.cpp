#include "runtime/job/cluster.h"

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/job/job_reader.h"
#include "runtime/job/json_value.h"
#include "runtime/job/key_table_builder.h"
#include "runtime/job/level_reader.h"
#include "runtime/job/overlay.h"

namespace penstock {
namespace {

// clang-format off
std::vector<Section<ClusterNode>> make_node_sections() {
  KeyTable<ClusterNode> keys;
  keys.section("", "");
  keys.machinery(PENSTOCK_MEMBER(count), integer(0, 100000), "Machines of this kind.");
  keys.machinery(PENSTOCK_MEMBER(cores), integer(1, 4096), "Cores of each.");
  keys.machinery(PENSTOCK_MEMBER(cores_for_training), integer(0, 4096), "Cores of each that the training keeps for itself.");
  keys.machinery(PENSTOCK_MEMBER(trainers), integer(0, 4096), "Trainer ranks on each; 0: these machines only load.");
  keys.machinery(PENSTOCK_MEMBER(loaders), integer(-1, 4096), "Loader ranks on each; -1: as many as the cores that training leaves have room for, by loader.threads.");
  keys.machinery(PENSTOCK_MEMBER(speed), number(0.001, 1000), "Speed of a loader thread here, beside one of the machine that was profiled.");
  keys.machinery(PENSTOCK_MEMBER(gpus), integer(0, 64), "GPUs of each that loaders use.");
  keys.machinery(PENSTOCK_MEMBER(gpu_images_per_s), number(0, 1e7), "Images that each of these GPUs makes a second. Entered by hand: no profile measures it yet.");
  keys.machinery(PENSTOCK_MEMBER(network_gbit), number(0, 100000), "Speed of its NIC, each way, in Gbit/s; 0: no limit that matters.");
  keys.machinery(PENSTOCK_MEMBER(network_for_training), number(0, 0.99), "Share of the NIC that the training itself uses.");
  keys.machinery(PENSTOCK_MEMBER(price_per_hour), number(0, 1e6), "Price of one machine for an hour.");
  keys.machinery(PENSTOCK_MEMBER(rack), integer(0, 100000), "Number of the rack that these machines stand in.");
  return keys.take();
}

std::vector<Section<Cluster>> make_cluster_sections() {
  KeyTable<Cluster> keys;
  keys.section("", "");
  keys.machinery(PENSTOCK_MEMBER(currency), text(), "Of the prices.");

  keys.section("network", "What is between the machines.");
  keys.machinery(PENSTOCK_MEMBER(network.latency_us), number(0, 1e7), "From one machine to another, one way, in microseconds.");
  keys.machinery(PENSTOCK_MEMBER(network.rack_uplink_gbit), number(0, 1e6), "What a rack has to the others, each way, in Gbit/s; 0: no limit.");

  keys.section("storage", "Where the encoded samples are.");
  keys.machinery(PENSTOCK_MEMBER(storage.kind), one_of({"memory", "local", "shared"}), "memory: in the page cache, reading costs nothing. local: each machine's own disk. shared: one file server for all.");
  keys.machinery(PENSTOCK_MEMBER(storage.mb_per_s), number(0, 1e9), "What it reads, in MB/s; 0: no limit.");
  keys.machinery(PENSTOCK_MEMBER(storage.reads_per_s), number(0, 1e9), "Reads that it begins in a second; 0: no limit.");
  keys.machinery(PENSTOCK_MEMBER(storage.latency_ms), number(0, 1e6), "Median time of one read, in milliseconds, whatever else is read.");
  keys.machinery(PENSTOCK_MEMBER(storage.latency_spread), number(0, 5), "Standard deviation of its natural logarithm.");
  keys.machinery(PENSTOCK_MEMBER(storage.cached), boolean(), "From the second epoch on everything is in the page cache.");

  keys.section("program", "The training program.");
  keys.machinery(PENSTOCK_MEMBER(program.step_ms), number(0, 1e7), "Median time that it takes for a batch, in milliseconds; 0: as the profile has it.");
  keys.machinery(PENSTOCK_MEMBER(program.step_spread), number(0, 5), "Standard deviation of its natural logarithm.");

  keys.section("faults", "What goes wrong.");
  keys.machinery(PENSTOCK_MEMBER(faults.loader_mtbf_h), number(0, 1e6), "Mean time between two losses of one loader, in hours; 0: none is lost.");
  keys.machinery(PENSTOCK_MEMBER(faults.restart_s), number(0, 1e7), "Until a lost loader is back, in seconds; 0: it stays away.");
  keys.machinery(PENSTOCK_MEMBER(faults.slow_share), number(0, 1), "Share of the loaders that are slower than they should be.");
  keys.machinery(PENSTOCK_MEMBER(faults.slow_speed), number(0.01, 1), "The speed of these, beside the others.");
  return keys.take();
}
// clang-format on

const std::vector<Section<ClusterNode>>& node_sections() {
  static const std::vector<Section<ClusterNode>> sections = make_node_sections();
  return sections;
}

const std::vector<Section<Cluster>>& cluster_sections() {
  static const std::vector<Section<Cluster>> sections = make_cluster_sections();
  return sections;
}

void check_node(const std::string& path, const Span& where, const ClusterNode& node, Complaints& complaints) {
  if (node.cores_for_training >= node.cores && node.loaders > 0) {
    complaints.add(where, in_quotes(path) + " has loaders, and no core that training leaves them",
                   "lower cores_for_training, or say loaders: 0");
  }
  if ((node.gpus > 0) != (node.gpu_images_per_s > 0)) {
    complaints.add(where, in_quotes(path) + ": gpus and gpu_images_per_s belong together", "give both, or neither");
  }
}

void read_nodes(const YamlNode& root, Cluster& cluster, Reading& reading) {
  const YamlNode::Entry* nodes = root.find("nodes");
  if (nodes == nullptr) {
    reading.complaints.add(root.span, "missing required key 'nodes' at the top level",
                           "write nodes: {gpu: {count: 2, cores: 32, trainers: 8}}");
    return;
  }
  if (nodes->value.kind == YamlNode::Kind::unknown) return;
  if (!nodes->value.is_mapping() || nodes->value.entries.empty()) {
    const std::string found = nodes->value.is_mapping() ? "an empty one" : describe(nodes->value);
    reading.complaints.add(nodes->value.span,
                           "'nodes': expected a mapping of at least one kind of machine, found " + found);
    return;
  }
  for (const YamlNode::Entry& entry : nodes->value.entries) {
    const std::string path = "nodes." + entry.key;
    if (!valid_split_name(entry.key)) {
      reading.complaints.add(entry.key_span,
                             "the name of a kind of machine is made of letters, digits, '_' and '-', at most 64");
      continue;
    }
    const bool from_file = entry.key_span.source == nullptr || entry.key_span.source->kind() == SourceText::Kind::file;
    if (!from_file) {
      std::vector<std::string> others;
      for (const YamlNode::Entry& other : nodes->value.entries) {
        if (other.key != entry.key) others.push_back(other.key);
      }
      reading.complaints.add(entry.key_span, "there is no kind of machine " + in_quotes(entry.key),
                             did_you_mean(entry.key, others));
      continue;
    }
    if (!entry.value.is_mapping() && !entry.value.is_null()) {
      reading.complaints.add(entry.value.span,
                             in_quotes(path) + ": expected a mapping, found " + describe(entry.value));
      continue;
    }
    ClusterNode& node = cluster.nodes[entry.key];
    read_level(node_sections(), {}, entry.value, path + ".", node, reading);
    check_node(path, entry.key_span, node, reading.complaints);
  }
}

std::string no_hint(const std::string&) {
  return {};
}

nlohmann::ordered_json schema_of(const ParamInfo& info) {
  nlohmann::ordered_json one;
  const auto bound = [](double value) -> nlohmann::ordered_json {
    if (value == static_cast<double>(static_cast<int64_t>(value))) return static_cast<int64_t>(value);
    return value;
  };
  switch (info.kind) {
    case ParamKind::integer: one["type"] = "integer"; break;
    case ParamKind::number: one["type"] = "number"; break;
    case ParamKind::boolean: one["type"] = "boolean"; break;
    default: one["type"] = "string"; break;
  }
  if (!info.choices.empty()) one = {{"enum", info.choices}};
  if (info.kind == ParamKind::integer || info.kind == ParamKind::number) {
    one["minimum"] = bound(info.minimum);
    one["maximum"] = bound(info.maximum);
  }
  one["description"] = info.doc;
  if (info.default_value) one["default"] = json_value(*info.default_value, info.kind);
  return one;
}

template <class T>
nlohmann::ordered_json schema_of(const Section<T>& section) {
  nlohmann::ordered_json object = {{"type", "object"}, {"additionalProperties", false}};
  if (!section.doc.empty()) object["description"] = section.doc;
  for (const Key<T>& key : section.keys) object["properties"][key.info.name] = schema_of(key.info);
  return object;
}

}  // namespace

Cluster parse_cluster(const std::string& text, const std::string& path, const std::vector<std::string>& overrides) {
  const SourceText file(SourceText::Kind::file, path, text);
  Complaints complaints;
  Overlay overlay(complaints);
  YamlNode root;
  const bool readable = parse_yaml(file, 0, complaints, root);
  for (const std::string& assignment : overrides) overlay.add_override(assignment);
  Cluster cluster;
  cluster.path = path;
  if (readable) {
    if (root.is_mapping() || root.is_null()) overlay.apply(root);
    Origins origins;
    Reading reading{.origins = origins, .complaints = complaints, .elsewhere = no_hint};
    if (!root.is_mapping() && !root.is_null()) {
      complaints.add(root.span, "a cluster file is a mapping of keys, found " + describe(root));
    } else {
      read_level(cluster_sections(), {"nodes"}, root, "", cluster, reading);
      read_nodes(root, cluster, reading);
      const Span& where = root.span;
      if (complaints.empty() && cluster.trainers() == 0) {
        complaints.add(where, "no machine has trainers, so there is nothing to load for",
                       "give one kind of machine trainers: 8");
      }
      if (complaints.empty() && cluster.storage.kind != StorageKind::memory && cluster.storage.mb_per_s == 0 &&
          cluster.storage.reads_per_s == 0) {
        complaints.add(where, "storage of kind local or shared needs mb_per_s, reads_per_s or both",
                       "`storage.kind: memory` is for data that is in the page cache");
      }
    }
  }
  complaints.throw_if_any();
  return cluster;
}

Cluster load_cluster(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_cluster(
      read_yaml_file(path, "cluster file",
                     "`penstock schema --cluster` has its keys: nodes: {gpu: {cores: 32, trainers: 8}}"),
      path, overrides);
}

std::string cluster_schema() {
  nlohmann::ordered_json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                                   {"title", "penstock cluster file"},
                                   {"type", "object"},
                                   {"required", {"nodes"}},
                                   {"additionalProperties", false}};
  for (const Section<Cluster>& section : cluster_sections()) {
    const nlohmann::ordered_json one = schema_of(section);
    if (!section.name.empty()) {
      schema["properties"][section.name] = one;
    } else {
      for (const auto& [name, key] : one["properties"].items()) schema["properties"][name] = key;
    }
  }
  nlohmann::ordered_json node = schema_of(node_sections().front());
  schema["properties"]["nodes"] = {{"type", "object"}, {"minProperties", 1}, {"additionalProperties", node}};
  return schema.dump(2);
}

}  // namespace penstock
