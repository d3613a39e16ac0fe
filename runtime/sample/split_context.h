// Everything that threads share to make samples of one split: source, pipelines, field table. Built once per fingerprint,
// then read-only.
//
//   auto context = SplitContext::open(resolve_split(job, "train"));     // lists the dataset: may take a while
//   SampleMaker maker(context);                                         // sample_maker.h
//
// With a LargeMemory its threads wait for each other where pictures take many megabytes (base/large_memory.h); content
//   does not depend on it.
// Thread-safety: any thread, once it is built. Ownership: shared; it keeps the source and the workers.
// Failure: Error(dataset | config) from open().
#pragma once

#include <memory>

#include "runtime/base/fields.h"
#include "runtime/base/file_system.h"
#include "runtime/base/large_memory.h"
#include "runtime/datasets/python_workers.h"
#include "runtime/datasets/source.h"
#include "runtime/decode/jpeg/learned_index.h"
#include "runtime/job/job.h"
#include "runtime/sample/substitutes.h"
#include "runtime/transforms/pipeline.h"
#include "runtime/transforms/variants.h"

namespace penstock {

class SplitContext {
 public:
  // `python`: how to run the workers of a dataset or transform in Python; without a need none is started. `learned`:
  // what indexes may take that are learned of the samples; nullptr: none are.
  // `large`: what its pictures' threads share for large ones; nullptr: they take what they need.
  static std::shared_ptr<const SplitContext> open(const ResolvedSplit& split, FileSystem& files = posix_file_system(),
                                                  const PythonHost& python = {}, const SourceBudget& budget = {},
                                                  std::shared_ptr<LearnedMemory> learned = nullptr,
                                                  std::shared_ptr<LargeMemory> large = nullptr);
  // With a source that the caller has opened.
  static std::shared_ptr<const SplitContext> with_source(const ResolvedSplit& split, std::unique_ptr<Source> source,
                                                         const PythonHost& python = {});
  // For images that the caller has: nothing is opened, there is no source().
  static std::shared_ptr<const SplitContext> without_dataset(const ResolvedSplit& split, const PythonHost& python = {},
                                                             std::shared_ptr<LargeMemory> large = nullptr);

  const ResolvedSplit& split() const noexcept { return split_; }
  const Source& source() const noexcept { return *source_; }
  const Variants& variants() const noexcept { return variants_; }
  const Pipeline& pipeline() const noexcept { return variants_.shared(); }  // for what all variants have in common
  const FieldTable& fields() const noexcept { return fields_; }  // raw: uint8 image [3, h, w], int64 label, others
  const PythonWorkers* workers() const noexcept { return workers_.get(); }  // nullptr: the split needs none
  LearnedIndexes* learned() const noexcept { return learned_.get(); }       // nullptr: nothing is learned
  UnusableSamples& unusable() const noexcept { return unusable_; }
  LargeMemory* large() const noexcept { return large_.get(); }
  // No other machine makes samples of it: a file that is missing here is the sample's trouble, not this machine's.
  bool only_here() const noexcept { return only_here_; }

 private:
  SplitContext(const ResolvedSplit& split, const PythonHost& python);
  void adopt(std::unique_ptr<Source> source);

  ResolvedSplit split_;
  Variants variants_;
  std::shared_ptr<const PythonWorkers> workers_;
  std::unique_ptr<Source> source_;
  FieldTable fields_;
  // Thread-safe, and no part of what a split is.
  std::unique_ptr<LearnedIndexes> learned_;
  mutable UnusableSamples unusable_;
  std::shared_ptr<LargeMemory> large_;
  bool only_here_ = false;
};

}  // namespace penstock
