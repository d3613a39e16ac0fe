// Samples gathered to a batch for a card: what is uploaded, what is launched, where the results are.
//
//   CardSample sample;                                                   // one per thread
//   if (!sample.plan(pipeline, scratch, input, header, draws)) ...       // not for cards: the CPU makes it
//   std::optional<size_t> place = batch.reserve(sample);                 // nullopt: full
//   if (!batch.fill(*place, sample, index)) batch.drop(*place);          // not for cards, after all
//   ...
//   batch.seal();                                                        // all places are filled or dropped
//   // upload batch.upload_bytes() to the card's memory, run batch.launches() in order, fetch from batch.outputs_at()
//
// What a card takes: JPEG that our decoder takes (coefficient_reader.h), upright, one image a sample, in a
//   pipeline whose draws leave geometry with at most one resize. The verdict on such a sample is good, and known here.
// Memory: `memory_bytes` on the card and `upload_bytes` here bound a batch; reserve() refuses what exceeds them.
//   Nothing is allocated by size of a picture but within a CardSample, whose vectors are kept.
// Thread-safety: reserve(), drop() and seal() under the caller's lock; fill() of different places at the same time as
//   anything but seal() and begin().
// Ownership: the upload buffer is the caller's. Failure: none but out of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/augment/finish.h"
#include "runtime/augment/pipeline.h"
#include "runtime/augment/resample_taps.h"
#include "runtime/card/batch_layout.h"
#include "runtime/card/coefficient_reader.h"

namespace penstock {

// What one sample wants done. Good until the scratch that it was planned with is used again.
class CardSample {
 public:
  CardSample() = default;
  CardSample(const CardSample&) = delete;
  CardSample& operator=(const CardSample&) = delete;

  bool plan(const Pipeline& pipeline, Scratch& scratch, const ImageInput& input, const ImageHeader& header,
            const Draws& draws);
  // No batch takes it.
  void forget() { reader_.forget(); }
  bool resizes() const noexcept { return plan_.runs.size() == 2; }
  const GeometricPlan& plan() const noexcept { return plan_; }

 private:
  friend class BatchBuilder;
  bool prepare(EncodedView bytes, const ImageHeader& header, int max_scans, Resampler& resampler);

  GeometricPlan plan_;
  CoefficientReader reader_;
  WindowTaps taps_;           // the scratch's resampler keeps them
  std::array<Taps, 2> same_;  // where a size does not change
};

struct BatchLimits {
  size_t memory_bytes = 0;  // of the card
  size_t upload_bytes = 0;
  size_t outputs = 0;  // samples
};

class BatchBuilder {
 public:
  BatchBuilder(std::byte* upload, const BatchLimits& limits);

  // A new, empty batch of images of this size; finished where `finisher` is given, else uint8 CHW. False: not even the
  // outputs fit.
  bool begin(size_t samples, int width, int height, const Finisher* finisher = nullptr);

  std::optional<size_t> reserve(const CardSample& sample);
  bool fill(size_t place, CardSample& sample, const SideIndex* index);
  void drop(size_t place) { entries_[place].used = false; }
  size_t places() const noexcept { return places_; }

  void seal();  // once
  size_t upload_bytes() const noexcept { return uploaded_; }
  std::span<const StageLaunch> launches() const noexcept { return launches_; }
  uint64_t outputs_at() const noexcept { return outputs_at_; }
  size_t output_bytes() const noexcept { return output_bytes_; }  // of one sample; place after place

 private:
  struct Entry {
    bool used = true;
    std::array<InversePart, 3> inverse;
    int components = 0;
    ColourPart colour;
    bool resized = false;
    AcrossPart across;
    DownPart down;
    FinishPart finish;
  };
  struct Counts {
    size_t parts[card_stages] = {};
    size_t spans[card_stages] = {};
    void add(CardStage stage, uint32_t units);
    size_t bytes() const;
  };

  uint64_t upload(size_t bytes);
  uint64_t scratch(size_t bytes);
  Placement place_run(const PlanRun& run, int source_x, int source_y);
  CardTaps place_taps(const Taps& taps, bool by_tap);
  void describe(const CardSample& sample, Entry& entry, Counts& counts);
  void write_taps(const CardTaps& place, const Taps& taps, int origin, bool by_tap);
  void write_rings(const Placement& place, const PlanRun& run, const std::vector<PlanRing>& rings);
  template <class Part, class Visit>
  void write_stage(CardStage stage, Visit visit);

  std::byte* upload_;
  BatchLimits limits_;
  std::vector<Entry> entries_;  // as many as samples_, so that places stay while others are reserved
  size_t places_ = 0;
  Counts counts_;
  size_t uploaded_ = 0;     // from the memory's beginning
  size_t scratch_end_ = 0;  // scratch grows towards the beginning
  uint64_t outputs_at_ = 0;
  size_t output_bytes_ = 0;
  size_t samples_ = 0;
  int width_ = 0;
  int height_ = 0;
  const Finisher* finisher_ = nullptr;
  uint64_t table_at_ = 0;
  std::vector<StageLaunch> launches_;
};

}  // namespace penstock
