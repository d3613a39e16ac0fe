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
  return DrawStream(key, kVariantPosition).bernoulli(cpu_fraction) ? Variant::cpu : Variant::card;
}

Variants::Variants(Pipeline cpu, Pipeline card, double cpu_fraction)
    : cpu_(std::move(cpu)), card_(std::move(card)), cpu_fraction_(cpu_fraction) {
  if (shape_of(cpu_) != shape_of(*card_)) {
    throw Error(ErrorKind::config, "card_pipeline ends in " + shape_of(*card_) + ", and pipeline in " + shape_of(cpu_),
                "let both end in the same size: a batch has samples of both");
  }
  if (cpu_.finish() != card_->finish() || cpu_.soft_classes() != card_->soft_classes()) {
    throw Error(ErrorKind::config, "card_pipeline does not finish its images as pipeline does",
                "give both the same ToDtype, Normalize, MixUp and CutMix: a batch has samples of both");
  }
}

Variant Variants::of(const DrawKey& key) const noexcept {
  return card_ ? draw_variant(key, cpu_fraction_) : Variant::cpu;
}

std::vector<std::string> Variants::functions() const {
  std::vector<std::string> all = cpu_.functions();
  if (card_) all.insert(all.end(), card_->functions().begin(), card_->functions().end());
  return all;
}

size_t Variants::first_function(Variant variant) const noexcept {
  return variant == Variant::card ? cpu_.functions().size() : 0;
}

void Variants::note(const DrawKey& key, Draws& draws) const {
  if (card_) draws.push_back({kVariantPosition, {static_cast<int64_t>(of(key))}});
}

std::optional<Variant> Variants::noted(const Draws& draws) noexcept {
  if (draws.empty() || draws.back().position != kVariantPosition || draws.back().values.empty()) return std::nullopt;
  return draws.back().values.front() == 0 ? Variant::cpu : Variant::card;
}

}  // namespace penstock
