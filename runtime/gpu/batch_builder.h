// Samples gathered to a batch for a GPU: what is uploaded, what is launched, where the results are.
//
//   std::optional<size_t> place = batch.reserve(sample);                 // nullopt: full
//   if (!batch.fill(*place, sample)) batch.drop(*place);                 // not for GPUs, after all
//   ...
//   batch.seal();                                                        // all places are filled or dropped
//   // upload batch.upload_bytes() to the GPU's memory, run batch.launches() in order, fetch from batch.outputs_at(),
//   // and batch.status_bytes() from batch.statuses_at() to the same place of the upload buffer
//   if (batch.good(*place)) ...                                          // else: the CPU makes it
//   // begun with digests: set_record() of each place before seal(), fetch batch.digest_bytes() from batch.digests_at()
//   // as statuses are, and batch.digest(*place) is the hash of record and image
//
// Samples that the GPU's library decodes (gpu_sample.h) are pictures(): their files lie in the upload buffer's end,
//   which is not uploaded, and their pixels are what the first launches read. Who could not be decoded is refuse()d.
// Samples go their ways step by step (gpu_sample.h); a launch takes all that stand before a step of its stage. Those
//   with the longest way to go are served first, so that the others wait for them where their ways meet, and launches
//   are few.
// Huffman tables that several samples share are uploaded once.
// Memory: `memory_bytes` on the GPU and `upload_bytes` here bound a batch; reserve() refuses what exceeds them.
//   Images of a sample on its way take turns in two pieces of memory. Nothing here is allocated by size of a picture.
// Thread-safety: reserve(), drop() and seal() under the caller's lock; fill() of different places at the same time as
//   anything but seal() and begin().
// Ownership: the upload buffer is the caller's. Failure: none but out of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "runtime/base/hash.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/gpu_sample.h"
#include "runtime/gpu/picture_decoder.h"
#include "runtime/pixels/finish.h"

namespace penstock {

struct BatchLimits {
  size_t memory_bytes = 0;  // of the GPU
  size_t upload_bytes = 0;
  size_t outputs = 0;  // samples
};

class BatchBuilder {
 public:
  BatchBuilder(std::byte* upload, const BatchLimits& limits);

  // A new, empty batch of images of this size; finished where `finisher` is given, else uint8 CHW. False: not even the
  // outputs fit.
  // `digests`: of each sample, XXH3-128 of a record and its image (base/hash.h).
  bool begin(size_t samples, int width, int height, const Finisher* finisher = nullptr, bool digests = false);

  std::optional<size_t> reserve(const GpuSample& sample);
  bool fill(size_t place, GpuSample& sample);
  void drop(size_t place) { entries_[place].used = false; }
  // False: there will be no digest of it: the batch has none, this record is empty or too long, or all of it is too short.
  bool set_record(size_t place, std::span<const std::byte> record);
  size_t places() const noexcept { return places_; }

  void seal();  // once
  size_t upload_bytes() const noexcept { return uploaded_; }
  std::span<const StageLaunch> launches() const noexcept { return launches_; }
  uint64_t outputs_at() const noexcept { return outputs_at_; }
  size_t output_bytes() const noexcept { return output_bytes_; }  // of one sample; place after place
  uint64_t statuses_at() const noexcept { return statuses_at_; }
  // None where no sample waits for one.
  size_t status_bytes() const noexcept { return has_statuses() ? places_ * sizeof(uint32_t) : 0; }
  bool good(size_t place) const noexcept {
    return !entries_[place].refused && reinterpret_cast<const uint32_t*>(upload_ + statuses_at_)[place] == 0;
  }
  uint64_t digests_at() const noexcept { return digests_at_; }
  size_t digest_bytes() const noexcept { return digests_ ? places_ * sizeof(Sum128) : 0; }
  // Only for a place whose sample is good and has a record.
  Sum128 digest(size_t place) const noexcept {
    const auto* const words = reinterpret_cast<const uint64_t*>(upload_ + digests_at_) + 2 * place;
    return {words[0], words[1]};
  }
  // After seal(): what the library has to decode before the launches.
  std::span<LibraryPicture> pictures() noexcept { return pictures_; }
  void refuse(size_t place) { entries_[place].refused = true; }
  bool by_library(size_t place) const noexcept { return entries_[place].picture.bytes > 0; }

 private:
  // Alternative k is the part of stage k.
  struct Across : BlurPart {};
  struct Down : BlurPart {};
  using StagePart = std::variant<EntropyPart, SyncPart, SumPart, WritePart, InversePart, ColourPart, AcrossPart,
                                 DownPart, PlacePart, PointPart, TallyPart, TonePart, SmoothPart, Across, Down,
                                 WarpPart, GatherPart, FinishPart, HashPart, DigestPart>;
  static_assert(std::variant_size_v<StagePart> == kGpuStages);

  struct Entry {
    bool used = true;
    bool refused = false;
    LibraryPicture picture;  // bytes: 0: none
    size_t file_at = 0;      // in the upload buffer
    std::vector<StagePart> steps;
    size_t entropy_steps = 0;     // of them, the first
    std::vector<size_t> step_of;  // the first of each kernel step
    size_t next = 0;              // of steps, as launches are made
  };
  struct Counts {
    size_t parts[kGpuStages] = {};
    size_t spans[kGpuStages] = {};
    void add(const StagePart& step);
    size_t bytes() const;
  };

  // A Huffman table of the upload. Until the sample that brings it has its place it is not there.
  struct Table {
    uint64_t key = 0;
    uint64_t at = 0;
    const CodeTable* not_written = nullptr;
  };

  // Where a sample's image is, and a piece of memory that its next one may take.
  struct Images {
    uint64_t at = 0;
    size_t bytes = 0;
    uint64_t spare_at = 0;
    size_t spare_bytes = 0;
  };

  static size_t part_bytes(size_t stage);
  bool has_statuses() const noexcept {
    return counts_.parts[static_cast<size_t>(GpuStage::entropy)] > 0 ||
           counts_.parts[static_cast<size_t>(GpuStage::write)] > 0;
  }
  uint64_t upload(size_t bytes);
  uint64_t scratch(size_t bytes);
  Placement place_run(const PlanRun& run, int source_x, int source_y);
  GpuTaps place_taps(const Taps& taps, bool by_tap);
  void describe(const GpuSample& sample, Entry& entry, Counts& counts);
  void describe_mcu_runs(const GpuSample& sample, uint64_t coefficients_at, Entry& entry);
  void describe_scan(const GpuSample& sample, uint64_t coefficients_at, Entry& entry);
  std::span<const uint64_t> table_places(const EntropyTables& tables);
  EntropyPart entropy_part(const GpuSample& sample, const EntropyTables& tables, size_t bytes,
                           uint64_t coefficients_at);
  void describe_digest(uint64_t image_at, Entry& entry);
  void describe_colour(const GpuSample& sample, const PlanRun& run, uint64_t to, Entry& entry);
  void describe_picture(const GpuSample& sample, const PlanRun& run, uint64_t to, Entry& entry);
  void describe_resize(const GpuSample& sample, const KernelStep& kernel_step, uint64_t from, uint64_t to,
                       Entry& entry);
  void describe_ops(const GpuSample& sample, const KernelStep& kernel_step, uint64_t from, uint64_t to, Entry& entry);
  void write_entropy(const GpuSample& sample, const Entry& entry);
  void write_kernel_step(const GpuSample& sample, const KernelStep& kernel_step, const Entry& entry, size_t step);
  void write_points(const GpuSample& sample, const KernelStep& kernel_step, const Entry& entry, size_t step);
  void write_taps(const GpuTaps& place, const Taps& taps, int origin, bool by_tap);
  void write_rings(const Placement& place, const PlanRun& run, const std::vector<PlanRing>& rings);
  template <class Value>
  void write_array(uint64_t at, const Value* values, size_t count);

  std::byte* upload_;
  BatchLimits limits_;
  std::vector<Entry> entries_;  // as many as samples_, so that places stay while others are reserved
  size_t places_ = 0;
  Counts counts_;
  size_t uploaded_ = 0;     // from the memory's beginning
  size_t files_begin_ = 0;  // in the upload buffer; files grow towards the beginning
  size_t scratch_end_ = 0;  // scratch grows towards the beginning
  uint64_t outputs_at_ = 0;
  uint64_t statuses_at_ = 0;  // in the upload, where a GPU writes them
  bool digests_ = false;
  uint64_t digests_at_ = 0;  // as statuses
  uint64_t secret_at_ = 0;
  size_t output_bytes_ = 0;
  size_t samples_ = 0;
  int width_ = 0;
  int height_ = 0;
  const Finisher* finisher_ = nullptr;
  uint64_t table_at_ = 0;
  std::vector<StageLaunch> launches_;
  std::vector<LibraryPicture> pictures_;
  std::vector<Table> tables_;
  std::vector<uint64_t> table_places_;  // of one sample
};

}  // namespace penstock
