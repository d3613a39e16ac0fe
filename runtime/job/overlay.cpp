#include "runtime/job/overlay.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/lower_case.h"
#include "runtime/job/suggest.h"
#include "runtime/job/value_reader.h"

namespace penstock {
namespace {

bool same(const std::string& a, const std::string& b, bool any_case) {
  return any_case ? lower_case(a) == lower_case(b) : a == b;
}

void merge(YamlNode& into, const YamlNode& value) {
  if (!into.is_mapping() || !value.is_mapping()) {
    into = value;
    return;
  }
  for (const YamlNode::Entry& entry : value.entries) {
    if (YamlNode::Entry* there = into.find(entry.key)) {
      merge(there->value, entry.value);
    } else {
      into.entries.push_back(entry);
    }
  }
}

// The name of a transform in a list: "Name" or {Name: ...}.
const std::string* name_of_item(const YamlNode& item) {
  if (item.is_scalar()) return &item.text;
  return item.is_mapping() && item.entries.size() == 1 ? &item.entries.front().key : nullptr;
}

// "RandomHorizontalFlip" becomes {RandomHorizontalFlip: null}, so that it can be given parameters.
void make_mapping(YamlNode& item) {
  YamlNode empty;
  empty.span = item.span;
  YamlNode mapping;
  mapping.kind = YamlNode::Kind::mapping;
  mapping.span = item.span;
  mapping.entries.push_back({item.text, item.span, std::move(empty)});
  item = std::move(mapping);
}

}  // namespace

void Overlay::add_environment(const std::map<std::string, std::string>& environment) {
  const std::string prefix = std::string(kEnvironmentPrefix) + "__";
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(kEnvironmentPrefix)) continue;
    if (!name.starts_with(prefix)) {
      sources_.emplace_back(SourceText::Kind::environment, name, name + "=" + value);
      complaints_.add({&sources_.back(), 0, name.size()}, "a variable that sets nothing",
                      "its name must begin with " + prefix + ", as in " + prefix + "LOADER__THREADS");
      continue;
    }
    add(SourceText::Kind::environment, name, name + "=" + value, prefix.size(), "__", true);
  }
}

void Overlay::add_override(const std::string& assignment) {
  add(SourceText::Kind::command_line, "command line", assignment, 0, ".", false);
}

void Overlay::add(SourceText::Kind kind, const std::string& name, const std::string& text, size_t begin,
                  const std::string& separator, bool any_case) {
  const SourceText& source = sources_.emplace_back(kind, name, text);
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    complaints_.add({&source, 0, text.size()}, "expected key=value",
                    kind == SourceText::Kind::command_line
                        ? "as in splits.train.batch_size=32; a program to start stands after --"
                        : "as in splits.train.batch_size=32");
    return;
  }
  Change change;
  change.any_case = any_case;
  for (size_t from = begin; from <= equals;) {
    const size_t to = std::min(text.find(separator, from), equals);
    if (to == from) {
      complaints_.add({&source, from, 1}, "expected a key", "as in splits.train.batch_size=32");
      return;
    }
    change.path.push_back({text.substr(from, to - from), {&source, from, to - from}});
    from = to == equals ? equals + 1 : to + separator.size();
    if (change.path.size() > kYamlMaxDepth) {
      complaints_.add({&source, from, 0}, "more than " + std::to_string(kYamlMaxDepth) + " levels");
      return;
    }
  }
  if (!parse_yaml(source, equals + 1, complaints_, change.value)) return;
  if (change.value.is_null() && change.value.span.length == 0) change.value.span = {&source, equals, 1};
  changes_.push_back(std::move(change));
}

void Overlay::apply(YamlNode& root) {
  for (const Change& change : changes_) apply(root, change);
}

void Overlay::apply(YamlNode& root, const Change& change) {
  YamlNode* node = &root;
  for (size_t level = 0; level < change.path.size(); ++level) {
    node = descend(*node, change, level);
    if (node == nullptr) return;
  }
  merge(*node, change.value);
}

// One step of the path; keys that are missing are made. nullptr: a complaint was added.
YamlNode* Overlay::descend(YamlNode& node, const Change& change, size_t level) {
  const Segment& segment = change.path[level];
  if (node.is_null()) {
    // A section that was left empty; its place stays the one the file gave it.
    node.kind = YamlNode::Kind::mapping;
    if (node.span.source == nullptr) node.span = segment.span;
  }
  if (node.is_mapping()) {
    for (YamlNode::Entry& entry : node.entries) {
      if (same(entry.key, segment.name, change.any_case)) return &entry.value;
    }
    YamlNode fresh;
    fresh.span = segment.span;
    node.entries.push_back({change.any_case ? lower_case(segment.name) : segment.name, segment.span, std::move(fresh)});
    return &node.entries.back().value;
  }
  if (!node.is_sequence()) {
    if (node.kind == YamlNode::Kind::unknown) return nullptr;  // was complained of already
    const std::string owner = level == 0 ? "the job" : in_quotes(change.path[level - 1].name);
    complaints_.add(segment.span, owner + " has no keys: it is " + describe(node));
    return nullptr;
  }

  size_t index = 0;
  const char* end = segment.name.data() + segment.name.size();
  const auto number = std::from_chars(segment.name.data(), end, index);
  if (number.ptr == end) {
    if (number.ec == std::errc() && index < node.items.size()) {
      YamlNode& item = node.items[index];
      if (item.is_scalar() && level + 1 < change.path.size()) make_mapping(item);
      return &item;
    }
    complaints_.add(segment.span, "there is no item " + segment.name.substr(0, 30),
                    "the list has " + std::to_string(node.items.size()) + ", counted from 0");
    return nullptr;
  }
  YamlNode* found = nullptr;
  std::vector<std::string> names;
  for (YamlNode& item : node.items) {
    const std::string* name = name_of_item(item);
    if (name == nullptr) continue;
    names.push_back(*name);
    if (!same(*name, segment.name, change.any_case)) continue;
    if (found != nullptr) {
      complaints_.add(segment.span, in_quotes(segment.name) + " is in the list more than once",
                      "use its number, from 0");
      return nullptr;
    }
    found = &item;
  }
  if (found == nullptr) {
    const std::string hint = complaints_.full() ? "" : did_you_mean(segment.name, names);
    complaints_.add(segment.span, "there is no " + in_quotes(segment.name) + " in the list", hint);
    return nullptr;
  }
  if (found->is_scalar()) make_mapping(*found);
  return &found->entries.front().value;
}

}  // namespace penstock
