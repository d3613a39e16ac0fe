// Overrides: values from the environment and the command line, laid over the tree of the job file.
//
//   Overlay overlay(complaints);
//   overlay.add_environment({{"PENSTOCK_CFG__SPLITS__TRAIN__BATCH_SIZE", "32"}});
//   overlay.add_override("splits.train.pipeline.RandomResizedCrop.size=192");
//   overlay.apply(root);                       // then read_job(root, ...) checks everything alike
//
// Semantics: right of '=' stands YAML. A mapping is merged into the mapping that is there, key by key; anything else
//   replaces. Items of a list are named by number, transforms also by name. Environment names are matched to the keys
//   that exist without regard to case, else taken in lower case; '__' separates, so single underscores stay.
//   Later ones win; the command line over the environment over the file.
// Ownership: keeps the texts that the spans in the tree refer to; must outlive the tree and the complaints.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "runtime/job/yaml_tree.h"

namespace penstock {

inline constexpr const char* kEnvironmentPrefix = "PENSTOCK_CFG";

class Overlay {
 public:
  explicit Overlay(Complaints& complaints) : complaints_(complaints) {}
  Overlay(const Overlay&) = delete;
  Overlay& operator=(const Overlay&) = delete;

  void add_environment(const std::map<std::string, std::string>& environment);
  void add_override(const std::string& assignment);
  void apply(YamlNode& root);

 private:
  struct Segment {
    std::string name;
    Span span;
  };
  struct Change {
    std::vector<Segment> path;
    YamlNode value;
    bool any_case = false;
  };
  void add(SourceText::Kind kind, const std::string& name, const std::string& text, size_t begin,
           const std::string& separator, bool any_case);
  void apply(YamlNode& root, const Change& change);
  YamlNode* descend(YamlNode& node, const Change& change, size_t level);

  Complaints& complaints_;
  std::deque<SourceText> sources_;  // a deque, because spans hold addresses
  std::vector<Change> changes_;
};

}  // namespace penstock
