// What all sources have in common whose samples stand in a SampleTable: keys, labels, fields, where its files are.
// load() and read(), how bytes come from there, are the derived class's (table_source.h, pack_source.h).
// Thread-safety: all functions, from any thread. Failure: Error(usage) for an index outside the data set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/datasets/sample_table.h"
#include "runtime/datasets/source.h"
#include "runtime/job/job.h"

namespace penstock {

// Paths in a table are relative to `root` unless they begin with '/'.
std::string under_root(const std::string& root, std::string_view path);

class TabulatedSource : public Source {
 public:
  int64_t size() const override { return table_.size(); }
  ReadableSamples readable() const override { return only_ ? *only_ : Source::readable(); }
  void only(ReadableSamples here) { only_ = std::move(here); }  // before anybody else has it
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override;
  int64_t label(int64_t index) const override;
  bool labelled() const override { return table_.facts().labelled; }
  const std::vector<std::string>& class_names() const override { return table_.facts().classes; }
  int64_t encoded_size(int64_t index) const override;
  int64_t known_size(int64_t index) const override { return encoded_size(index); }
  Sum128 fingerprint() const override { return table_.fingerprint(); }

  const SampleTable& table() const noexcept { return table_; }

 protected:
  TabulatedSource(SampleTable table, const std::string& root, const DecodeLimits& limits);

  void check_index(int64_t index) const;
  // Error(usage) where samples are pixels.
  void check_encoded(int64_t index) const;

  SampleTable table_;
  DecodeLimits limits_;
  std::vector<std::string> paths_;  // of the table's files
  FieldTable fields_;
  std::optional<ReadableSamples> only_;
  size_t shown_ = 0;  // of the table's columns, those in fields_
};

}  // namespace penstock
