#include "runtime/job/job_reader.h"

#include <algorithm>

#include "runtime/job/key_table.h"
#include "runtime/job/level_reader.h"
#include "runtime/job/pipeline_reader.h"
#include "runtime/job/split_checks.h"
#include "runtime/job/suggest.h"
#include "runtime/job/value_reader.h"

namespace penstock {

bool valid_split_name(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return name[0] != '-' && std::all_of(name.begin(), name.end(), fits);
}

void read_split(const YamlNode& node, const Span& key, const std::string& name, const Job& job, SplitSpec& split,
                Origins& origins, Complaints& complaints) {
  Reading reading{.origins = origins, .complaints = complaints, .arithmetic = arithmetic_of(job.arithmetic)};
  const std::string path = "splits." + name;
  if (node.kind == YamlNode::Kind::unknown) return;
  if (!node.is_null() && !node.is_mapping()) {
    complaints.add(node.span, in_quotes(path) + ": expected a mapping, found " + describe(node));
    return;
  }
  const size_t before = complaints.count();
  read_level(split_sections(), {"pipeline", "gpu_pipeline"}, node, path + ".", split, reading);
  if (const YamlNode* pipeline = value_at(node, "pipeline")) {
    read_pipeline(*pipeline, path + ".pipeline", split.pipeline, reading);
  } else {
    complaints.add(key, "missing required key 'pipeline' in " + in_quotes(path));
  }
  check_variants(node, path, complaints.count() == before, split, reading);
  check_dataset(node, key, path, job.path, split, reading);
  check_sampler(node, path, job.path, split, complaints);
  check_tail(node, split, complaints);
}

void read_content(const YamlNode& root, Job& job, Complaints& complaints) {
  Origins ignored;
  Reading reading{ignored, complaints};
  std::vector<Section<Job>> sections;
  for (Section<Job> section : job_sections()) {
    std::erase_if(section.keys, [](const Key<Job>& key) { return !key.content; });
    if (!section.keys.empty()) sections.push_back(std::move(section));
  }
  read_level(sections, {"split"}, root, "", job, reading);
}

// Parts of one folder have nothing in common only where all splits take it apart alike.
void check_parts(const YamlNode::Entry& entry, const Job& job, Complaints& complaints) {
  const auto it = job.splits.find(entry.key);
  if (it == job.splits.end() || it->second.dataset.val_share == 0) return;
  const DatasetSpec& own = it->second.dataset;
  for (const auto& [name, split] : job.splits) {
    const DatasetSpec& other = split.dataset;
    if (other.folder != own.folder || name == entry.key) continue;
    if (other.val_share != own.val_share || other.val_seed != own.val_seed) {
      complaints.add(entry.key_span,
                     "the splits " + in_quotes(entry.key) + " and " + in_quotes(name) +
                         " take one folder apart in different ways, so they may have pictures in common",
                     "give both the same val_share and val_seed, and one of them train: false");
      return;
    }
  }
}

void read_job(const YamlNode& root, Job& job, Origins& origins, Complaints& complaints) {
  Reading reading{origins, complaints};
  if (root.kind == YamlNode::Kind::unknown) return;
  if (!root.is_mapping() && !root.is_null()) {
    complaints.add(root.span, "a job file is a mapping of keys, found " + describe(root));
    return;
  }
  read_level(job_sections(), {"splits"}, root, "", job, reading);
  if (job.balancer.heartbeat_s >= job.balancer.lost_after_s) {
    const YamlNode* culprit = value_at(root, "balancer", "lost_after_s");
    if (culprit == nullptr) culprit = value_at(root, "balancer", "heartbeat_s");
    complaints.add(culprit == nullptr ? root.span : culprit->span,
                   "'balancer.lost_after_s' must be longer than 'balancer.heartbeat_s'", "a few heartbeats at least");
  }
  if (!job.exif && job.arithmetic != "opencv") {
    const YamlNode* culprit = value_at(root, "exif");
    complaints.add(culprit == nullptr ? root.span : culprit->span,
                   "'exif' is of arithmetic: opencv, and arithmetic is " + job.arithmetic,
                   "leave it out: nothing is turned without the transform ExifTranspose");
  }
  const YamlNode::Entry* splits = root.find("splits");
  if (splits == nullptr) {
    complaints.add(root.span, "missing required key 'splits' at the top level", "write splits: {train: {...}}");
    return;
  }
  if (splits->value.kind == YamlNode::Kind::unknown) return;
  if (!splits->value.is_mapping() || splits->value.entries.empty()) {
    const std::string found = splits->value.is_mapping() ? "an empty one" : describe(splits->value);
    complaints.add(splits->value.span, "'splits': expected a mapping of at least one split, found " + found);
    return;
  }
  for (const YamlNode::Entry& entry : splits->value.entries) {
    if (!valid_split_name(entry.key)) {
      complaints.add(entry.key_span, "a split's name is made of letters, digits, '_' and '-', at most 64");
      continue;
    }
    // An override that means to change a split must not begin a new one by a typing mistake.
    const bool from_file = entry.key_span.source == nullptr || entry.key_span.source->kind() == SourceText::Kind::file;
    if (!from_file && entry.value.find("pipeline") == nullptr) {
      std::vector<std::string> others;
      for (const YamlNode::Entry& other : splits->value.entries) {
        if (other.key != entry.key) others.push_back(other.key);
      }
      if (!others.empty()) {
        complaints.add(entry.key_span, "there is no split " + in_quotes(entry.key), did_you_mean(entry.key, others));
        continue;
      }
    }
    read_split(entry.value, entry.key_span, entry.key, job, job.splits[entry.key], origins, complaints);
  }
  for (const YamlNode::Entry& entry : splits->value.entries) check_parts(entry, job, complaints);
}

}  // namespace penstock
