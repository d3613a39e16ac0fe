// A Source whose samples are in memory: for tests that are not about disks.
//
//   MemorySource source;
//   source.add("cat/1.jpg", /*label=*/0, jpeg_bytes);
// With fields besides: a source of {"caption", text} and {"box", tensor, int64 [4]}
//   MemorySource source({{"caption", FieldKind::text}, {"box", FieldKind::tensor, DType::int64, {4}}});
//   source.add("cat/1.jpg", 0, jpeg_bytes, {caption_bytes, box_bytes});
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/datasets/source.h"

namespace penstock {

class MemorySource final : public Source {
 public:
  explicit MemorySource(const FieldTable& more = {}) { fields_.insert(fields_.end(), more.begin(), more.end()); }

  void add(std::string key, int64_t label, std::vector<std::byte> bytes,
           std::vector<std::vector<std::byte>> more = {}) {
    if (label >= static_cast<int64_t>(classes_.size())) {
      for (auto i = static_cast<int64_t>(classes_.size()); i <= label; ++i) {
        classes_.push_back("class" + std::to_string(i));
      }
    }
    samples_.push_back({std::move(key), label, std::move(bytes), std::move(more), {}});
  }

  // The side index of the sample added last, as SideIndex::serialise() gives it.
  void add_index(std::string restart_points) { samples_.back().restart_points = std::move(restart_points); }
  void forget_labels() { labelled_ = false; }
  int64_t loads() const { return loads_; }

  bool labelled() const override { return labelled_; }
  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override { return at(index).key; }
  int64_t label(int64_t index) const override { return at(index).label; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  int64_t encoded_size(int64_t index) const override { return static_cast<int64_t>(at(index).bytes.size()); }
  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override {
    bytes = at(index).bytes;
    return SampleStatus::good();
  }
  SampleStatus load(const DrawKey& key, SourceSample& sample) const override {
    ++loads_;
    const SampleStatus status = Source::load(key, sample);
    const std::string& index = at(static_cast<int64_t>(key.index)).restart_points;
    sample.restart_points = std::as_bytes(std::span(index.data(), index.size()));
    for (const auto& value : at(static_cast<int64_t>(key.index)).more) sample.fields.emplace_back(value);
    return status;
  }
  Sum128 fingerprint() const override {
    std::string text;
    for (const Sample& sample : samples_) ((text += sample.key) += '\0') += std::to_string(sample.label) + "\n";
    return hash128(std::string_view(text));
  }

 private:
  struct Sample {
    std::string key;
    int64_t label;
    std::vector<std::byte> bytes;
    std::vector<std::vector<std::byte>> more;
    std::string restart_points;
  };

  const Sample& at(int64_t index) const {
    if (index < 0 || index >= size()) throw Error(ErrorKind::usage, "no sample " + std::to_string(index));
    return samples_[static_cast<size_t>(index)];
  }

  FieldTable fields_{{"image", FieldKind::image, DType::uint8, {}}, {"label", FieldKind::tensor, DType::int64, {}}};
  bool labelled_ = true;
  mutable std::atomic<int64_t> loads_ = 0;
  std::vector<std::string> classes_;
  std::vector<Sample> samples_;
};

}  // namespace penstock
