// YAML as a plain tree with positions, read under limits.
//
//   SourceText file(SourceText::Kind::file, "job.yaml", text);
//   Complaints complaints;
//   YamlNode root;
//   if (parse_yaml(file, 0, complaints, root)) { ... root.find("seed") ... }
//
// Purpose: a job file may come from anywhere, and yaml-cpp's own node tree follows aliases (308 bytes can become
//   hundreds of megabytes) and recurses as deep as the text nests. So the tree is built here from yaml-cpp's events:
//   - more than 1 MiB, text that is not UTF-8, and nesting deeper than 32 are refused before or while it is read
//     (brackets and dashes are counted before yaml-cpp sees the text, as its parser recurses);
//   - anchors, aliases and tags are complaints: job files have no use for them;
//   - duplicate keys are complaints; the first one counts.
// Failure: complaints only; false when no tree could be made at all.
// Ownership: nodes are values; their spans refer to the SourceText. Thread-safety: none needed, no shared state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/job/source_text.h"

namespace penstock {

constexpr size_t kYamlMaxBytes = size_t{1} << 20;
constexpr size_t kYamlMaxDepth = 32;

struct YamlNode {
  enum class Kind { null, scalar, sequence, mapping, unknown };  // unknown: complained of already; say no more
  struct Entry;

  Kind kind = Kind::null;
  std::string text;     // of a scalar
  bool quoted = false;  // 'text' or "text" or a block: never a number, a boolean or null
  Span span;            // an empty value has the span of its key
  std::vector<YamlNode> items;
  std::vector<Entry> entries;

  bool is_null() const noexcept { return kind == Kind::null; }
  bool is_scalar() const noexcept { return kind == Kind::scalar; }
  bool is_sequence() const noexcept { return kind == Kind::sequence; }
  bool is_mapping() const noexcept { return kind == Kind::mapping; }
  Entry* find(std::string_view key);  // nullptr when there is none, or this is no mapping
  const Entry* find(std::string_view key) const;
};

struct YamlNode::Entry {
  std::string key;
  Span key_span;
  YamlNode value;
};

// Reads source.text() from byte `begin` (overrides start behind their '=').
bool parse_yaml(const SourceText& source, size_t begin, Complaints& complaints, YamlNode& root);

}  // namespace penstock
