// Parameters as data: how a transform (or a dataset, or a section of the job file) says which keys it takes, so that
// one table serves the parser, its error messages, the JSON schema and the documentation.
//
//   ParamInfo{.name = "p", .kind = ParamKind::number, .default_value = 0.5, .minimum = 0, .maximum = 1,
//             .doc = "probability of the flip"}
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace penstock {

enum class ParamKind {
  integer,   // int64_t
  number,    // double; integers are accepted, and a text of `choices` as that text
  boolean,   // bool
  text,      // std::string; one of `choices` when there are any
  texts,     // std::string, one of `choices`; or several, std::vector<std::string>, of which a list of one is that one
  numbers,   // std::vector<double>; a single number is accepted as a list of one, a text of `choices` as that text
  integers,  // std::vector<double> holding whole numbers; otherwise as numbers
  mapping,   // any YAML mapping; std::string with its JSON text, keys sorted
  transforms,  // std::vector<TransformSpec>: transforms inside a transform
};

// How deep transforms may stand inside transforms.
inline constexpr int kMaxTransformDepth = 4;

struct TransformSpec;

// `std::monostate` is YAML's null, for parameters whose default is "not given".
using ParamValue = std::variant<std::monostate, int64_t, double, bool, std::string, std::vector<double>,
                                std::vector<TransformSpec>, std::vector<std::string>>;

// Values by name, defaults filled in, types as the ParamInfo says. Ordered, so that it prints and hashes the same
// everywhere.
using ParamMap = std::map<std::string, ParamValue>;

struct TransformSpec {
  std::string name;
  ParamMap params;
};

inline bool operator==(const TransformSpec& a, const TransformSpec& b) {
  return a.name == b.name && a.params == b.params;
}

struct ParamInfo {
  std::string name;
  ParamKind kind = ParamKind::integer;
  std::optional<ParamValue> default_value{};                  // absent: the key is required
  double minimum = -std::numeric_limits<double>::infinity();  // for numbers, and for each element of a list
  double maximum = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices{};
  std::vector<size_t> lengths{};  // accepted lengths of a list; empty: any but 0
  bool nullable = false;          // null is a value of it though it has to be given
  std::string doc;

  // Whether null is a value of it.
  bool takes_null() const {
    return nullable || (default_value && std::holds_alternative<std::monostate>(*default_value));
  }
};

// "package.module:name": how Python code is named.
inline bool is_python_name(const std::string& text) {
  const size_t colon = text.find(':');
  const auto dotted = [](const std::string& part) {
    bool start = true;
    for (const char c : part) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
      if (c == '.' ? start : !letter && (start || c < '0' || c > '9')) return false;
      start = c == '.';
    }
    return !start;
  };
  return colon != std::string::npos && dotted(text.substr(0, colon)) && dotted(text.substr(colon + 1));
}

}  // namespace penstock
