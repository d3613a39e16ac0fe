// Makes one sample: reads it, draws, decodes and transforms its images, and writes its fields. This is the one place
// where a sample's content comes about: loaders, `penstock inspect` and serving (preprocessor.h) call it, so they cannot
// differ.
//
//   SampleMaker maker(context);                                         // one per thread; the context is shared
//   SampleRecord record = maker.make(planned, epoch, fields_of_this_sample);
//
// What it writes is a pure function of (split, planned sample, epoch). Where JPEG files may be entered is learned while
//   their first crops are decoded, if the context has a LearnedMemory; content does not depend on it.
// Thread-safety: one thread; any number of makers share a context. Ownership: it keeps the context.
// Failure: make() throws only Error(runtime), for the environment (I/O, memory). A bad sample is a record with `bad`
//   set, its pixels and other fields zero or empty, its label -100; or, under on_error: substitute in a training split,
//   the first good one of a fixed sequence of other samples (substitutes.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/sample_record.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/sample/image_offload.h"
#include "runtime/sample/split_context.h"
#include "runtime/transforms/pipeline.h"

namespace penstock {

struct MakeTimes {
  int64_t read_ns = 0;
  int64_t decode_ns = 0;
  int64_t augment_ns = 0;
  int64_t encoded_bytes = 0;
  int64_t source_pixels = 0;
  int64_t python_ns = 0;  // of read_ns: in a data set in Python, whatever it did
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
  SampleStatus load(const DrawKey& key);
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
