// ParamValue as JSON: whole numbers stay whole, "not given" is null. For the canonical form, `config show`, the schema.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/base/json_text.h"
#include "runtime/base/params.h"
#include "runtime/transforms/catalog.h"

namespace penstock {

inline nlohmann::json json_value(const ParamValue& value, ParamKind kind);

// {"CenterCrop": {"size": [224]}}
inline nlohmann::json json_transform(const TransformSpec& spec) {
  const TransformInfo* info = find_transform(spec.name);
  nlohmann::json params = nlohmann::json::object();
  for (const auto& [name, value] : spec.params) {
    ParamKind kind = ParamKind::numbers;
    for (size_t i = 0; info != nullptr && i < info->params.size(); ++i) {
      if (info->params[i].name == name) kind = info->params[i].kind;
    }
    params[name] = json_value(value, kind);
  }
  return nlohmann::json{{spec.name, std::move(params)}};
}

inline nlohmann::json json_value(const ParamValue& value, ParamKind kind) {
  struct Writer {
    ParamKind kind;
    nlohmann::json operator()(std::monostate) const { return nullptr; }
    nlohmann::json operator()(int64_t number) const { return number; }
    nlohmann::json operator()(double number) const { return number; }
    nlohmann::json operator()(bool truth) const { return truth; }
    nlohmann::json operator()(const std::string& text) const {
      return kind == ParamKind::mapping ? parse_json(text) : nlohmann::json(text);
    }
    nlohmann::json operator()(const std::vector<double>& list) const {
      nlohmann::json out = nlohmann::json::array();
      for (const double number : list) {
        if (kind == ParamKind::integers) {
          out.push_back(static_cast<int64_t>(number));
        } else {
          out.push_back(number);
        }
      }
      return out;
    }
    nlohmann::json operator()(const std::vector<std::string>& list) const { return list; }
    nlohmann::json operator()(const std::vector<TransformSpec>& list) const {
      nlohmann::json out = nlohmann::json::array();
      for (const TransformSpec& spec : list) out.push_back(json_transform(spec));
      return out;
    }
  };
  return std::visit(Writer{kind}, value);
}

}  // namespace penstock
