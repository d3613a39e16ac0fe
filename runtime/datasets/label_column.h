// Labels as they are read, one after another: integers in all samples, or class names in all samples.
//
//   LabelColumn labels;
//   std::string why = labels.add_text("cat");    // empty: fine. "3" first would make the column one of integers
//   labels.finish(table);                        // sets every row's label, and the classes
//
// The first label decides which of the two it is. Classes are ordered as Python's sorted() orders their names.
// Thread-safety: one thread. Ownership: plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/datasets/sample_table.h"

namespace penstock {

class LabelColumn {
 public:
  std::string add_text(std::string_view text);
  std::string add_integer(int64_t label);
  void add_nothing();  // of a sample that cannot be used: 0
  // All samples have been added, in the table's order.
  void finish(TableBuilder& table);

 private:
  enum class Kind { unknown, integers, names };
  Kind kind_ = Kind::unknown;
  std::vector<int64_t> labels_;  // or places in names_
  std::vector<size_t> without_;  // of them, those of unusable samples
  std::vector<std::string> names_;
  std::unordered_map<std::string, int64_t> place_;
};

}  // namespace penstock
