// One value of the job file, checked against its ParamInfo.
//
//   std::optional<ParamValue> value = read_value(node, info, "loader.threads", complaints);
//   describe(node);     // "the text 'lots'", "the integer 5", "a list": what was found, for messages
//
// Rules: plain YAML scalars are typed as in YAML 1.2's core schema, minus what surprises: no octal by a leading zero,
//   no yes/no, no infinity. Text takes any scalar, so a folder may be called 2024. nullopt: a complaint was added.
// Pure but for the complaints.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/params.h"
#include "runtime/job/yaml_tree.h"

namespace penstock {

std::optional<ParamValue> read_value(const YamlNode& node, const ParamInfo& info, const std::string& path,
                                     Complaints& complaints);
std::string describe(const YamlNode& node);
std::string expected(const ParamInfo& info);  // "an integer", "fail or substitute"

std::optional<int64_t> as_integer(const YamlNode& node);
std::optional<double> as_number(const YamlNode& node);  // integers too
std::optional<bool> as_boolean(const YamlNode& node);

// A number as people write it: "64", "0.001", the shortest text that reads back the same.
std::string number_text(double value);

}  // namespace penstock
