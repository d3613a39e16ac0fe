// ParamValue as JSON: whole numbers stay whole, "not given" is null. For the canonical form and the schema.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/config/params.h"

namespace penstock {

inline nlohmann::json json_value(const ParamValue& value, ParamKind kind) {
  struct Writer {
    ParamKind kind;
    nlohmann::json operator()(std::monostate) const { return nullptr; }
    nlohmann::json operator()(int64_t number) const { return number; }
    nlohmann::json operator()(double number) const { return number; }
    nlohmann::json operator()(bool truth) const { return truth; }
    nlohmann::json operator()(const std::string& text) const {
      return kind == ParamKind::mapping ? nlohmann::json::parse(text) : nlohmann::json(text);
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
  };
  return std::visit(Writer{kind}, value);
}

}  // namespace penstock
