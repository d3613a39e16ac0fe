#include "runtime/datasets/python_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/json_text.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {

constexpr int64_t kMaxOtherBytes = int64_t{1} << 30;  // of all other fields of a sample

DType dtype_of(const std::string& name) {
  for (const DType dtype :
       {DType::uint8, DType::int64, DType::float32, DType::float16, DType::bfloat16, DType::int32, DType::float64}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw Error(ErrorKind::dataset, "a field has the unknown dtype '" + name + "'");
}

SampleStatus too_large(const std::string& what, int64_t limit, const char* key) {
  return SampleStatus::bad(what + ", above limits." + key + " (" + std::to_string(limit) + ")");
}

}  // namespace

PythonSource::PythonSource(const DatasetSpec& dataset, const DecodeLimits& limits,
                           std::shared_ptr<const PythonWorkers> workers)
    : workers_(std::move(workers)),
      limits_(limits),
      fields_({{"image", FieldKind::image, DType::uint8, {}}, {"label", FieldKind::tensor, DType::int64, {}}}) {
  if (!workers_) throw Error(ErrorKind::usage, "a dataset in Python needs workers");
  const nlohmann::json hello = parse_json(workers_->hello());
  size_ = hello.at("size").get<int64_t>();
  labelled_ = hello.at("labelled").get<bool>();
  name_ = hello.at("name").get<std::string>();
  classes_ = hello.at("classes").get<std::vector<std::string>>();
  if (size_ <= 0) {
    throw Error(ErrorKind::dataset, (dataset.pickle.empty() ? "the dataset " : "") + dataset.title() + " is empty",
                "its __len__ must be at least 1");
  }
  for (const nlohmann::json& entry : hello.at("fields")) {
    FieldSpec field;
    field.name = entry.at(0).get<std::string>();
    const auto type = entry.at(1).get<std::string>();
    if (type == "text" || type == "bytes") {
      field.kind = type == "text" ? FieldKind::text : FieldKind::bytes;
      extra_bytes_ += sizeof(uint32_t) + static_cast<size_t>(limits.max_field_bytes);
      fields_.push_back(std::move(field));
      continue;
    }
    field.dtype = dtype_of(type);
    field.shape = entry.at(2).get<std::vector<int64_t>>();
    int64_t bytes = static_cast<int64_t>(size_of(field.dtype));
    for (const int64_t extent : field.shape) {
      if (extent < 1 || extent > kMaxOtherBytes / bytes) {
        throw Error(ErrorKind::dataset, "field '" + field.name + "' of " + dataset.title() + " is empty or too large",
                    "a field has at least one element and at most 1 GiB");
      }
      bytes *= extent;
    }
    extra_bytes_ += static_cast<size_t>(bytes);
    fields_.push_back(std::move(field));
  }
  if (static_cast<int64_t>(extra_bytes_) > kMaxOtherBytes) {
    throw Error(ErrorKind::dataset, "the fields of " + dataset.title() + " are above 1 GiB a sample");
  }
  std::string text = "penstock python dataset 1\n";
  const std::string pickle = dataset.is_own() ? "own" : dataset.pickle;
  for (const std::string& part : {dataset.python, dataset.args, pickle, workers_->hello()}) {
    text += std::to_string(part.size()) + ":" + part + "\n";
  }
  fingerprint_ = hash128(std::string_view(text));
}

SampleStatus PythonSource::load(const DrawKey& key, SourceSample& sample) const {
  const auto index = static_cast<int64_t>(key.index);
  if (index < 0 || index >= size_) {
    throw Error(ErrorKind::usage, "sample " + std::to_string(index) + " is outside the dataset '" + name_ + "' of " +
                                      std::to_string(size_) + " samples");
  }
  const std::vector<std::byte> request = python_request(key);
  constexpr size_t kHead = 1 + 4 + 4 + 8 + 8;
  const auto most = static_cast<size_t>(std::max(limits_.max_encoded_bytes, 3 * limits_.max_pixels));
  // Room for an answer above the limits, so that it gets a status; not without bound.
  SampleStatus status = workers_->call({kPythonLoad, request, {}}, kHead + extra_bytes_ + most + (size_t{64} << 20),
                                       "sample " + std::to_string(index), sample.storage);
  sample.image = {};
  if (!status.ok()) return status;
  WireReader in(sample.storage, "sample from a Python worker");
  const bool decoded = in.u8() != 0;
  const uint32_t height = in.u32();
  const uint32_t width = in.u32();
  sample.label = in.i64();
  const uint64_t bytes = in.u64();
  sample.fields.clear();
  for (size_t f = 2; f < fields_.size(); ++f) {
    sample.fields.push_back(in.raw(fields_[f].fixed_size() ? fields_[f].bytes_per_sample() : in.u32()));
  }
  sample.image = in.raw(static_cast<size_t>(bytes));
  in.end();
  sample.width = sample.height = 0;
  if (!decoded) {
    if (static_cast<int64_t>(bytes) > limits_.max_encoded_bytes) {
      return too_large(std::to_string(bytes) + " bytes", limits_.max_encoded_bytes, "max_encoded_bytes");
    }
    return SampleStatus::good();
  }
  const int64_t side = std::max(width, height);
  if (side > limits_.max_side) return too_large("a side of " + std::to_string(side), limits_.max_side, "max_side");
  const int64_t pixels = int64_t{width} * height;
  if (pixels > limits_.max_pixels) {
    return too_large(std::to_string(pixels) + " pixels", limits_.max_pixels, "max_pixels");
  }
  if (width == 0 || height == 0 || bytes != static_cast<uint64_t>(pixels) * 3) {
    throw Error(ErrorKind::runtime, "a Python worker sent pixels of a wrong size");
  }
  sample.width = static_cast<int>(width);
  sample.height = static_cast<int>(height);
  return SampleStatus::good();
}

int64_t PythonSource::label(int64_t index) const {
  SourceSample sample;
  DrawKey key;
  key.index = static_cast<uint64_t>(index);
  const SampleStatus status = load(key, sample);
  if (!status.ok()) throw Error(ErrorKind::dataset, "sample " + this->key(index) + ": " + status.reason);
  return sample.label;
}

SampleStatus PythonSource::read(int64_t index, std::vector<std::byte>& bytes) const {
  SourceSample sample;
  DrawKey key;
  key.index = static_cast<uint64_t>(index);
  bytes.clear();
  SampleStatus status = load(key, sample);
  if (!status.ok()) return status;
  if (sample.width > 0) throw Error(ErrorKind::usage, "sample " + this->key(index) + " is not encoded");
  bytes.assign(sample.image.begin(), sample.image.end());
  return status;
}

}  // namespace penstock
