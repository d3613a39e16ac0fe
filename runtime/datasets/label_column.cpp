#include "runtime/datasets/label_column.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "runtime/datasets/containers.h"
#include "runtime/datasets/image_folder.h"

namespace penstock {

std::string LabelColumn::add_integer(int64_t label) {
  if (kind_ == Kind::names) return "label " + std::to_string(label) + " is an integer, and those before it are names";
  kind_ = Kind::integers;
  labels_.push_back(label);
  return {};
}

namespace {

// pandas writes "3.0" for a whole column of integers once one of them was missing.
std::string_view without_point_zero(std::string_view text) {
  const size_t point = text.find('.');
  const bool whole = point != std::string_view::npos && point > 0 && point + 1 < text.size() &&
                     text.find_first_not_of('0', point + 1) == std::string_view::npos;
  int64_t ignored = 0;
  return whole && integer_of(text.substr(0, point), ignored) ? text.substr(0, point) : text;
}

// "0.9", "1e20", "nan", "+3", "0x10": measures, or labels that another program would read as integers, but no names.
bool is_number(std::string_view text) {
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  if (hexadecimal) text.remove_prefix(2);
  double ignored = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ignored,
                                            hexadecimal ? std::chars_format::hex : std::chars_format::general);
  return error != std::errc::invalid_argument && end == text.data() + text.size();
}

}  // namespace

std::string LabelColumn::add_text(std::string_view given) {
  const std::string_view text = without_point_zero(given);
  int64_t label = 0;
  const std::string shown = "'" + std::string(text.substr(0, 60)) + "'";
  if (kind_ != Kind::names && integer_of(text, label)) return add_integer(label);
  if (kind_ == Kind::integers) return "label " + shown + " is no integer, and those before it are";
  if (text.empty()) return "the label is empty";
  if (text.size() > 4096) return "a label of " + std::to_string(text.size()) + " bytes";
  if (kind_ == Kind::names && integer_of(text, label))
    return "label " + shown + " is an integer, and those before it are names";
  if (is_number(text))
    return "label " + shown + " is a number, but no integer of 64 bits: measures are fields, not labels";
  kind_ = Kind::names;
  const auto [found, added] = place_.try_emplace(std::string(text), static_cast<int64_t>(names_.size()));
  if (added) names_.emplace_back(text);
  labels_.push_back(found->second);
  return {};
}

void LabelColumn::add_nothing() {
  without_.push_back(labels_.size());
  labels_.push_back(0);
}

void LabelColumn::finish(TableBuilder& table) {
  if (kind_ == Kind::names) {
    std::vector<size_t> order(names_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return python_less(names_[a], names_[b]); });
    std::vector<int64_t> rank(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      rank[order[i]] = static_cast<int64_t>(i);
      table.facts().classes.push_back(names_[order[i]]);
    }
    for (int64_t& label : labels_) label = rank[static_cast<size_t>(label)];
  }
  for (const size_t i : without_) labels_[i] = 0;
  for (int64_t i = 0; i < table.size(); ++i) table.row(i).label = labels_.at(static_cast<size_t>(i));
}

}  // namespace penstock
