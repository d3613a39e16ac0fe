// The pipelines of a split: one, or two of which a draw says for each sample which one makes it.
//
//   // Error(config) unless they end alike
//   Variants variants(Pipeline(split.pipeline), Pipeline(split.gpu_pipeline), 0.3);
//   const Pipeline& pipeline = variants.pipeline_of(key);
//   variants.note(key, record.draws);                         // behind the pipeline's own draws, where there are two
//   if (auto variant = Variants::noted(record.draws)) ...     // what a report or a manifest says of the sample
//
// A variant is named after who would make it sooner, and that is all: what it says is pixels, so any executor makes
//   either. Which one it is follows from (seed, epoch, index, occurrence) alone, by a draw at a position that no
//   transform has; it stands in the sample's draws, and so in its hashes. Where there is one pipeline nothing is drawn
//   or noted.
// What a finished batch shares is the same in both: size, views, finishing, batch transforms. shared() has it.
// Thread-safety: immutable after construction.
#pragma once

#include <optional>

#include "runtime/base/sample.h"
#include "runtime/transforms/pipeline.h"

namespace penstock {

enum class Variant : uint8_t { cpu = 0, gpu = 1 };

inline const char* name_of(Variant variant) noexcept {
  return variant == Variant::cpu ? "cpu" : "gpu";
}

inline constexpr uint16_t kVariantPosition = 0xFFFE;

// `cpu` for so many of all samples; the same for one sample wherever it is asked.
Variant draw_variant(const DrawKey& key, double cpu_fraction) noexcept;

class Variants {
 public:
  explicit Variants(Pipeline only) : cpu_(std::move(only)) {}
  Variants(Pipeline cpu, Pipeline gpu, double cpu_fraction);

  bool several() const noexcept { return gpu_.has_value(); }
  Variant of(const DrawKey& key) const noexcept;  // cpu where there is one pipeline
  const Pipeline& pipeline(Variant variant) const noexcept { return variant == Variant::gpu && gpu_ ? *gpu_ : cpu_; }
  const Pipeline& pipeline_of(const DrawKey& key) const noexcept { return pipeline(of(key)); }
  const Pipeline& shared() const noexcept { return cpu_; }

  // The Python functions of all pipelines, and where those of one begin among them.
  std::vector<std::string> functions() const;
  size_t first_function(Variant variant) const noexcept;

  void note(const DrawKey& key, Draws& draws) const;
  static std::optional<Variant> noted(const Draws& draws) noexcept;
  // The pipeline that made a sample of these draws.
  const Pipeline& pipeline_of(const Draws& draws) const noexcept {
    return pipeline(noted(draws).value_or(Variant::cpu));
  }

 private:
  Pipeline cpu_;
  std::optional<Pipeline> gpu_;
  double cpu_fraction_ = 1;
};

}  // namespace penstock
