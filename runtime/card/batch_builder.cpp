#include "runtime/card/batch_builder.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime/augment/resample_math.h"

namespace penstock {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

size_t spans_of(uint32_t units) {
  return (units + span_threads - 1) / span_threads;
}

CardBox card_box(const Box& box) {
  return {box.x, box.y, box.width, box.height};
}

// Taps that change nothing, where a pass is left out.
void identity_taps(int first, int count, Taps& taps) {
  taps.first = first;
  taps.stride = 1;
  taps.start.resize(static_cast<size_t>(count));
  std::iota(taps.start.begin(), taps.start.end(), first);
  taps.size.assign(static_cast<size_t>(count), 1);
  taps.q22.assign(static_cast<size_t>(count), 1 << resample_precision_bits);
}

uint32_t area(int width, int height) {
  return static_cast<uint32_t>(width) * static_cast<uint32_t>(height);
}

// Above it 32-bit counts of units might not do; such pictures are rare, and the CPU makes them.
constexpr int64_t kMostPixels = int64_t{1} << 29;

bool too_large(Size size) {
  return int64_t{size.width} * size.height > kMostPixels;
}

}  // namespace

bool CardSample::plan(const Pipeline& pipeline, Scratch& scratch, const ImageInput& input, const ImageHeader& header,
                      const Draws& draws) {
  if (input.pixels.data != nullptr || header.format != ImageFormat::jpeg) return false;
  // A limit that refuses every file is libjpeg's to enforce.
  const DecodeLimits& limits = scratch.limits;
  if (limits.max_scans < 1 || limits.max_warnings < 0) return false;
  return pipeline.plan(header, draws, scratch, plan_) &&
         prepare(input.bytes, header, limits.max_scans, scratch.resampler);
}

bool CardSample::prepare(EncodedView bytes, const ImageHeader& header, int max_scans, Resampler& resampler) {
  if (plan_.runs.empty() || plan_.runs.size() > 2) return false;
  const PlanRun& earliest = plan_.runs.back();
  if (earliest.after_resize || too_large(earliest.result) || too_large(plan_.runs[0].result)) return false;
  for (const PlanRun& run : plan_.runs) {
    if (run.live.width < 1 || run.live.height < 1) return false;  // nothing of the image is seen
  }
  if (!reader_.open(bytes, header, earliest.source, max_scans)) return false;
  if (!resizes()) return true;
  const PlanRun& run = plan_.runs[0];
  const ResampleGeometry& g = run.geometry;
  if (too_large({run.source.width, run.need.height})) {
    forget();
    return false;
  }
  taps_ = resampler.taps(g, run.source);
  if (taps_.columns == nullptr) {
    identity_taps(run.source.x, run.source.width, same_[0]);
    taps_.columns = &same_[0];
  }
  if (taps_.rows == nullptr) {
    identity_taps(run.source.y, run.source.height, same_[1]);
    taps_.rows = &same_[1];
  }
  return true;
}

void BatchBuilder::Counts::add(CardStage stage, uint32_t units) {
  ++parts[static_cast<size_t>(stage)];
  spans[static_cast<size_t>(stage)] += spans_of(units);
}

size_t BatchBuilder::Counts::bytes() const {
  constexpr size_t part_bytes[card_stages] = {sizeof(InversePart), sizeof(ColourPart), sizeof(AcrossPart),
                                              sizeof(DownPart), sizeof(FinishPart)};
  size_t sum = 0;
  for (size_t s = 0; s < card_stages; ++s) {
    sum += aligned(parts[s] * part_bytes[s]) + aligned(spans[s] * sizeof(PartSpan));
  }
  return sum;
}

BatchBuilder::BatchBuilder(std::byte* upload, const BatchLimits& limits) : upload_(upload), limits_(limits) {}

bool BatchBuilder::begin(size_t samples, int width, int height, const Finisher* finisher) {
  launches_.clear();
  counts_ = {};
  places_ = 0;
  uploaded_ = 0;
  samples_ = std::min(samples, limits_.outputs);
  width_ = width;
  height_ = height;
  finisher_ = finisher;
  output_bytes_ = finisher != nullptr ? finisher->bytes_per_sample() : size_t{area(width, height)} * 3;
  const size_t outputs = aligned(samples_ * output_bytes_);
  const size_t table = finisher != nullptr ? finisher->table().size() * sizeof(uint32_t) : 0;
  const size_t end = limits_.memory_bytes / kAlignment * kAlignment;
  if (samples_ == 0 || outputs + aligned(table) > end || aligned(table) > limits_.upload_bytes) return false;
  if (entries_.size() < samples_) entries_.resize(samples_);
  scratch_end_ = end - outputs;
  outputs_at_ = scratch_end_;
  if (finisher != nullptr) {
    table_at_ = upload(table);
    std::memcpy(upload_ + table_at_, finisher->table().data(), table);
  }
  return true;
}

uint64_t BatchBuilder::upload(size_t bytes) {
  const size_t at = uploaded_;
  uploaded_ += aligned(bytes);
  return at;
}

uint64_t BatchBuilder::scratch(size_t bytes) {
  const size_t need = aligned(bytes);
  // What exceeds the memory is seen by reserve(), before anybody uses the number.
  scratch_end_ = need > scratch_end_ ? 0 : scratch_end_ - need;
  return scratch_end_;
}

std::optional<size_t> BatchBuilder::reserve(const CardSample& sample) {
  if (places_ == samples_) return std::nullopt;
  const size_t uploaded = uploaded_;
  const size_t scratch_end = scratch_end_;
  Counts counts = counts_;
  entries_[places_] = {};
  describe(sample, entries_[places_], counts);
  const size_t whole_upload = uploaded_ + counts.bytes();
  if (whole_upload > limits_.upload_bytes || whole_upload > scratch_end_) {
    uploaded_ = uploaded;
    scratch_end_ = scratch_end;
    return std::nullopt;
  }
  counts_ = counts;
  return places_++;
}

Placement BatchBuilder::place_run(const PlanRun& run, int source_x, int source_y) {
  Placement place;
  place.width = run.result.width;
  place.height = run.result.height;
  place.live = card_box(run.live);
  place.source_x = source_x;
  place.source_y = source_y;
  place.mirror_x = run.flip_horizontal ? 1 : 0;
  place.mirror_y = run.flip_vertical ? 1 : 0;
  place.rings = static_cast<uint32_t>(run.last_ring - run.first_ring);
  place.rings_at = place.rings > 0 ? upload(place.rings * sizeof(CardRing)) : 0;
  return place;
}

// `by_tap`: neighbouring outputs' weights of one tap lie side by side, as threads of neighbouring outputs read them.
CardTaps BatchBuilder::place_taps(const Taps& taps, bool by_tap) {
  const auto count = static_cast<size_t>(taps.count());
  const auto stride = static_cast<size_t>(taps.stride);
  CardTaps place;
  place.start_at = upload(count * sizeof(int32_t));
  place.size_at = upload(count * sizeof(int32_t));
  place.weight_at = upload(count * stride * sizeof(int32_t));
  place.step = by_tap ? static_cast<uint32_t>(count) : 1;
  place.turn = by_tap ? 1 : static_cast<uint32_t>(stride);
  return place;
}

void BatchBuilder::describe(const CardSample& sample, Entry& entry, Counts& counts) {
  const JpegFrame& frame = sample.reader_.frame();
  const PlanRun& earliest = sample.plan_.runs.back();
  const uint64_t coefficients_at = upload(sample.reader_.bytes());
  entry.components = frame.components;
  ColourPart& colour = entry.colour;
  for (int c = 0; c < frame.components; ++c) {
    const CoefficientReader::Blocks& blocks = sample.reader_.blocks(c);
    InversePart& part = entry.inverse[static_cast<size_t>(c)];
    part.across = static_cast<uint32_t>(blocks.columns);
    part.units = area(blocks.columns, blocks.rows);
    part.coefficients_at = coefficients_at + blocks.at * sizeof(int16_t);
    part.row_bytes = blocks.row_stride * sizeof(int16_t);
    part.samples.stride = 8 * part.across;
    part.samples.x = 8 * blocks.first_column;
    part.samples.y = 8 * blocks.first_row;
    part.samples.at = scratch(size_t{64} * part.units);
    const auto& quant = frame.component[static_cast<size_t>(c)].quant;
    std::copy(quant.begin(), quant.end(), part.quant);
    (c == 0 ? colour.luma : colour.chroma[c - 1]) = part.samples;
    counts.add(CardStage::inverse, part.units);
  }
  const uint64_t output = outputs_at_ + places_ * output_bytes_;
  // Where the finishing pass comes behind, the image of bytes is in between.
  const uint64_t image = finisher_ != nullptr ? scratch(size_t{area(width_, height_)} * 3) : output;

  colour.place = place_run(earliest, earliest.source.x, earliest.source.y);
  colour.units = area(earliest.result.width, earliest.result.height);
  colour.components = frame.components;
  colour.h = frame.max_h;
  colour.v = frame.max_v;
  colour.chroma_width = frame.component[1].width;
  colour.chroma_height = frame.component[1].height;
  colour.planes_at = sample.resizes() ? scratch(size_t{colour.units} * 3) : image;
  counts.add(CardStage::colour, colour.units);

  entry.resized = sample.resizes();
  if (entry.resized) {
    const PlanRun& run = sample.plan_.runs[0];
    AcrossPart& across = entry.across;
    across.width = run.source.width;
    across.height = run.need.height;
    across.units = area(across.width, across.height);
    across.from_width = run.need.width;
    across.taps = place_taps(*sample.taps_.columns, true);
    across.from_at = colour.planes_at;
    across.to_at = scratch(size_t{across.units} * 3);
    counts.add(CardStage::across, across.units);
    DownPart& down = entry.down;
    down.place = place_run(run, 0, 0);
    down.units = area(run.result.width, run.result.height);
    down.from_width = across.width;
    down.from_height = across.height;
    down.taps = place_taps(*sample.taps_.rows, false);
    down.from_at = across.to_at;
    down.to_at = image;
    counts.add(CardStage::down, down.units);
  }
  if (finisher_ != nullptr) {
    FinishPart& finish = entry.finish;
    finish.units = area(width_, height_);
    finish.element_bytes = static_cast<uint32_t>(size_of(finisher_->spec().dtype));
    finish.interleaved = finisher_->spec().memory_format == MemoryFormat::channels_last ? 1 : 0;
    finish.table_at = table_at_;
    finish.from_at = image;
    finish.to_at = output;
    counts.add(CardStage::finish, finish.units);
  }
}

bool BatchBuilder::fill(size_t place, CardSample& sample, const SideIndex* index) {
  const Entry& entry = entries_[place];
  const std::vector<PlanRun>& runs = sample.plan_.runs;
  write_rings(entry.colour.place, runs.back(), sample.plan_.rings);
  if (entry.resized) {
    write_rings(entry.down.place, runs[0], sample.plan_.rings);
    write_taps(entry.across.taps, *sample.taps_.columns, runs[0].need.x, true);
    write_taps(entry.down.taps, *sample.taps_.rows, runs[0].need.y, false);
  }
  return sample.reader_.read(index, reinterpret_cast<int16_t*>(upload_ + entry.inverse[0].coefficients_at));
}

void BatchBuilder::write_rings(const Placement& place, const PlanRun& run, const std::vector<PlanRing>& rings) {
  for (size_t i = 0; i < place.rings; ++i) {
    const PlanRing& ring = rings[run.first_ring + i];
    CardRing written{card_box(ring.outer), card_box(ring.inner), {}};
    std::copy(ring.fill.begin(), ring.fill.end(), written.fill);
    std::memcpy(upload_ + place.rings_at + i * sizeof written, &written, sizeof written);
  }
}

void BatchBuilder::write_taps(const CardTaps& place, const Taps& taps, int origin, bool by_tap) {
  auto* const start = reinterpret_cast<int32_t*>(upload_ + place.start_at);
  auto* const size = reinterpret_cast<int32_t*>(upload_ + place.size_at);
  auto* const weight = reinterpret_cast<int32_t*>(upload_ + place.weight_at);
  const auto count = static_cast<size_t>(taps.count());
  for (size_t i = 0; i < count; ++i) {
    start[i] = taps.start[i] - origin;
    size[i] = taps.size[i];
  }
  if (!by_tap) {
    std::copy(taps.q22.begin(), taps.q22.begin() + static_cast<ptrdiff_t>(count) * taps.stride, weight);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const int32_t* const from = taps.coefficients(static_cast<int>(i));
    for (size_t k = 0; k < static_cast<size_t>(taps.stride); ++k) weight[k * count + i] = from[k];
  }
}

template <class Part, class Visit>
void BatchBuilder::write_stage(CardStage stage, Visit visit) {
  const auto s = static_cast<size_t>(stage);
  if (counts_.parts[s] == 0) return;
  StageLaunch launch{.stage = stage,
                     .spans_at = upload(counts_.spans[s] * sizeof(PartSpan)),
                     .parts_at = upload(counts_.parts[s] * sizeof(Part))};
  auto* const spans = reinterpret_cast<PartSpan*>(upload_ + launch.spans_at);
  auto* const parts = reinterpret_cast<Part*>(upload_ + launch.parts_at);
  uint32_t part_count = 0;
  const auto add = [&](const Part& part) {
    for (uint32_t first = 0; first < part.units; first += span_threads) spans[launch.spans++] = {part_count, first};
    parts[part_count++] = part;
  };
  for (size_t i = 0; i < places_; ++i) {
    if (entries_[i].used) visit(entries_[i], add);
  }
  if (launch.spans > 0) launches_.push_back(launch);
}

void BatchBuilder::seal() {
  launches_.clear();
  write_stage<InversePart>(CardStage::inverse, [](const Entry& entry, const auto& add) {
    for (size_t c = 0; c < static_cast<size_t>(entry.components); ++c) add(entry.inverse[c]);
  });
  write_stage<ColourPart>(CardStage::colour, [](const Entry& entry, const auto& add) { add(entry.colour); });
  write_stage<AcrossPart>(CardStage::across, [](const Entry& entry, const auto& add) {
    if (entry.resized) add(entry.across);
  });
  write_stage<DownPart>(CardStage::down, [](const Entry& entry, const auto& add) {
    if (entry.resized) add(entry.down);
  });
  if (finisher_ != nullptr) {
    write_stage<FinishPart>(CardStage::finish, [](const Entry& entry, const auto& add) { add(entry.finish); });
  }
}

}  // namespace penstock
