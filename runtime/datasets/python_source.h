// A dataset written in Python: `dataset: {python: "package.module:factory", args: {...}, path: ...}` in the job file.
//
//   auto workers = std::make_shared<PythonWorkers>(PythonHost{job.python}, python_config(dataset, {}),
//                                                  "dataset 'my_data:make'");
//   PythonSource source(dataset, limits, workers);
//   source.load({.seed = 1, .epoch = 0, .index = 17}, sample);      // runs __getitem__(17) in a worker
//
// bindings/python/penstock/_worker.py says what a dataset is, and what its items may be.
// Fields: image, label, then the item's other fields by name; dtype and shape are those of the first good sample, and
//   another one that differs from it is a bad sample. A str is a text field, bytes are a bytes field; their lengths
//   vary.
// Statuses: what the code raises makes the sample bad ("ValueError: ... (my_data.py:12)", and on further lines the
//   exception's classes and its traceback), so on_error applies; except what may pass by itself (EIO, no memory, ...) or
//   not happen on another machine (a missing file or module), which is the machine's: Error(runtime), so the chunk is
//   tried elsewhere and in the end the job fails by name.
// fingerprint(): covers the factory's name, its arguments (or the pickled object), the size, the fields, the classes
//   and what the dataset's own `fingerprint` or `version` says. Contents are not looked at: a dataset that may change
//   under an equal size should have a `fingerprint`.
// Cost: one message each way and a copy of the image; key() and label() of other sources are free, label() here is not.
// Thread-safety and failure: as source.h says. Ownership: shares the workers with Python transforms of the split.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/datasets/python_workers.h"
#include "runtime/datasets/source.h"
#include "runtime/job/job.h"

namespace penstock {

class PythonSource final : public Source {
 public:
  PythonSource(const DatasetSpec& dataset, const DecodeLimits& limits, std::shared_ptr<const PythonWorkers> workers);

  int64_t size() const override { return size_; }
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override { return name_ + "[" + std::to_string(index) + "]"; }
  int64_t label(int64_t index) const override;
  bool labelled() const override { return labelled_; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  int64_t encoded_size(int64_t) const override { return 0; }  // not known before it is made
  // Only for a sample whose image is encoded, else Error(usage); SampleMaker calls load().
  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override;
  SampleStatus load(const DrawKey& key, SourceSample& sample) const override;
  Sum128 fingerprint() const override { return fingerprint_; }

 private:
  std::shared_ptr<const PythonWorkers> workers_;
  DecodeLimits limits_;
  std::string name_;
  int64_t size_ = 0;
  bool labelled_ = true;
  FieldTable fields_;
  size_t extra_bytes_ = 0;  // of the fields after image and label, at most
  std::vector<std::string> classes_;
  Sum128 fingerprint_;
};

}  // namespace penstock
