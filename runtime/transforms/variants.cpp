#include "runtime/transforms/variants.h"

#include "runtime/transforms/draw.h"

namespace penstock {
namespace {

std::string shape_of(const Pipeline& pipeline) {
  const std::string views = pipeline.views() > 1 ? std::to_string(pipeline.views()) + " views of " : "";
  return views + std::to_string(pipeline.out_height()) + " x " + std::to_string(pipeline.out_width()) + " pixels";
}

}  // namespace

Variant draw_variant(const DrawKey& key, double cpu_fraction) noexcept {
  return DrawStream(key, kVariantPosition).bernoulli(cpu_fraction) ? Variant::cpu : Variant::gpu;
}

Variants::Variants(Pipeline cpu, Pipeline gpu, double cpu_fraction)
    : cpu_(std::move(cpu)), gpu_(std::move(gpu)), cpu_fraction_(cpu_fraction) {
  if (shape_of(cpu_) != shape_of(*gpu_)) {
    throw Error(ErrorKind::config, "gpu_pipeline ends in " + shape_of(*gpu_) + ", and pipeline in " + shape_of(cpu_),
                "let both end in the same size: a batch has samples of both");
  }
  if (cpu_.finish() != gpu_->finish() || cpu_.soft_classes() != gpu_->soft_classes()) {
    throw Error(ErrorKind::config, "gpu_pipeline does not finish its images as pipeline does",
                "give both the same ToDtype, Normalize, MixUp and CutMix: a batch has samples of both");
  }
}

Variant Variants::of(const DrawKey& key) const noexcept {
  return gpu_ ? draw_variant(key, cpu_fraction_) : Variant::cpu;
}

std::vector<std::string> Variants::functions() const {
  std::vector<std::string> all = cpu_.functions();
  if (gpu_) all.insert(all.end(), gpu_->functions().begin(), gpu_->functions().end());
  return all;
}

size_t Variants::first_function(Variant variant) const noexcept {
  return variant == Variant::gpu ? cpu_.functions().size() : 0;
}

void Variants::note(const DrawKey& key, Draws& draws) const {
  if (gpu_) draws.push_back({kVariantPosition, {static_cast<int64_t>(of(key))}});
}

std::optional<Variant> Variants::noted(const Draws& draws) noexcept {
  if (draws.empty() || draws.back().position != kVariantPosition || draws.back().values.empty()) return std::nullopt;
  return draws.back().values.front() == 0 ? Variant::cpu : Variant::gpu;
}

}  // namespace penstock
