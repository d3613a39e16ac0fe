#include "runtime/loader/split_context.h"

#include <cstring>
#include <utility>

#include "runtime/augment/draw.h"
#include "runtime/base/clock.h"

namespace penstock {
namespace {

// Substitutes draw from a place in the pipeline that no transform has.
constexpr uint16_t kSubstitutePosition = 0xFFFF;

}  // namespace

int64_t substitute_index(uint64_t seed, int64_t epoch, int64_t index, int attempt, int64_t dataset_size) {
  DrawStream draws({seed, static_cast<uint32_t>(epoch), static_cast<uint64_t>(index), 0}, kSubstitutePosition);
  for (int skipped = 0; skipped < attempt; ++skipped) draws.bits();
  return draws.below(static_cast<uint32_t>(dataset_size));
}

Pipeline make_pipeline(const ResolvedSplit& split) {
  try {
    return Pipeline(split.split.pipeline);
  } catch (const Error& error) {
    throw Error(error.kind(), "split '" + split.name + "': " + error.message(), error.remedy());
  }
}

FieldTable raw_fields(const Pipeline& pipeline) {
  return {{"image", FieldKind::image, DType::uint8, {3, pipeline.out_height(), pipeline.out_width()}},
          {"label", FieldKind::tensor, DType::int64, {}}};
}

SplitContext::SplitContext(const ResolvedSplit& split, std::unique_ptr<Source> source)
    : split_(split),
      source_(std::move(source)),
      pipeline_(make_pipeline(split)),
      fields_(raw_fields(pipeline_)) {}

std::shared_ptr<const SplitContext> SplitContext::open(const ResolvedSplit& split, FileSystem& files) {
  return std::shared_ptr<const SplitContext>(
      new SplitContext(split, make_source(split.split.dataset, split.limits, files)));
}

std::shared_ptr<const SplitContext> SplitContext::without_dataset(const ResolvedSplit& split) {
  return std::shared_ptr<const SplitContext>(new SplitContext(split, nullptr));
}

SampleMaker::SampleMaker(std::shared_ptr<const SplitContext> context)
    : context_(std::move(context)), scratch_(context_->split().limits) {}

Verdict SampleMaker::make_image(EncodedView encoded, const DrawKey& key, std::byte* image, SampleRecord& record) {
  ImageHeader header;
  Verdict verdict = read_header(encoded, context_->split().limits, header);
  if (!verdict.ok()) return verdict;
  record.width = header.width;
  record.height = header.height;
  record.draws = context_->pipeline().draw(key, header);
  const std::span<uint8_t> out(reinterpret_cast<uint8_t*>(image), context_->fields()[0].bytes_per_sample());
  verdict = context_->pipeline().apply(encoded, header, record.draws, out, scratch_);
  times_.decode_ns += std::exchange(scratch_.decode_ns, 0);
  times_.augment_ns += std::exchange(scratch_.augment_ns, 0);
  times_.source_pixels += int64_t{header.width} * header.height;
  return verdict;
}

Verdict SampleMaker::try_make(int64_t index, uint16_t occurrence, int64_t epoch, std::span<std::byte* const> fields,
                              SampleRecord& record) {
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  record.index = index;
  record.draws.clear();
  Verdict verdict = context_->source().read(index, encoded_);
  times_.read_ns += clock.now() - begun;
  if (!verdict.ok()) return verdict;
  times_.encoded_bytes += static_cast<int64_t>(encoded_.size());
  const DrawKey key{context_->split().seed, static_cast<uint32_t>(epoch), static_cast<uint64_t>(index), occurrence};
  verdict = make_image(encoded_, key, fields[0], record);
  if (!verdict.ok()) return verdict;
  const int64_t label = context_->source().label(index);
  std::memcpy(fields[1], &label, sizeof label);
  return verdict;
}

SampleRecord SampleMaker::make(const PlannedSample& planned, int64_t epoch, std::span<std::byte* const> fields) {
  const ResolvedSplit& split = context_->split();
  SampleRecord record;
  record.planned = planned;
  Verdict verdict = try_make(planned.index, planned.occurrence, epoch, fields, record);
  record.key = context_->source().key(planned.index);
  if (verdict.ok() && !planned.valid) {
    // Padding of an exact evaluation: the picture of the repeated sample, a label that no loss counts.
    std::memcpy(fields[1], &kIgnoredLabel, sizeof kIgnoredLabel);
  }
  if (verdict.ok()) return record;

  record.reason = verdict.reason;
  if (split.on_error == OnError::substitute && split.split.mode == Mode::train) {
    for (int attempt = 0; attempt < kMaxSubstitutes; ++attempt) {
      const int64_t other =
          substitute_index(split.seed, epoch, planned.index, attempt, context_->source().size());
      record.attempts = static_cast<uint16_t>(attempt + 1);
      if (try_make(other, planned.occurrence, epoch, fields, record).ok()) {
        record.substituted = true;
        record.substitute = context_->source().key(other);
        return record;
      }
    }
    record.reason += "; and none of " + std::to_string(kMaxSubstitutes) + " substitutes is usable";
  }
  record.bad = true;
  record.index = planned.index;
  record.draws.clear();
  if (split.split.mode == Mode::eval) record.planned.valid = false;
  std::memset(fields[0], 0, context_->fields()[0].bytes_per_sample());
  std::memcpy(fields[1], &kIgnoredLabel, sizeof kIgnoredLabel);
  return record;
}

}  // namespace penstock
