// Everything a rank needs to make samples of one split: source, pipeline, field table. Built once per fingerprint,
// then read-only and shared by all threads.
//
//   auto context = SplitContext::open(resolve_split(job, "train"));     // lists the dataset: may take a while
//   SampleMaker maker(context);                                         // one per thread
//   SampleRecord record = maker.make(planned, epoch, fields_of_this_sample);
//
// SampleMaker is the one place where a sample's content comes about: loaders, `penstock inspect` and serving
// (preprocessor.h) call it, so they cannot differ. What it writes is a pure function of (split, planned sample, epoch).
// A context opened with a LearnedMemory learns where JPEG files may be entered while their first crops are decoded
//   (decode/jpeg/learned_index.h); content does not depend on it.
// Failure: Error(dataset | config) from open(); from make() only Error(runtime), for the environment (I/O, memory). A
//   bad sample is a record with `bad` set, its pixels and other fields zero or empty, its label -100; or, under
//   on_error: substitute in a training split, the first good one of a fixed sequence of other samples (substitutes.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/fields.h"
#include "runtime/base/file_system.h"
#include "runtime/base/sample_record.h"
#include "runtime/datasets/python_workers.h"
#include "runtime/datasets/source.h"
#include "runtime/decode/jpeg/learned_index.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/job/job.h"
#include "runtime/sample/image_offload.h"
#include "runtime/sample/substitutes.h"
#include "runtime/transforms/pipeline.h"
#include "runtime/transforms/variants.h"

namespace penstock {

inline constexpr int64_t kIgnoredLabel = -100;  // torch's ignore_index: padding and unreadable samples in `eval`

class SplitContext {
 public:
  // `python`: how to run the workers of a dataset or transform in Python; without a need none is started. `learned`:
  // what indexes may take that are learned of the samples; nullptr: none are.
  static std::shared_ptr<const SplitContext> open(const ResolvedSplit& split, FileSystem& files = posix_file_system(),
                                                  const PythonHost& python = {}, const SourceBudget& budget = {},
                                                  std::shared_ptr<LearnedMemory> learned = nullptr);
  // With a source that the caller has opened.
  static std::shared_ptr<const SplitContext> with_source(const ResolvedSplit& split, std::unique_ptr<Source> source,
                                                         const PythonHost& python = {});
  // For images that the caller has: nothing is opened, there is no source().
  static std::shared_ptr<const SplitContext> without_dataset(const ResolvedSplit& split, const PythonHost& python = {});

  const ResolvedSplit& split() const noexcept { return split_; }
  const Source& source() const noexcept { return *source_; }
  const Variants& variants() const noexcept { return variants_; }
  const Pipeline& pipeline() const noexcept { return variants_.shared(); }  // for what all variants have in common
  const FieldTable& fields() const noexcept { return fields_; }  // raw: uint8 image [3, h, w], int64 label, others
  const PythonWorkers* workers() const noexcept { return workers_.get(); }  // nullptr: the split needs none
  LearnedIndexes* learned() const noexcept { return learned_.get(); }       // nullptr: nothing is learned
  UnusableSamples& unusable() const noexcept { return unusable_; }

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
};

// The split's pipelines; their complaints name the split.
Variants make_variants(const ResolvedSplit& split);

// The field table of a split before anything is opened, from the pipeline alone. Receivers use it, and add what loaders
// say that the dataset has besides.
FieldTable raw_fields(const Pipeline& pipeline);
// What a receiver delivers of it: images finished, labels soft where batches are mixed.
FieldTable delivered_fields(FieldTable raw, const Pipeline& pipeline, const FinishSpec& finish);
// Mixes a complete batch of finished images: `labels` are its class numbers, `soft` is where their shares go. Returns
// the complaint about a label that is no class, empty when fine; then nothing is mixed.
std::string mix_batch(const Pipeline& pipeline, const FinishSpec& finish, const Draws& draws, void* images,
                      std::span<const int64_t> labels, float* soft,
                      const std::function<std::string(size_t)>& name_of_sample);
// What stands in a dataset's table after image and label.
std::span<const FieldSpec> extra_fields(const FieldTable& fields);

struct MakeTimes {
  int64_t read_ns = 0;
  int64_t decode_ns = 0;
  int64_t augment_ns = 0;
  int64_t encoded_bytes = 0;
  int64_t source_pixels = 0;
};

class SampleMaker {
 public:
  explicit SampleMaker(std::shared_ptr<const SplitContext> context);
  SampleMaker(std::shared_ptr<const SplitContext> context, const DecoderOptions& decoding);

  // `fields[i]` is where field i of the sample goes: fields()[i].bytes_per_sample() bytes (base/field_value.h).
  SampleRecord make(const PlannedSample& planned, int64_t epoch, std::span<std::byte* const> fields);
  // The part of it that needs no dataset: encoded bytes to the image field, drawn as `key` says. Sets the record's size
  // and draws. Where the status is bad, the image is unspecified.
  // `restart_points`: the file's SideIndex as text, where somebody has made one. `learned`: else what is learned of the
  // sample, or nullptr.
  SampleStatus make_image(EncodedView encoded, const DrawKey& key, std::byte* image, SampleRecord& record,
                          std::span<const std::byte> restart_points = {}, LearnedIndexes* learned = nullptr);
  // Samples' first images, where the offload wants them; it must outlive the maker, or be replaced. Not asked: images
  // of the variant `cpu`; where there is one pipeline, `cpu_fraction` of them, drawn as variants are.
  void leave_images_to(ImageOffload* offload, std::optional<double> cpu_fraction = {}) noexcept {
    offload_ = offload;
    cpu_fraction_ = cpu_fraction;
  }
  // Where it becomes true, a search for a substitute ends with Error(runtime): nobody waits for it any more. It must
  // outlive the maker.
  void give_up_when(const std::atomic<bool>* ending) noexcept { ending_ = ending; }
  const MakeTimes& times() const noexcept { return times_; }
  const DecodeCounts& decode_counts() const noexcept { return scratch_.decoder.counts(); }

 private:
  SampleStatus try_make(int64_t index, uint16_t occurrence, int64_t epoch, std::span<std::byte* const> fields,
                        SampleRecord& record);
  bool substitute(const PlannedSample& planned, int64_t epoch, std::span<std::byte* const> fields,
                  SampleRecord& record);
  SampleStatus make_learning(EncodedView encoded, const ImageHeader& header, const DrawKey& key, std::byte* image,
                             SampleRecord& record, LearnedIndexes& learned);
  bool is_for_gpus(const DrawKey& key) const noexcept;
  SampleStatus run_pipeline(const ImageInput& input, const ImageHeader& header, const DrawKey& key, std::byte* image,
                            SampleRecord& record);
  SampleStatus make_others(const DrawKey& key, std::span<std::byte* const> fields, const SampleRecord& record);
  SampleStatus apply(const ImageInput& input, const ImageHeader& header, const DrawKey& key, const Draws& draws,
                     std::span<uint8_t> out, ImageRole role);
  SampleStatus run_function(const DrawKey& key, size_t number, uint16_t position, PixelBuffer& image);

  std::shared_ptr<const SplitContext> context_;
  const Pipeline* pipeline_ = nullptr;  // of the sample at hand
  ImageOffload* offload_ = nullptr;
  std::optional<double> cpu_fraction_;
  const std::atomic<bool>* ending_ = nullptr;
  Scratch scratch_;
  SourceSample sample_;
  SideIndex side_index_;           // of the sample at hand
  SideIndex more_;                 // learned of it
  std::vector<std::byte> answer_;  // of a function
  std::vector<uint8_t> planes_;    // of a mask
  MakeTimes times_;
};

}  // namespace penstock
