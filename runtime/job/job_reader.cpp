#include "runtime/job/job_reader.h"

#include <algorithm>

#include "runtime/job/key_table.h"
#include "runtime/job/pipeline_reader.h"
#include "runtime/job/split_checks.h"
#include "runtime/job/suggest.h"
#include "runtime/job/value_reader.h"

namespace penstock {
namespace {

std::string in_section(const std::string& prefix) {
  return prefix.empty() ? "at the top level" : "in " + in_quotes(prefix.substr(0, prefix.size() - 1));
}

void unknown_key(const YamlNode::Entry& entry, const std::string& prefix, const std::vector<std::string>& known,
                 Reading& reading) {
  std::string hint;
  if (!reading.complaints.full()) {
    hint = did_you_mean(entry.key, known);
    if (hint.empty()) {
      const std::string elsewhere = name_elsewhere(entry.key);
      const bool top = elsewhere.find('.') == std::string::npos;
      if (!elsewhere.empty()) hint = top ? "it stands at the top level" : "did you mean '" + elsewhere + "'?";
    }
    if (hint.empty()) hint = "known here: " + list_of(known, "and");
  }
  reading.complaints.add(entry.key_span, "unknown key " + in_quotes(entry.key) + " " + in_section(prefix), hint);
}

template <class T>
const Key<T>* find_key(const Section<T>& section, const std::string& name) {
  for (const Key<T>& key : section.keys) {
    if (key.info.name == name) return &key;
  }
  return nullptr;
}

template <class T>
void read_key(const Key<T>& key, const YamlNode::Entry& entry, const std::string& path, T& target, Reading& reading) {
  const std::optional<ParamValue> value = read_value(entry.value, key.info, path, reading.complaints);
  if (!value) return;
  key.set(target, *value);
  reading.note(path, entry.value);
}

// The keys of one named section, `node` being its value (nullptr: the section is not there at all).
template <class T>
void read_section(const Section<T>& section, const YamlNode* node, const Span& owner, const std::string& prefix,
                  T& target, Reading& reading) {
  std::vector<std::string> names;
  for (const Key<T>& key : section.keys) names.push_back(key.info.name);
  if (node != nullptr && node->kind == YamlNode::Kind::unknown) return;
  if (node != nullptr && !node->is_null() && !node->is_mapping()) {
    const std::string path = prefix.substr(0, prefix.size() - 1);
    reading.complaints.add(
        node->span, in_quotes(path) + ": expected a mapping of " + list_of(names, "and") + ", found " + describe(*node),
        node->is_scalar() ? "write {" + names.front() + ": " + node->text.substr(0, 60) + "}" : "");
    return;
  }
  if (node != nullptr) {
    for (const YamlNode::Entry& entry : node->entries) {
      if (const Key<T>* key = find_key(section, entry.key)) {
        read_key(*key, entry, prefix + entry.key, target, reading);
      } else {
        unknown_key(entry, prefix, names, reading);
      }
    }
  }
  for (const Key<T>& key : section.keys) {
    if (!key.info.default_value && (node == nullptr || node->find(key.info.name) == nullptr)) {
      reading.complaints.add(owner, "missing required key " + in_quotes(key.info.name) + " " + in_section(prefix));
    }
  }
}

// A level of keys and sections; `more` are names that the caller reads itself.
template <class T>
void read_level(const std::vector<Section<T>>& sections, const std::vector<std::string>& more, const YamlNode& node,
                const Span& owner, const std::string& prefix, T& target, Reading& reading) {
  for (const YamlNode::Entry& entry : node.entries) {
    bool known = std::find(more.begin(), more.end(), entry.key) != more.end();
    for (const Section<T>& section : sections) {
      if (section.name.empty()) {
        if (const Key<T>* key = find_key(section, entry.key)) {
          known = true;
          read_key(*key, entry, prefix + entry.key, target, reading);
        }
      } else if (section.name == entry.key) {
        known = true;
        read_section(section, &entry.value, entry.key_span, prefix + entry.key + ".", target, reading);
      }
    }
    if (!known) unknown_key(entry, prefix, names_at_level(sections, more), reading);
  }
  for (const Section<T>& section : sections) {
    if (!section.name.empty() && node.find(section.name) == nullptr) {
      read_section<T>(section, nullptr, owner, prefix + section.name + ".", target, reading);
    }
  }
}

}  // namespace

bool valid_split_name(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return name[0] != '-' && std::all_of(name.begin(), name.end(), fits);
}

void read_split(const YamlNode& node, const Span& key, const std::string& name, const std::string& job_path,
                SplitSpec& split, Origins& origins, Complaints& complaints) {
  Reading reading{origins, complaints};
  const std::string path = "splits." + name;
  if (node.kind == YamlNode::Kind::unknown) return;
  if (!node.is_null() && !node.is_mapping()) {
    complaints.add(node.span, in_quotes(path) + ": expected a mapping, found " + describe(node));
    return;
  }
  const size_t before = complaints.count();
  read_level(split_sections(), {"pipeline", "gpu_pipeline"}, node, key, path + ".", split, reading);
  if (const YamlNode* pipeline = value_at(node, "pipeline")) {
    read_pipeline(*pipeline, path + ".pipeline", split.pipeline, reading);
  } else {
    complaints.add(key, "missing required key 'pipeline' in " + in_quotes(path));
  }
  check_variants(node, path, complaints.count() == before, split, reading);
  check_dataset(node, key, path, job_path, split, reading);
  check_sampler(node, path, job_path, split, complaints);
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
  read_level(sections, {"split"}, root, root.span, "", job, reading);
}

void read_job(const YamlNode& root, Job& job, Origins& origins, Complaints& complaints) {
  Reading reading{origins, complaints};
  if (root.kind == YamlNode::Kind::unknown) return;
  if (!root.is_mapping() && !root.is_null()) {
    complaints.add(root.span, "a job file is a mapping of keys, found " + describe(root));
    return;
  }
  read_level(job_sections(), {"splits"}, root, root.span, "", job, reading);
  if (job.balancer.heartbeat_s >= job.balancer.lost_after_s) {
    const YamlNode* culprit = value_at(root, "balancer", "lost_after_s");
    if (culprit == nullptr) culprit = value_at(root, "balancer", "heartbeat_s");
    complaints.add(culprit == nullptr ? root.span : culprit->span,
                   "'balancer.lost_after_s' must be longer than 'balancer.heartbeat_s'", "a few heartbeats at least");
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
    read_split(entry.value, entry.key_span, entry.key, job.path, job.splits[entry.key], origins, complaints);
  }
}

}  // namespace penstock
