// What one sample wants of a GPU, step by step, before any place in a batch is known.
//
//   GpuSample sample;                                                   // one per thread
//   if (!sample.plan(pipeline, scratch, input, header, draws)) ...      // not for GPUs: the CPU makes it
//   for (const KernelStep& kernel_step : sample.kernel_steps()) ...     // batch_builder.h
//
// What a GPU takes: JPEG that our decoder takes (coefficient_reader.h) and that need not be turned (EXIF orientation 1
//   or none), one image a sample, in a pipeline that is data for these draws (Pipeline::plan()). Of that it leaves to
//   the CPU: images of which nothing is seen but fills, and nearest affine maps that reach beyond 32768 pixels, where
//   Pillow adds coordinates up. The status of what it takes is good, and known here; but where entropy decoding is the
//   GPU's too (GpuEntropy: baseline files), it is the GPU that tells.
// In jobs of arithmetic `fast` a GPU's library (picture_decoder.h) may decode, which takes damage for pixels and looks
//   at no index. So of all files, it is given only baseline ones in colour, without restart markers, that an index has
//   shown to be sound down to the crop's last row. (Bytes that were changed since are noticed by the source, whose
//   index has a checksum of each picture, before the index gets here.) Their plan is at full size, as nothing is
//   promised of their pixels anyway; without a library, and of all other files, it is as in any job.
// Ownership: the file's bytes and its index must outlive the filling of a batch. Memory: vectors that are kept from
//   sample to sample.
// Thread-safety: one per thread. Failure: false, and Error(usage) for draws of another pipeline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/gpu/coefficient_reader.h"
#include "runtime/gpu/mcu_run_planner.h"
#include "runtime/gpu/scan_planner.h"
#include "runtime/pixels/resample_taps.h"
#include "runtime/transforms/pipeline.h"

namespace penstock {

enum class KernelStepKind : uint8_t {
  colour,  // the first run of all, from the decoded components
  place,   // a later stage's first run
  resize,  // and the run behind it
  point,   // operations of one pixel each, all at once
  tone,    // tables that depend on the whole image, for the point that follows
  smooth,
  blur,
  warp,
  gather
};

struct KernelStep {
  KernelStepKind kind = KernelStepKind::colour;
  size_t plan_stage = 0;  // of ImagePlan::stages
  size_t at = 0;          // its run, or its first operation
  size_t count = 0;       // operations
  size_t own = 0;         // resize: which taps(); gather: which gathered()
  Size in;
  Size out;
};

// Output (x, y) is pixel (columns[x], rows[y]), or where `turned` (columns[y], rows[x]); -1: the fill.
struct GatheredPlaces {
  std::vector<int32_t> columns;
  std::vector<int32_t> rows;
  bool turned = false;
  Fill fill{};
};

// What the GPUs' libraries can do; all of them.
struct LibraryOffer {
  bool cuts_regions = true;
};

// Why a sample of a fast job is none for a library.
enum class LibraryMiss : uint8_t { none, no_index, kind };
inline constexpr size_t kLibraryMisses = 3;
constexpr std::string_view name_of(LibraryMiss miss) {
  constexpr std::string_view names[kLibraryMisses] = {"none", "no_index", "kind"};
  return names[static_cast<size_t>(miss)];
}

// Which entropy decoding a GPU may be left: the pixels are the same in any case.
struct GpuEntropy {
  bool by_index = true;   // of files that have one (entropy_kernel.h)
  bool by_search = true;  // of others: at their restart markers, or wherever codes are found (sync_kernel.h)
  uint32_t subsequence_bytes = 128;
};

class GpuSample {
 public:
  enum class EntropyMode : uint8_t { cpu, index, restarts, search };

  GpuSample() = default;
  explicit GpuSample(const GpuEntropy& entropy) : entropy_(entropy) {}
  GpuSample(const GpuSample&) = delete;
  GpuSample& operator=(const GpuSample&) = delete;

  bool plan(const Pipeline& pipeline, Scratch& scratch, const ImageInput& input, const ImageHeader& header,
            const Draws& draws, const LibraryOffer* library = nullptr);
  // No batch takes it.
  void forget() { reader_.forget(); }

  const ImagePlan& plan() const noexcept { return plan_; }
  const std::vector<KernelStep>& kernel_steps() const noexcept { return kernel_steps_; }
  // Columns, rows.
  const std::array<Taps, 2>& taps(size_t resize) const noexcept { return taps_[resize]; }
  const GatheredPlaces& gathered(size_t which) const noexcept { return gathered_[which]; }
  const CoefficientReader& reader() const noexcept { return reader_; }
  CoefficientReader& reader() noexcept { return reader_; }
  // The GPU decodes the file's bytes, by the runs of MCUs of its index or its restart markers, or all of its scan; else
  // the batch is filled with coefficients.
  EntropyMode entropy_mode() const noexcept { return entropy_mode_; }
  bool leaves_entropy() const noexcept { return entropy_mode_ != EntropyMode::cpu; }
  const McuRunPlanner& mcu_runs() const noexcept { return mcu_runs_; }
  const ScanPlanner& scan() const noexcept { return scan_; }
  const SideIndex* index() const noexcept { return index_; }  // the file's, or none
  // The GPU's library decodes it: this part of the file's pixels.
  bool by_library() const noexcept { return by_library_; }
  const Box& region() const noexcept { return region_; }
  EncodedView file() const noexcept { return file_; }
  LibraryMiss miss() const noexcept { return miss_; }

 private:
  bool plan_for_library(const Pipeline& pipeline, Scratch& scratch, const ImageInput& input, const ImageHeader& header,
                        const Draws& draws, const LibraryOffer& library);
  bool list_kernel_steps(Size size, Resampler& resampler);
  bool add_runs(size_t stage, Size& size, Resampler& resampler);
  bool add_ops(size_t stage, Size& size);
  bool add_warp(KernelStep kernel_step, const WarpOp& op);
  GatheredPlaces& add_gather(KernelStep kernel_step);

  GpuEntropy entropy_;
  ImagePlan plan_;
  CoefficientReader reader_;
  const SideIndex* index_ = nullptr;
  McuRunPlanner mcu_runs_;
  ScanPlanner scan_;
  EntropyMode entropy_mode_ = EntropyMode::cpu;
  EncodedView file_;
  Box region_;
  bool by_library_ = false;
  LibraryMiss miss_ = LibraryMiss::none;
  std::vector<KernelStep> kernel_steps_;
  std::vector<std::array<Taps, 2>> taps_;
  std::vector<GatheredPlaces> gathered_;
  size_t resizes_ = 0;
  size_t gathers_ = 0;
};

}  // namespace penstock
