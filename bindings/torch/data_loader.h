// Batches as tensors of libtorch, for C++ programs that train with it. Header-only: it is compiled in the program,
// against whichever libtorch that has (bindings/torch/README.md has the CMake lines).
//
//   penstock::torch::DataLoader train("job.yaml", "train");
//   for (int epoch = 0; epoch < 90; ++epoch) {
//     for (auto& example : train) {                          // a ::torch::data::Example<>
//       auto loss = cross_entropy(model->forward(example.data), example.target);
//       ...                                                  // example.batch: indices, valid, other fields
//     }
//   }
//   const penstock::Cursor next = train.resume(saved);       // and after a restart:
//   for (auto i = train.begin_at(next.epoch, next.step); i != train.end(); ++i) ...
//
// Purpose: `data` is the field "image": uint8, float32, float16 or bfloat16, [n, 3, h, w] whatever its strides are:
//   with channels-last images it is contiguous in ::torch::MemoryFormat::ChannelsLast. `target` is the field "label":
//   int64 [n]; float32 [n, classes] where MixUp or CutMix mix batches. Jobs of pairs name others: Fields{"image",
//   "target"}.
// Ownership: tensors lie in the batch's own memory, nothing is copied. Each keeps the batch, as do its views and
//   whatever autograd saves of them, so the memory stays valid, and is not written to, until the last of them is gone,
//   also after the DataLoader is. The program may write to it. Kept tensors are kept batches: of those, `trainer.hold`
//   may be kept besides the one in use; asking for another with all of them held is warned of and then Error(usage).
//   clone() gives a tensor that counts nowhere.
// Iteration, thread-safety, waiting, states, failure: those of penstock::DataLoader (runtime/client/data_loader.h).
//   Tensors may be dropped in any thread.
// Names: this namespace hides libtorch's own inside namespace penstock, and with `using namespace penstock` makes
//   `torch` ambiguous: say ::torch there.
#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/client/data_loader.h"

namespace penstock::torch {

inline ::torch::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return ::torch::kUInt8;
    case DType::int64: return ::torch::kInt64;
    case DType::float32: return ::torch::kFloat32;
    case DType::float16: return ::torch::kFloat16;
    case DType::bfloat16: return ::torch::kBFloat16;
    case DType::int32: return ::torch::kInt32;
    case DType::float64: return ::torch::kFloat64;
  }
  throw Error(ErrorKind::usage,
              "a field has a type that libtorch has no name for: number " + std::to_string(static_cast<int>(dtype)),
              "compile the program with the headers of the libpenstock that it is linked with");
}

// A batch's field as a tensor over the batch's memory. Error(usage) as Batch::operator[]: no such field, bytes or text.
inline ::torch::Tensor tensor_of(const Batch& batch, const std::string& field) {
  const TensorView view = batch[field];
  // What the deleter does is to have had the batch: that goes with it.
  return ::torch::from_blob(
      view.data, view.shape, view.strides, [batch](void*) {},
      ::torch::TensorOptions().dtype(scalar_type_of(view.dtype)));
}

// Which of a batch's fields are the example.
struct Fields {
  std::string data = "image";
  std::string target = "label";
};

// What an iteration yields: libtorch's Example with the batch that it lies in.
struct Example : ::torch::data::Example<> {
  Example() = default;
  Example(penstock::Batch of, const Fields& fields)
      : ::torch::data::Example<>(tensor_of(of, fields.data), tensor_of(of, fields.target)), batch(std::move(of)) {}

  penstock::Batch batch;
};

class DataLoader;

// One iteration. It ends when its last copy is gone.
class ExampleStream {
 public:
  ExampleStream() = default;
  // Nothing at the end, and ever after.
  std::optional<Example> next() {
    if (Batch batch = stream_.next()) return Example(std::move(batch), fields_);
    return std::nullopt;
  }

 private:
  friend class DataLoader;
  ExampleStream(BatchStream stream, Fields fields) : stream_(std::move(stream)), fields_(std::move(fields)) {}
  BatchStream stream_;
  Fields fields_;
};

// The same as an input iterator: ++ lets go of the current example (unless it is kept elsewhere) and takes the next.
// Copies are the same iteration. As penstock::BatchIterator where ++ or begin() throws.
class ExampleIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Example;
  using difference_type = std::ptrdiff_t;
  using pointer = Example*;
  using reference = Example&;

  ExampleIterator() = default;  // the end
  Example& operator*() const {
    if (at_end()) throw Error(ErrorKind::usage, "there is no example at the end of an iteration");
    return *place_->example;
  }
  Example* operator->() const { return &**this; }
  ExampleIterator& operator++() {
    if (!place_) return *this;
    place_->example.reset();  // first of all, or its memory would count as held while the next is waited for
    place_->example = place_->stream.next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const ExampleIterator& a, const ExampleIterator& b) { return a.at_end() == b.at_end(); }

 private:
  friend class DataLoader;
  struct Place {
    ExampleStream stream;
    std::optional<Example> example;
  };
  explicit ExampleIterator(ExampleStream stream) : place_(std::make_shared<Place>()) {
    place_->stream = std::move(stream);
    place_->example = place_->stream.next();
  }
  bool at_end() const noexcept { return !place_ || !place_->example; }
  std::shared_ptr<Place> place_;
};

// Private base: everything but iteration is what it is there, by the same names.
class DataLoader : private penstock::DataLoader {
  using Base = penstock::DataLoader;

 public:
  // Error(usage), besides the base's, where the split's batches have no such fields, or text or bytes by these names.
  DataLoader(const std::string& job_file, const std::string& split, const DataLoaderOptions& options = {},
             Fields fields = {})
      : DataLoader(Base(job_file, split, options), std::move(fields)) {}
  explicit DataLoader(Base&& loader, Fields fields = {}) : Base(std::move(loader)), fields_(std::move(fields)) {
    for (const std::string& one : {fields_.data, fields_.target}) {
      const FieldKind what = kind(one);  // it throws where there is no such field
      if (what != FieldKind::bytes && what != FieldKind::text) continue;
      throw Error(ErrorKind::usage, "the field '" + one + "' varies in length, so no tensor can be made of it",
                  "name another in Fields, and read this one by example.batch.value(\"" + one + "\", i)");
    }
  }
  static DataLoader from_text(const std::string& job_text, const std::string& name, const std::string& split,
                              const DataLoaderOptions& options = {}, Fields fields = {}) {
    return DataLoader(Base::from_text(job_text, name, split, options), std::move(fields));
  }

  ExampleIterator begin() { return ExampleIterator(start()); }
  ExampleIterator end() { return {}; }
  ExampleIterator begin_at(int64_t epoch, int64_t step) { return ExampleIterator(start_at(epoch, step)); }
  ExampleStream start() { return {Base::start(), fields_}; }
  ExampleStream start_at(int64_t epoch, int64_t step) { return {Base::start_at(epoch, step), fields_}; }
  ExampleStream start_at(int64_t epoch, int64_t step, std::vector<int64_t> order) {
    return {Base::start_at(epoch, step, std::move(order)), fields_};
  }

  using Base::batch_size;
  using Base::class_names;
  using Base::dataset_size;
  using Base::embedded;
  using Base::end_waits;
  using Base::epoch;
  using Base::fields;
  using Base::finisher;
  using Base::kind;
  using Base::num_replicas;
  using Base::num_samples;
  using Base::rank;
  using Base::ranks_per_replica;
  using Base::raw_images;
  using Base::report_json;
  using Base::resume;
  using Base::set_epoch;
  using Base::size;
  using Base::spec;
  using Base::state;
  using Base::stats_json;
  using Base::warnings;

 private:
  Fields fields_;
};

}  // namespace penstock::torch
