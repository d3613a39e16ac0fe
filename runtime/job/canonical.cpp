// The canonical form of a split: JSON with ordered keys, every default filled in. Texts are equal exactly when the
// streams are, so peers compare texts (or their hash) and, on a difference, show the first key that differs.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/job/job.h"
#include "runtime/job/job_reader.h"
#include "runtime/job/json_value.h"
#include "runtime/job/key_table.h"
#include "runtime/job/saved_difference.h"
#include "runtime/job/suggest.h"

namespace penstock {
namespace {

constexpr int kCanonicalVersion = 1;
constexpr const char* peer = "split description";

template <class T>
void write_level(const std::vector<Section<T>>& sections, const T& values, nlohmann::json& out) {
  for (const Section<T>& section : sections) {
    for (const Key<T>& key : section.keys) {
      if (!key.content || key.left_out(values)) continue;
      nlohmann::json& place = section.name.empty() ? out[key.info.name] : out[section.name][key.info.name];
      place = json_value(key.get(values), key.info.kind);
    }
  }
}

nlohmann::json json_pipeline(const std::vector<TransformSpec>& transforms) {
  nlohmann::json out = nlohmann::json::array();
  for (const TransformSpec& spec : transforms) out.push_back(json_transform(spec));
  return out;
}

Job job_of(const ResolvedSplit& split) {
  Job job;
  static_cast<JobContent&>(job) = split;
  return job;
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::config, std::string("not a split description of this version: ") + why,
              "use the same penstock on every rank");
}

// JSON from a peer, bounded before a tree exists: nlohmann's parser does not recurse, but what is done with a tree
// does.
nlohmann::json parse_bounded(const std::string& text) {
  if (text.size() > kYamlMaxBytes) refuse("larger than 1 MiB");
  const auto guard = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > static_cast<int>(kYamlMaxDepth)) refuse("nested too deeply");
    return true;
  };
  try {
    return nlohmann::json::parse(text, guard);
  } catch (const nlohmann::json::exception&) {
    refuse("it is not JSON");
  }
}

// As the tree that the job file's checks run on, so that a peer is believed no more than a file.
YamlNode tree_of(const nlohmann::json& json, const SourceText& source) {
  YamlNode node;
  node.span = {&source, 0, 0};
  switch (json.type()) {
    case nlohmann::json::value_t::null: break;
    case nlohmann::json::value_t::object:
      node.kind = YamlNode::Kind::mapping;
      for (const auto& [key, value] : json.items()) node.entries.push_back({key, node.span, tree_of(value, source)});
      break;
    case nlohmann::json::value_t::array:
      node.kind = YamlNode::Kind::sequence;
      for (const nlohmann::json& item : json) node.items.push_back(tree_of(item, source));
      break;
    case nlohmann::json::value_t::string:
      node.kind = YamlNode::Kind::scalar;
      node.quoted = true;
      node.text = json.get<std::string>();
      break;
    default: node.kind = YamlNode::Kind::scalar; node.text = json_text(json);
  }
  return node;
}

std::string shown(const nlohmann::json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : json_text(value);
  if (value.is_string() && text.empty()) return "''";
  if (text.size() > 80) {
    const std::string cut = in_quotes(text);
    return cut.substr(1, cut.size() - 2);
  }
  return text;
}

struct Difference {
  std::string path;  // empty: of all that there is
  std::string a;
  std::string b;
};

// The first place where a and b differ, depth first in key order; false: equal.
bool find_difference(const nlohmann::json& a, const nlohmann::json& b, const std::string& path, Difference& out) {
  const auto below = [&](const std::string& name) { return path.empty() ? name : path + "." + name; };
  if (a.is_object() && b.is_object()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : a.items()) names.push_back(name);
    for (const auto& [name, value] : b.items()) {
      if (!a.contains(name)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      if (!a.contains(name)) return out = {below(name), "absent", shown(b[name])}, true;
      if (!b.contains(name)) return out = {below(name), shown(a[name]), "absent"}, true;
      if (find_difference(a[name], b[name], below(name), out)) return true;
    }
    return false;
  }
  // Lists of mappings are pipelines and told apart by item; lists of numbers are one value.
  const auto structured = [](const nlohmann::json& list) { return !list.empty() && list.front().is_object(); };
  if (a.is_array() && b.is_array() && structured(a) && structured(b)) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      const std::string item = below(std::to_string(i));
      if (i >= a.size()) return out = {item, "absent", shown(b[i])}, true;
      if (i >= b.size()) return out = {item, shown(a[i]), "absent"}, true;
      if (find_difference(a[i], b[i], item, out)) return true;
    }
    return false;
  }
  if (a == b) return false;
  out = {path, shown(a), shown(b)};
  return true;
}

// {"split": {...}, "name": "train"} -> {"splits": {"train": {...}}}: differences read as the job file does.
nlohmann::json as_job_file(nlohmann::json json) {
  if (!json.is_object() || !json.contains("split") || !json.contains("name") || !json["name"].is_string()) return json;
  nlohmann::json split = std::move(json["split"]);
  const std::string name = json["name"].get<std::string>();
  json.erase("split");
  json.erase("name");
  json["splits"][name] = std::move(split);
  return json;
}

// Says by `say` how two canonical texts differ, as ranks and saved states are told it in different words. Empty: they are equal.
template <class Say>
std::string said_of_difference(const std::string& canonical_a, const std::string& canonical_b, Say say) {
  if (canonical_a == canonical_b) return {};
  try {
    Difference found;
    if (find_difference(as_job_file(parse_bounded(canonical_a)), as_job_file(parse_bounded(canonical_b)), "", found)) {
      return say(found);
    }
    return "the same values, written differently";
  } catch (const Error&) {
    return "one of the two is not a split description of this version";
  }
}

}  // namespace

ResolvedSplit resolve_split(const Job& job, const std::string& split) {
  const auto found = job.splits.find(split);
  if (found == job.splits.end()) {
    std::vector<std::string> names;
    for (const auto& [name, spec] : job.splits) names.push_back(name);
    const std::string hint = did_you_mean(split, names);
    throw Error(ErrorKind::usage, (job.path.empty() ? "the job" : job.path) + " has no split " + in_quotes(split),
                hint.empty() ? (names.empty() ? "it has no splits" : "it has " + list_of(names, "and")) : hint);
  }
  ResolvedSplit out;
  out.name = split;
  static_cast<JobContent&>(out) = job;
  out.split = found->second;
  return out;
}

PixelRules pixel_rules(const ResolvedSplit& split) {
  return {arithmetic_of(split.arithmetic), split.color == "bgr", split.exif};
}

std::string canonical_json(const ResolvedSplit& split) {
  nlohmann::json out;
  out["version"] = kCanonicalVersion;
  out["name"] = split.name;
  write_level(job_sections(), job_of(split), out);
  out["seed"] = split.seed;  // the table holds signed integers; a job made in code may use all 64 bits
  nlohmann::json& inner = out["split"];
  write_level(split_sections(), split.split, inner);
  inner["pipeline"] = json_pipeline(split.split.pipeline);
  if (!split.split.gpu_pipeline.empty()) inner["gpu_pipeline"] = json_pipeline(split.split.gpu_pipeline);
  try {
    return json_text(out);
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::config, "split " + in_quotes(split.name) + " holds text that is not UTF-8",
                "use a dataset folder whose name is UTF-8");
  }
}

ResolvedSplit split_from_json(const std::string& json) {
  nlohmann::json root = parse_bounded(json);
  if (!root.is_object()) refuse("it is not an object");
  if (!root.contains("version") || root["version"] != kCanonicalVersion) refuse("another version");
  if (!root.contains("name") || !root["name"].is_string() || !valid_split_name(root["name"].get<std::string>())) {
    refuse("it has no valid name");
  }
  if (!root.contains("seed") || !root["seed"].is_number_unsigned()) refuse("it has no valid seed");
  if (!root.contains("split") || !root["split"].is_object()) refuse("it has no split");

  ResolvedSplit out;
  out.name = root["name"].get<std::string>();
  const auto seed = root["seed"].get<uint64_t>();
  root.erase("version");
  root.erase("name");
  root.erase("seed");
  const SourceText source(SourceText::Kind::peer, peer, "");
  const YamlNode tree = tree_of(root, source);
  Complaints complaints;
  Job job;
  read_content(tree, job, complaints);
  Origins ignored;
  read_split(tree.find("split")->value, tree.span, out.name, job, out.split, ignored, complaints);
  complaints.throw_if_any();
  static_cast<JobContent&>(out) = job;
  out.seed = seed;
  return out;
}

std::string first_difference(const std::string& canonical_a, const std::string& canonical_b) {
  return said_of_difference(canonical_a, canonical_b, [](const Difference& found) {
    return (found.path.empty() ? "" : found.path + ": ") + found.a + " here, " + found.b + " there";
  });
}

std::string difference_since_saved(const std::string& saved, const std::string& now) {
  return said_of_difference(saved, now, [](const Difference& found) {
    return (found.path.empty() ? "" : found.path + " ") + "(saved: " + found.a + ", now: " + found.b + ")";
  });
}

int replicas_of(const Job& job, int trainers) {
  const int ranks = job.roles.ranks_per_replica;
  if (trainers % ranks != 0) {
    throw Error(ErrorKind::config,
                "roles.ranks_per_replica is " + std::to_string(ranks) + ", which does not divide the " +
                    std::to_string(trainers) + (trainers == 1 ? " trainer" : " trainers"),
                "start a multiple of it as trainers (roles.trainers on every node)");
  }
  return trainers / ranks;
}

PlanSpec plan_spec(const ResolvedSplit& split, int64_t dataset_size, int64_t num_replicas) {
  PlanSpec spec;
  const SamplerSpec& sampler = split.split.sampler;
  spec.dataset_size = dataset_size;
  if (!sampler.indices.empty()) spec.dataset_size = sampler.file_count;
  if (!sampler.weights.empty() && sampler.num_samples > 0) spec.dataset_size = sampler.num_samples;
  spec.num_replicas = num_replicas;
  spec.batch_size = split.split.batch_size;
  spec.shuffle = split.split.sampler.shuffle;
  spec.seed = split.seed;
  spec.tail = split.split.tail;
  spec.sampler_drop_last = split.split.sampler.drop_last;
  spec.batch_drop_last = split.split.drop_last && !sampler.program;
  spec.mode = split.split.mode;
  return spec;
}

}  // namespace penstock
