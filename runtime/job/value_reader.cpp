#include "runtime/job/value_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/json_text.h"
#include "runtime/base/lower_case.h"
#include "runtime/job/suggest.h"

namespace penstock {
namespace {

bool digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_choice(const YamlNode& node, const ParamInfo& info) {
  return node.is_scalar() && std::find(info.choices.begin(), info.choices.end(), node.text) != info.choices.end();
}

std::string_view without_sign(std::string_view text) {
  return !text.empty() && (text[0] == '-' || text[0] == '+') ? text.substr(1) : text;
}

// An integer by its looks, however large.
bool looks_integer(const YamlNode& node) {
  if (!node.is_scalar() || node.quoted) return false;
  const std::string_view body = without_sign(node.text);
  return digits(body) && (body.size() == 1 || body[0] != '0');
}

std::string range_of(const ParamInfo& info) {
  const bool low = std::isfinite(info.minimum);
  const bool high = std::isfinite(info.maximum);
  if (low && high) return "between " + number_text(info.minimum) + " and " + number_text(info.maximum);
  return low ? "at least " + number_text(info.minimum) : "at most " + number_text(info.maximum);
}

std::string lengths_of(const ParamInfo& info) {
  std::vector<std::string> out;
  for (const size_t length : info.lengths) out.push_back(std::to_string(length));
  return list_of(out, "or");
}

void wrong_type(const YamlNode& node, const ParamInfo& info, const std::string& path, Complaints& complaints) {
  std::string hint;
  if (info.kind == ParamKind::boolean && node.is_scalar()) {
    const std::string low = lower_case(node.text);
    if (low == "yes" || low == "on" || low == "y" || low == "1") hint = "did you mean 'true'?";
    if (low == "no" || low == "off" || low == "n" || low == "0") hint = "did you mean 'false'?";
    if (hint.empty()) hint = did_you_mean(node.text, {"true", "false"});
  }
  if (node.is_scalar() && node.quoted && hint.empty()) {
    YamlNode plain = node;
    plain.quoted = false;
    if (info.kind == ParamKind::integer ? as_integer(plain).has_value() : as_number(plain).has_value()) {
      hint = "leave out the quotes";
    }
  }
  if (node.is_scalar() && hint.empty()) {
    std::string low = lower_case(node.text);
    low.erase(0, std::min(low.find_first_not_of("+-."), low.size()));
    const bool number = info.kind == ParamKind::number || info.kind == ParamKind::numbers;
    if (number && (low == "nan" || low == "inf" || low == "infinity")) hint = "numbers are finite here";
  }
  if (info.kind == ParamKind::number && node.is_scalar() && hint.empty()) hint = did_you_mean(node.text, info.choices);
  complaints.add(node.span, in_quotes(path) + ": expected " + expected(info) + ", found " + describe(node), hint);
}

bool in_range(const YamlNode& node, double value, const ParamInfo& info, const std::string& path,
              Complaints& complaints) {
  if (value >= info.minimum && value <= info.maximum) return true;
  complaints.add(node.span, in_quotes(path) + " is " + (node.text.size() > 30 ? number_text(value) : node.text) +
                                "; it must be " + range_of(info));
  return false;
}

std::optional<ParamValue> read_texts(const YamlNode& node, const ParamInfo& info, const std::string& path,
                                     Complaints& complaints) {
  if (is_choice(node, info)) return node.text;
  const auto not_one = [&](const YamlNode& item) {
    complaints.add(item.span, in_quotes(path) + ": expected " + expected(info) + ", found " + describe(item),
                   item.is_scalar() ? did_you_mean(item.text, info.choices) : "");
  };
  if (!node.is_sequence() || node.items.empty()) {
    not_one(node);
    return std::nullopt;
  }
  std::vector<std::string> out;
  for (const YamlNode& item : node.items) {
    if (item.kind == YamlNode::Kind::unknown) return std::nullopt;
    if (!is_choice(item, info)) {
      not_one(item);
      return std::nullopt;
    }
    out.push_back(item.text);
  }
  if (out.size() == 1) return out.front();
  return out;
}

std::optional<ParamValue> read_list(const YamlNode& node, const ParamInfo& info, const std::string& path,
                                    Complaints& complaints) {
  const bool whole = info.kind == ParamKind::integers;
  std::vector<double> out;
  const auto element = [&](const YamlNode& item) {
    if (item.kind == YamlNode::Kind::unknown) return false;
    const std::optional<int64_t> integer = as_integer(item);
    const std::optional<double> number = as_number(item);
    if (whole ? !integer.has_value() : !number.has_value()) {
      wrong_type(item, info, path, complaints);
      return false;
    }
    if (whole && std::abs(*number) > 9007199254740992.0) {  // lists hold doubles, exact up to 2^53
      complaints.add(item.span, in_quotes(path) + ": " + number_text(*number) + " is too large");
      return false;
    }
    out.push_back(*number);
    return in_range(item, *number, info, path, complaints);
  };
  if (!node.is_sequence()) {
    if (!element(node)) return std::nullopt;
  } else {
    bool good = true;
    for (const YamlNode& item : node.items) good = element(item) && good;
    if (!good) return std::nullopt;
  }
  const bool fits = info.lengths.empty()
                        ? !out.empty()
                        : std::find(info.lengths.begin(), info.lengths.end(), out.size()) != info.lengths.end();
  if (!fits) {
    const std::string wanted = info.lengths.empty() ? "at least one value" : lengths_of(info) + " values";
    complaints.add(node.span, in_quotes(path) + ": expected " + wanted + ", found " + std::to_string(out.size()));
    return std::nullopt;
  }
  return out;
}

// The tree as JSON, its plain scalars typed as everywhere in the file. False: part of it is not known.
bool to_json(const YamlNode& node, nlohmann::json& out) {
  switch (node.kind) {
    case YamlNode::Kind::unknown: return false;
    case YamlNode::Kind::null: out = nullptr; return true;
    case YamlNode::Kind::sequence:
      out = nlohmann::json::array();
      for (const YamlNode& item : node.items) {
        out.emplace_back();
        if (!to_json(item, out.back())) return false;
      }
      return true;
    case YamlNode::Kind::mapping:
      out = nlohmann::json::object();
      for (const YamlNode::Entry& entry : node.entries) {
        if (!to_json(entry.value, out[entry.key])) return false;
      }
      return true;
    case YamlNode::Kind::scalar: break;
  }
  if (const auto truth = as_boolean(node)) {
    out = *truth;
  } else if (const auto integer = as_integer(node)) {
    out = *integer;
  } else if (const auto number = as_number(node)) {
    out = *number;
  } else {
    out = node.text;
  }
  return true;
}

}  // namespace

std::string number_text(double value) {
  char buffer[64];
  if (std::abs(value) < 1e15 && value == std::floor(value)) {
    const auto end = std::to_chars(buffer, buffer + sizeof(buffer), static_cast<int64_t>(value));
    return std::string(buffer, end.ptr);
  }
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

std::optional<int64_t> as_integer(const YamlNode& node) {
  if (!looks_integer(node)) return std::nullopt;
  const char* begin = node.text.data();
  const char* end = begin + node.text.size();
  if (*begin == '+') ++begin;
  int64_t value = 0;
  const auto read = std::from_chars(begin, end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

std::optional<double> as_number(const YamlNode& node) {
  if (!node.is_scalar() || node.quoted) return std::nullopt;
  std::string_view body = without_sign(node.text);
  // Digits, at most one point, an exponent: from_chars alone would also take "inf" and "nan".
  if (body.empty() || body.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return std::nullopt;
  const size_t digit = body.find_first_of("0123456789");
  if (digit > 1 || (digit == 1 && body[0] != '.')) return std::nullopt;
  if (body.size() > 1 && body[0] == '0' && body[1] >= '0' && body[1] <= '9') return std::nullopt;
  const char* begin = node.text.data();
  const char* end = begin + node.text.size();
  if (*begin == '+') ++begin;
  double value = 0;
  const auto read = std::from_chars(begin, end, value);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> as_boolean(const YamlNode& node) {
  if (!node.is_scalar() || node.quoted) return std::nullopt;
  if (node.text == "true" || node.text == "True" || node.text == "TRUE") return true;
  if (node.text == "false" || node.text == "False" || node.text == "FALSE") return false;
  return std::nullopt;
}

std::string expected(const ParamInfo& info) {
  switch (info.kind) {
    case ParamKind::integer: return "an integer";
    case ParamKind::number: return info.choices.empty() ? "a number" : "a number or " + list_of(info.choices, "or");
    case ParamKind::boolean: return "true or false";
    case ParamKind::text: return info.choices.empty() ? "text" : list_of(info.choices, "or");
    case ParamKind::texts: return list_of(info.choices, "or") + ", or a list of these";
    case ParamKind::mapping: return "a mapping";
    case ParamKind::transforms: return "a list of transforms";
    case ParamKind::integers:
    case ParamKind::numbers: {
      const bool whole = info.kind == ParamKind::integers;
      const bool one = info.lengths.empty() || std::count(info.lengths.begin(), info.lengths.end(), size_t{1}) > 0;
      const bool many = info.lengths.empty() || info.lengths.size() > 1 || !one;
      std::string out = one ? (whole ? "an integer" : "a number") : "";
      if (many) out += std::string(one ? " or " : "") + (whole ? "a list of integers" : "a list of numbers");
      for (const std::string& choice : info.choices) out += " or " + choice;
      return out;
    }
  }
  return "?";
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null: return "nothing";
    case YamlNode::Kind::sequence: return "a list";
    case YamlNode::Kind::mapping: return "a mapping";
    case YamlNode::Kind::unknown: return "an alias";
    case YamlNode::Kind::scalar: break;
  }
  if (as_boolean(node)) return "the boolean " + node.text;
  if (as_integer(node)) return "the integer " + node.text;
  if (looks_integer(node)) return "an integer that is too large";
  if (as_number(node)) return "the number " + node.text;
  return "the text " + in_quotes(node.text);
}

std::optional<ParamValue> read_value(const YamlNode& node, const ParamInfo& info, const std::string& path,
                                     Complaints& complaints) {
  if (node.kind == YamlNode::Kind::unknown) return std::nullopt;
  if (node.is_null() && info.takes_null()) return ParamValue{};
  switch (info.kind) {
    case ParamKind::integers:
    case ParamKind::numbers:
      if (is_choice(node, info)) return node.text;
      return read_list(node, info, path, complaints);
    case ParamKind::integer:
      if (const auto value = as_integer(node)) {
        if (!in_range(node, static_cast<double>(*value), info, path, complaints)) return std::nullopt;
        return *value;
      }
      break;
    case ParamKind::number:
      if (is_choice(node, info)) return node.text;
      if (const auto value = as_number(node)) {
        if (!in_range(node, *value, info, path, complaints)) return std::nullopt;
        return *value;
      }
      break;
    case ParamKind::boolean:
      if (const auto value = as_boolean(node)) return *value;
      break;
    case ParamKind::texts: return read_texts(node, info, path, complaints);
    case ParamKind::text:
      if (!node.is_scalar()) break;
      if (!info.choices.empty() && !is_choice(node, info)) {
        complaints.add(node.span, in_quotes(path) + ": expected " + expected(info) + ", found " + describe(node),
                       did_you_mean(node.text, info.choices));
        return std::nullopt;
      }
      return node.text;
    case ParamKind::mapping: {
      nlohmann::json json = nlohmann::json::object();
      if (node.is_null()) return json_text(json);
      if (!node.is_mapping()) break;
      if (!to_json(node, json)) return std::nullopt;  // an alias: complained of already
      return json_text_replacing(json);
    }
    case ParamKind::transforms: break;  // job_reader.cpp reads them
  }
  wrong_type(node, info, path, complaints);
  return std::nullopt;
}

}  // namespace penstock
