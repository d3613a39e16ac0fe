// One level of a file, by its table: keys and sections into the struct's members, everything else into complaints.
//
//   read_level(job_sections(), {"splits"}, root, "", job, reading);
//
// Reads on after every complaint. Internal to runtime/job: job_reader.cpp and cluster.cpp.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "runtime/job/job_reader.h"
#include "runtime/job/key_table.h"
#include "runtime/job/suggest.h"
#include "runtime/job/value_reader.h"

namespace penstock {

inline std::string in_section(const std::string& prefix) {
  return prefix.empty() ? "at the top level" : "in " + in_quotes(prefix.substr(0, prefix.size() - 1));
}

inline void unknown_key(const YamlNode::Entry& entry, const std::string& prefix, const std::vector<std::string>& known,
                        Reading& reading) {
  std::string hint;
  if (!reading.complaints.full()) {
    hint = did_you_mean(entry.key, known);
    if (hint.empty()) {
      const std::string elsewhere = reading.elsewhere(entry.key);
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

// The keys of one named section, `node` being its value.
template <class T>
void read_section(const Section<T>& section, const YamlNode& node, const std::string& prefix, T& target,
                  Reading& reading) {
  std::vector<std::string> names;
  for (const Key<T>& key : section.keys) names.push_back(key.info.name);
  if (node.kind == YamlNode::Kind::unknown) return;
  if (!node.is_null() && !node.is_mapping()) {
    const std::string path = prefix.substr(0, prefix.size() - 1);
    reading.complaints.add(
        node.span, in_quotes(path) + ": expected a mapping of " + list_of(names, "and") + ", found " + describe(node),
        node.is_scalar() ? "write {" + names.front() + ": " + node.text.substr(0, 60) + "}" : "");
    return;
  }
  for (const YamlNode::Entry& entry : node.entries) {
    if (const Key<T>* key = find_key(section, entry.key)) {
      read_key(*key, entry, prefix + entry.key, target, reading);
    } else {
      unknown_key(entry, prefix, names, reading);
    }
  }
}

// A level of keys and sections; `more` are names that the caller reads itself.
template <class T>
void read_level(const std::vector<Section<T>>& sections, const std::vector<std::string>& more, const YamlNode& node,
                const std::string& prefix, T& target, Reading& reading) {
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
        read_section(section, entry.value, prefix + entry.key + ".", target, reading);
      }
    }
    if (!known) unknown_key(entry, prefix, names_at_level(sections, more), reading);
  }
}

}  // namespace penstock
