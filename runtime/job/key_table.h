// The table of all keys of the job file, as data.
//
//   for (const Section<Job>& section : job_sections()) for (const Key<Job>& key : section.keys) key.get(job);
//
// Purpose: one entry per key (name, kind, default, bounds, choices, what it is for, which member of Job holds it)
//   serves the parser, its messages, `penstock config show`, `penstock schema` and the canonical form, so they cannot
//   disagree. A new key is a member in job.h and one line in key_table.cpp.
// Defaults are those of job.h: the table reads them from a default-constructed struct.
// Not in the table, being lists or maps: `splits`, `splits.NAME.pipeline` and `splits.NAME.gpu_pipeline`
// (job_reader.h).
// Thread-safety: constant after first use.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/params.h"
#include "runtime/job/job.h"

namespace penstock {

template <class T>
struct Key {
  ParamInfo info;
  bool content = false;  // decides what a stream contains or when it fails: part of the canonical form
  bool sparse = false;   // written only where it differs from the default: most jobs have nothing to do with it
  std::function<ParamValue(const T&)> get;
  std::function<void(T&, const ParamValue&)> set;

  bool left_out(const T& t) const { return sparse && get(t) == *info.default_value; }
};

template <class T>
struct Section {
  std::string name;  // "loader"; empty: the keys stand at the level itself
  std::string doc;
  std::vector<Key<T>> keys;
  std::vector<std::string> one_of{};  // of these keys exactly one is given, though each has a default
};

const std::vector<Section<Job>>& job_sections();
const std::vector<Section<SplitSpec>>& split_sections();

// The names valid at one level: keys of the unnamed section, the other sections' names, and `more`.
template <class T>
std::vector<std::string> names_at_level(const std::vector<Section<T>>& sections, std::vector<std::string> more) {
  for (const Section<T>& section : sections) {
    if (!section.name.empty()) {
      more.push_back(section.name);
    } else {
      for (const Key<T>& key : section.keys) more.push_back(key.info.name);
    }
  }
  return more;
}

// What users of other loaders write: "num_workers" -> "loader.threads". Empty: nothing known.
std::string name_elsewhere(const std::string& key);

}  // namespace penstock
