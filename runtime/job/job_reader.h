// From the tree of a job file to a Job, with every complaint and the origin of every value.
//
//   Origins origins;
//   read_job(root, job, origins, complaints);       // job.path must be set: relative folders start from it
//   origins["loader.threads"]                       // "job.yaml:14"; absent: a default
//
// Reads on after every complaint; `job` is meaningful only when there was none.
// Its parts: pipeline_reader.h (lists of transforms), split_checks.h (what in a split belongs together).
// Internal to runtime/job: users call load_job (job.h).
#pragma once

#include <map>
#include <string>

#include "runtime/job/job.h"
#include "runtime/job/key_table.h"
#include "runtime/job/yaml_tree.h"

namespace penstock {

using Origins = std::map<std::string, std::string>;

// What reading adds to, besides the job.
struct Reading {
  Origins& origins;
  Complaints& complaints;
  Arithmetic arithmetic = Arithmetic::exact;                          // of the job, which pipelines have to suit
  std::string (*elsewhere)(const std::string& key) = name_elsewhere;  // where a key stands that is none here

  void note(const std::string& path, const YamlNode& node) {
    if (node.span.source != nullptr) origins[path] = node.span.source->origin(node.span.offset);
  }
};

// The value of a key, or of a key within a section; nullptr: it is not there.
inline const YamlNode* value_at(const YamlNode& node, const std::string& first, const std::string& second = {}) {
  const YamlNode::Entry* entry = node.find(first);
  if (entry == nullptr) return nullptr;
  if (second.empty()) return &entry->value;
  const YamlNode::Entry* inner = entry->value.find(second);
  return inner == nullptr ? nullptr : &inner->value;
}

void read_job(const YamlNode& root, Job& job, Origins& origins, Complaints& complaints);

// The two halves of what a peer sends (canonical.cpp): keys of the job's content, and one split.
void read_content(const YamlNode& root, Job& job, Complaints& complaints);
void read_split(const YamlNode& node, const Span& key, const std::string& name, const Job& job, SplitSpec& split,
                Origins& origins, Complaints& complaints);
bool valid_split_name(const std::string& name);

// One job with the origins of its values: what load_job and show_job have in common.
struct JobWithOrigins {
  Job job;
  Origins origins;
};
JobWithOrigins parse_with_origins(const std::string& text, const std::string& path,
                                  const std::vector<std::string>& overrides,
                                  const std::map<std::string, std::string>& environment);
// Error(config) where that cannot be; `what` is "job file", `remedy` what to do where there is none.
std::string read_yaml_file(const std::string& path, const std::string& what, const std::string& remedy);
std::string read_job_file(const std::string& path);
std::map<std::string, std::string> job_environment();  // this process's PENSTOCK_CFG... variables

}  // namespace penstock
