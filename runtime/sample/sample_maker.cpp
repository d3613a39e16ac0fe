#include "runtime/sample/sample_maker.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/field_value.h"
#include "runtime/base/large_memory.h"
#include "runtime/base/wire.h"
#include "runtime/datasets/files_here.h"
#include "runtime/sample/split_fields.h"
#include "runtime/transforms/draw.h"

namespace penstock {

SampleMaker::SampleMaker(std::shared_ptr<const SplitContext> context)
    : context_(std::move(context)), scratch_(context_->split().limits) {}

SampleMaker::SampleMaker(std::shared_ptr<const SplitContext> context, const DecoderOptions& decoding)
    : SampleMaker(std::move(context)) {
  scratch_.decoder = Decoder(context_->split().limits, decoding);
}

SampleStatus SampleMaker::run_function(const DrawKey& key, size_t number, uint16_t position, PixelBuffer& image) {
  const size_t bytes = image.row_bytes() * static_cast<size_t>(image.height());
  WireWriter body;
  const std::vector<std::string>& functions = pipeline_->functions();
  const size_t before = context_->variants().first_function(context_->variants().of(key));
  body.u16(static_cast<uint16_t>(before + number));
  body.u16(position);
  body.u32(static_cast<uint32_t>(image.height()));
  body.u32(static_cast<uint32_t>(image.width()));
  const std::vector<std::byte> who = python_request(key);
  body.raw(who.data(), who.size());
  const std::string& name = functions[number];
  take_large(bytes);
  SampleStatus status =
      context_->workers()->call({kPythonTransform, body.bytes(), std::as_bytes(std::span(image.row(0), bytes))}, bytes,
                                "'" + name + "' on sample " + std::to_string(key.index), answer_);
  if (!status.ok()) return SampleStatus::bad("'" + name + "': " + status.reason);
  if (answer_.size() != bytes) throw Error(ErrorKind::runtime, "a Python worker sent pixels of a wrong size");
  std::memcpy(image.row(0), answer_.data(), bytes);
  return SampleStatus::good();
}

SampleStatus SampleMaker::make_image(EncodedView encoded, const DrawKey& key, std::byte* image, SampleRecord& record,
                                     std::span<const std::byte> restart_points, LearnedIndexes* learned) {
  ImageHeader header;
  const HeaderOptions& options = context_->variants().pipeline_of(key).header_options();
  const SampleStatus status = read_header(encoded, context_->split().limits, header, options);
  if (!status.ok()) return status;
  if (!restart_points.empty() && SideIndex::read(restart_points, side_index_)) {
    return run_pipeline({encoded, {}, &side_index_}, header, key, image, record);
  }
  if (learned == nullptr || header.format != ImageFormat::jpeg) {
    return run_pipeline({encoded, {}, nullptr}, header, key, image, record);
  }
  return make_learning(encoded, header, key, image, record, *learned);
}

SampleStatus SampleMaker::make_learning(EncodedView encoded, const ImageHeader& header, const DrawKey& key,
                                        std::byte* image, SampleRecord& record, LearnedIndexes& learned) {
  const MonotonicClock clock;
  const auto sample = static_cast<int64_t>(key.index);
  Nanoseconds begun = clock.now();
  const auto known = learned.find(sample, encoded);
  times_.decode_ns += clock.now() - begun;
  more_ = {};
  const SampleStatus status = run_pipeline(
      {encoded, {}, known ? &known->index : nullptr, learned.learns() ? &more_ : nullptr}, header, key, image, record);
  if (more_.empty()) return status;
  begun = clock.now();
  learned.keep(sample, encoded, known, std::move(more_));
  times_.decode_ns += clock.now() - begun;
  return status;
}

SampleStatus SampleMaker::run_pipeline(const ImageInput& input, const ImageHeader& header, const DrawKey& key,
                                       std::byte* image, SampleRecord& record) {
  record.width = header.width;
  record.height = header.height;
  pipeline_ = &context_->variants().pipeline_of(key);
  record.draws = pipeline_->draw(key, header);
  times_.source_pixels += int64_t{header.width} * header.height;
  const std::span<uint8_t> out(reinterpret_cast<uint8_t*>(image), context_->fields()[0].bytes_per_sample());
  if (offload_ != nullptr && is_for_gpus(key)) {
    const MonotonicClock clock;
    const Nanoseconds begun = clock.now();
    const bool taken = offload_->take(*pipeline_, input, header, record.draws, out, scratch_);
    times_.decode_ns += clock.now() - begun;
    if (taken) return SampleStatus::good();
  }
  return apply(input, header, key, record.draws, out, ImageRole::image);
}

bool SampleMaker::is_for_gpus(const DrawKey& key) const noexcept {
  const Variants& variants = context_->variants();
  if (variants.several()) return variants.of(key) == Variant::gpu;
  return !cpu_fraction_ || draw_variant(key, *cpu_fraction_) == Variant::gpu;
}

SampleStatus SampleMaker::apply(const ImageInput& input, const ImageHeader& header, const DrawKey& key,
                                const Draws& draws, std::span<uint8_t> out, ImageRole role) {
  PixelFunction function;
  if (!pipeline_->functions().empty()) {
    function = [this, &key](size_t number, uint16_t position, PixelBuffer& pixels) {
      return run_function(key, number, position, pixels);
    };
  }
  // The guard gives memory back before the use ends, so that the next one in line finds it free.
  const LargeMemory::Use use(context_->large());
  struct LetGo {
    SampleMaker& maker;
    const LargeMemory::Use& use;
    ~LetGo() {
      if (!use.any()) return;
      maker.scratch_.let_large_go();
      let_large_go(maker.answer_);
    }
  } const let_go{*this, use};
  const SampleStatus status = pipeline_->apply(input, header, draws, out, scratch_, function, role);
  times_.decode_ns += std::exchange(scratch_.decode_ns, 0);
  times_.augment_ns += std::exchange(scratch_.augment_ns, 0);
  return status;
}

// The sample's further images, with the first one's draws.
SampleStatus SampleMaker::make_others(const DrawKey& key, std::span<std::byte* const> fields,
                                      const SampleRecord& record) {
  const FieldTable& table = context_->fields();
  for (size_t f = 2; f < table.size(); ++f) {
    const bool mask = table[f].kind == FieldKind::mask;
    if (!mask && table[f].kind != FieldKind::image) continue;
    const EncodedView encoded = sample_.fields.at(f - 2);
    times_.encoded_bytes += static_cast<int64_t>(encoded.size());
    ImageHeader header;
    SampleStatus status = read_header(encoded, context_->split().limits, header, pipeline_->header_options());
    if (status.ok() && (header.width != record.width || header.height != record.height)) {
      status = SampleStatus::bad("it has " + std::to_string(header.width) + " x " + std::to_string(header.height) +
                                 " pixels, and its image " + std::to_string(record.width) + " x " +
                                 std::to_string(record.height));
    }
    times_.source_pixels += int64_t{header.width} * header.height;
    const size_t bytes = table[f].bytes_per_sample();
    auto* const out = reinterpret_cast<uint8_t*>(fields[f]);
    if (status.ok() && !mask)
      status = apply({encoded, {}, nullptr}, header, key, record.draws, {out, bytes}, ImageRole::image);
    if (status.ok() && mask) {
      planes_.resize(3 * bytes);
      status = apply({encoded, {}, nullptr}, header, key, record.draws, planes_, ImageRole::mask);
      // All three planes of each view are the same.
      const auto views = static_cast<size_t>(context_->pipeline().views());
      const size_t area = bytes / views;
      for (size_t view = 0; view < views; ++view)
        std::memcpy(out + view * area, planes_.data() + 3 * view * area, area);
    }
    if (!status.ok()) return SampleStatus::bad("its " + table[f].name + ": " + status.reason);
  }
  return SampleStatus::good();
}

SampleStatus SampleMaker::load(const DrawKey& key) {
  try {
    return context_->source().load(key, sample_);
  } catch (const FileError& error) {
    const bool of_file = is_missing(error) || error.code() == EACCES || error.code() == EPERM || error.code() == ELOOP;
    if (!of_file || !context_->only_here()) throw;
    return SampleStatus::bad(error.message());
  }
}

SampleStatus SampleMaker::try_make(int64_t index, uint16_t occurrence, int64_t epoch,
                                   std::span<std::byte* const> fields, SampleRecord& record) {
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  if (offload_ != nullptr) offload_->forget();
  record.index = index;
  record.draws.clear();
  const DrawKey key{context_->split().seed, static_cast<uint32_t>(epoch), static_cast<uint64_t>(index), occurrence};
  SampleStatus status = load(key);
  const Nanoseconds took = clock.now() - begun;
  times_.read_ns += took;
  if (context_->split().split.dataset.is_python()) times_.python_ns += took;
  if (!status.ok()) return status;
  times_.encoded_bytes += static_cast<int64_t>(sample_.image.size());
  if (sample_.width > 0) {  // pixels already
    ImageInput input;
    input.pixels = {reinterpret_cast<const uint8_t*>(sample_.image.data()), sample_.width, sample_.height,
                    static_cast<size_t>(sample_.width) * 3};
    const ImageHeader header{ImageFormat::unknown, sample_.width, sample_.height};
    status = run_pipeline(input, header, key, fields[0], record);
  } else {
    status = make_image(sample_.image, key, fields[0], record, sample_.restart_points, context_->learned());
  }
  if (status.ok()) status = make_others(key, fields, record);
  if (!status.ok()) return status;
  context_->variants().note(key, record.draws);
  std::memcpy(fields[1], &sample_.label, sizeof sample_.label);
  for (size_t f = 2; f < context_->fields().size() && status.ok(); ++f) {
    const FieldSpec& field = context_->fields()[f];
    if (field.kind == FieldKind::image || field.kind == FieldKind::mask) continue;  // make_others()
    status = put_value(field, sample_.fields.at(f - 2), fields[f]);
  }
  return status;
}

// The first usable one of the sample's substitutes. What any thread has seen to be unusable is not looked at again.
bool SampleMaker::substitute(const PlannedSample& planned, int64_t epoch, std::span<std::byte* const> fields,
                             SampleRecord& record) {
  const ResolvedSplit& split = context_->split();
  UnusableSamples& unusable = context_->unusable();
  unusable.add(epoch, planned.occurrence, planned.index);
  Substitutes others(split.seed, epoch, planned.index, context_->source().size(), split.bad_samples);
  while (const std::optional<int64_t> other = others.next()) {
    if (ending_ != nullptr && *ending_) {
      throw Error(ErrorKind::runtime, "the loader ended in the middle of a search for a usable sample");
    }
    record.attempts = static_cast<uint16_t>(std::min<int64_t>(others.given(), std::numeric_limits<uint16_t>::max()));
    if (unusable.has(epoch, planned.occurrence, *other)) continue;
    if (try_make(*other, planned.occurrence, epoch, fields, record).ok()) {
      record.substituted = true;
      record.substitute = context_->source().key(*other);
      return true;
    }
    unusable.add(epoch, planned.occurrence, *other);
  }
  record.reason += others.given() == 0 ? "; and there is no other sample to stand in"
                                       : "; and none of " + std::to_string(others.given()) + " substitutes is usable";
  return false;
}

SampleRecord SampleMaker::make(const PlannedSample& planned, int64_t epoch, std::span<std::byte* const> fields) {
  const ResolvedSplit& split = context_->split();
  SampleRecord record;
  record.planned = planned;
  record.padding = !planned.valid;
  SampleStatus status = try_make(planned.index, planned.occurrence, epoch, fields, record);
  record.key = context_->source().key(planned.index);
  if (status.ok() && !planned.valid) {
    // Padding of an exact evaluation: the picture of the repeated sample, a label that no loss counts.
    std::memcpy(fields[1], &kIgnoredLabel, sizeof kIgnoredLabel);
  }
  if (status.ok()) return record;

  record.reason = status.reason;
  // The traceback behind the first line is for the error that ends an iteration; a list of unusable samples has a line each.
  if (split.on_error == OnError::substitute) record.reason = record.reason.substr(0, record.reason.find('\n'));
  if (split.on_error == OnError::substitute && split.split.mode == Mode::train &&
      substitute(planned, epoch, fields, record)) {
    return record;
  }
  if (offload_ != nullptr) offload_->forget();
  record.bad = true;
  record.index = planned.index;
  record.draws.clear();
  if (split.split.mode == Mode::eval) record.planned.valid = false;
  for (size_t f = 0; f < context_->fields().size(); ++f) put_nothing(context_->fields()[f], fields[f]);
  std::memcpy(fields[1], &kIgnoredLabel, sizeof kIgnoredLabel);
  return record;
}

}  // namespace penstock
