#include "runtime/gpu/batch_builder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/zigzag.h"
#include "runtime/gpu/gpu_alignment.h"
#include "runtime/gpu/hash_secret.h"

namespace penstock {
namespace {

size_t spans_of(uint32_t units) {
  return (units + kSpanThreads - 1) / kSpanThreads;
}

GpuBox gpu_box(const Box& box) {
  return {box.x, box.y, box.width, box.height};
}

uint32_t area(int width, int height) {
  return static_cast<uint32_t>(width) * static_cast<uint32_t>(height);
}

uint32_t area(Size size) {
  return area(size.width, size.height);
}

size_t image_bytes(Size size) {
  return size_t{area(size)} * 3;
}

// The tally that a tone is made from.
size_t tally_bytes(ToneKind kind) {
  return kind == ToneKind::contrast ? sizeof(uint64_t) : 3 * 256 * sizeof(uint32_t);
}

size_t weights_bytes(const GaussianWeights& weights) {
  return (static_cast<size_t>(weights.half) + 1) * sizeof(float);
}

size_t tables_in(const std::vector<PixelOp>& ops, size_t first, size_t count) {
  return static_cast<size_t>(std::count_if(ops.begin() + static_cast<ptrdiff_t>(first),
                                           ops.begin() + static_cast<ptrdiff_t>(first + count),
                                           [](const PixelOp& op) { return std::holds_alternative<TableOp>(op); }));
}

WarpKind kind_of(const WarpOp& op) {
  if (op.filter == Filter::bicubic) return WarpKind::bicubic;
  if (op.filter == Filter::bilinear) return WarpKind::bilinear;
  return op.rotation.map.perspective ? WarpKind::nearest : WarpKind::fixed;
}

}  // namespace

void BatchBuilder::Counts::add(const StagePart& step) {
  ++parts[step.index()];
  spans[step.index()] += spans_of(std::visit([](const auto& part) { return part.units; }, step));
}

size_t BatchBuilder::part_bytes(size_t stage) {
  static constexpr auto bytes = []<size_t... S>(std::index_sequence<S...>) {
    return std::array{sizeof(std::variant_alternative_t<S, StagePart>)...};
  }
  (std::make_index_sequence<kGpuStages>());
  return bytes[stage];
}

size_t BatchBuilder::Counts::bytes() const {
  size_t sum = 0;
  for (size_t s = 0; s < kGpuStages; ++s) {
    sum += gpu_aligned(parts[s] * part_bytes(s)) + gpu_aligned(spans[s] * sizeof(PartSpan));
  }
  return sum;
}

BatchBuilder::BatchBuilder(std::byte* upload, const BatchLimits& limits) : upload_(upload), limits_(limits) {}

bool BatchBuilder::begin(size_t samples, int width, int height, const Finisher* finisher, bool digests) {
  launches_.clear();
  pictures_.clear();
  tables_.clear();
  counts_ = {};
  places_ = 0;
  uploaded_ = 0;
  samples_ = std::min(samples, limits_.outputs);
  width_ = width;
  height_ = height;
  finisher_ = finisher;
  digests_ = digests;
  output_bytes_ = finisher != nullptr ? finisher->bytes_per_sample() : size_t{area(width, height)} * 3;
  const size_t outputs = gpu_aligned(samples_ * output_bytes_);
  const size_t table = finisher != nullptr ? finisher->table().size() * sizeof(uint32_t) : 0;
  const size_t statuses = samples_ * sizeof(uint32_t);
  const size_t hashes = digests ? samples_ * sizeof(Sum128) : 0;
  const size_t secret = digests ? kHashSecretBytes : 0;
  const size_t uploaded = gpu_aligned(table) + gpu_aligned(statuses) + gpu_aligned(hashes) + gpu_aligned(secret);
  const size_t end = limits_.memory_bytes / kGpuAlignment * kGpuAlignment;
  if (samples_ == 0 || outputs + uploaded > end || uploaded > limits_.upload_bytes) return false;
  if (entries_.size() < samples_) entries_.resize(samples_);
  files_begin_ = limits_.upload_bytes / kGpuAlignment * kGpuAlignment;
  scratch_end_ = end - outputs;
  outputs_at_ = scratch_end_;
  statuses_at_ = upload(statuses);
  std::memset(upload_ + statuses_at_, 0, statuses);
  if (digests) {
    digests_at_ = upload(hashes);
    secret_at_ = upload(secret);
    write_array(secret_at_, hash_secret().data(), secret);
  }
  if (finisher != nullptr) {
    table_at_ = upload(table);
    std::memcpy(upload_ + table_at_, finisher->table().data(), table);
  }
  return true;
}

uint64_t BatchBuilder::upload(size_t bytes) {
  const size_t at = uploaded_;
  uploaded_ += gpu_aligned(bytes);
  return at;
}

uint64_t BatchBuilder::scratch(size_t bytes) {
  const size_t need = gpu_aligned(bytes);
  // What exceeds the memory is seen by reserve(), before anybody uses the number.
  scratch_end_ = need > scratch_end_ ? 0 : scratch_end_ - need;
  return scratch_end_;
}

std::optional<size_t> BatchBuilder::reserve(const GpuSample& sample) {
  if (places_ == samples_) return std::nullopt;
  const size_t uploaded = uploaded_;
  const size_t scratch_end = scratch_end_;
  const size_t files_begin = files_begin_;
  const size_t tables = tables_.size();
  Counts counts = counts_;
  describe(sample, entries_[places_], counts);
  const size_t whole_upload = uploaded_ + counts.bytes();
  if (whole_upload > files_begin_ || whole_upload > scratch_end_) {
    uploaded_ = uploaded;
    scratch_end_ = scratch_end;
    files_begin_ = files_begin;
    tables_.resize(tables);
    return std::nullopt;
  }
  counts_ = counts;
  // Now, not by fill(): other samples go by them, also where this one is dropped.
  for (Table& table : std::span(tables_).subspan(tables)) {
    write_array(table.at, std::exchange(table.not_written, nullptr), 1);
  }
  return places_++;
}

Placement BatchBuilder::place_run(const PlanRun& run, int source_x, int source_y) {
  Placement place;
  place.width = run.result.width;
  place.height = run.result.height;
  place.live = gpu_box(run.live);
  place.source_x = source_x;
  place.source_y = source_y;
  place.mirror_x = run.flip_horizontal ? 1 : 0;
  place.mirror_y = run.flip_vertical ? 1 : 0;
  place.rings = static_cast<uint32_t>(run.last_ring - run.first_ring);
  place.rings_at = place.rings > 0 ? upload(place.rings * sizeof(GpuRing)) : 0;
  return place;
}

// `by_tap`: neighbouring outputs' weights of one tap lie side by side, as threads of neighbouring outputs read them.
GpuTaps BatchBuilder::place_taps(const Taps& taps, bool by_tap) {
  const auto count = static_cast<size_t>(taps.count());
  const auto stride = static_cast<size_t>(taps.stride);
  GpuTaps place;
  place.start_at = upload(count * sizeof(int32_t));
  place.size_at = upload(count * sizeof(int32_t));
  place.weight_at = upload(count * stride * sizeof(int32_t));
  place.step = by_tap ? static_cast<uint32_t>(count) : 1;
  place.stride = by_tap ? 1 : static_cast<uint32_t>(stride);
  return place;
}

void BatchBuilder::describe(const GpuSample& sample, Entry& entry, Counts& counts) {
  entry.used = true;
  entry.refused = false;
  entry.picture = {};
  entry.steps.clear();
  entry.step_of.clear();
  entry.next = 0;
  const uint64_t output = outputs_at_ + places_ * output_bytes_;
  // Where the finishing pass comes behind, the image of bytes is in between.
  const uint64_t last = finisher_ != nullptr ? scratch(image_bytes({width_, height_})) : output;
  Images images;
  const std::vector<KernelStep>& kernel_steps = sample.kernel_steps();
  for (size_t a = 0; a < kernel_steps.size(); ++a) {
    const KernelStep& kernel_step = kernel_steps[a];
    entry.step_of.push_back(entry.steps.size());
    if (kernel_step.kind == KernelStepKind::tone) {
      describe_ops(sample, kernel_step, images.at, 0, entry);
      continue;
    }
    const uint64_t from = images.at;
    if (a + 1 < kernel_steps.size() && kernel_step.kind != KernelStepKind::point) {
      const size_t bytes = image_bytes(kernel_step.out);
      const bool fits = bytes <= images.spare_bytes;
      images = {fits ? images.spare_at : scratch(bytes), fits ? images.spare_bytes : gpu_aligned(bytes), images.at,
                images.bytes};
    }
    const uint64_t to = a + 1 < kernel_steps.size() ? images.at : last;
    const std::vector<PlanRun>& runs = sample.plan().stages[kernel_step.plan_stage].geometry.runs;
    switch (kernel_step.kind) {
      case KernelStepKind::colour:
        if (sample.by_library()) {
          describe_picture(sample, runs[kernel_step.at], to, entry);
        } else {
          describe_colour(sample, runs[kernel_step.at], to, entry);
        }
        break;
      case KernelStepKind::place: {
        const PlanRun& run = runs[kernel_step.at];
        PlacePart part;
        part.units = area(kernel_step.out);
        part.place = place_run(run, run.source.x, run.source.y);
        part.from_width = kernel_step.in.width;
        part.from_height = kernel_step.in.height;
        part.from_at = from;
        part.to_at = to;
        entry.steps.emplace_back(part);
        break;
      }
      case KernelStepKind::resize: describe_resize(sample, kernel_step, from, to, entry); break;
      default: describe_ops(sample, kernel_step, from, to, entry);
    }
  }
  if (finisher_ != nullptr) {
    FinishPart finish;
    finish.units = area(width_, height_);
    finish.element_bytes = static_cast<uint32_t>(size_of(finisher_->spec().dtype));
    finish.interleaved = finisher_->spec().memory_format == MemoryFormat::channels_last ? 1 : 0;
    finish.table_at = table_at_;
    finish.from_at = last;
    finish.to_at = output;
    entry.steps.emplace_back(finish);
  }
  if (digests_) describe_digest(last, entry);
  for (const StagePart& step : entry.steps) counts.add(step);
}

// The last steps. How long the record will be is not known yet.
void BatchBuilder::describe_digest(uint64_t image_at, Entry& entry) {
  HashPart hash;
  hash.image_bytes = image_bytes({width_, height_});
  hash.image_at = image_at;
  const uint64_t blocks = (kHashRecordRoom + hash.image_bytes - 1) / kHashBlockBytes + 1;
  hash.units = static_cast<uint32_t>(blocks) * kHashLanes;
  hash.record_at = upload(kHashRecordRoom);
  hash.secret_at = secret_at_;
  hash.sums_at = scratch(blocks * kHashLanes * sizeof(uint64_t));
  entry.steps.emplace_back(hash);
  entry.steps.emplace_back(DigestPart{1, hash, digests_at_ + places_ * sizeof(Sum128)});
}

bool BatchBuilder::set_record(size_t place, std::span<const std::byte> record) {
  if (!digests_ || record.empty() || record.size() > kHashRecordRoom) return false;
  Entry& entry = entries_[place];
  auto& digest = std::get<DigestPart>(entry.steps.back());
  auto& hash = std::get<HashPart>(entry.steps[entry.steps.size() - 2]);
  if (record.size() + hash.image_bytes < kHashLeastBytes) return false;
  write_array(hash.record_at, record.data(), record.size());
  hash.record_bytes = digest.hash.record_bytes = static_cast<uint32_t>(record.size());
  return true;
}

void BatchBuilder::describe_colour(const GpuSample& sample, const PlanRun& run, uint64_t to, Entry& entry) {
  const CoefficientReader& reader = sample.reader();
  const JpegFrame& frame = reader.frame();
  const uint64_t coefficients_at = sample.leaves_entropy() ? scratch(reader.bytes()) : upload(reader.bytes());
  switch (sample.entropy_mode()) {
    case GpuSample::EntropyMode::cpu: break;
    case GpuSample::EntropyMode::index:
    case GpuSample::EntropyMode::restarts: describe_mcu_runs(sample, coefficients_at, entry); break;
    case GpuSample::EntropyMode::search: describe_scan(sample, coefficients_at, entry); break;
  }
  entry.entropy_steps = entry.steps.size();
  ColourPart colour;
  for (int c = 0; c < frame.components; ++c) {
    const CoefficientReader::Blocks& blocks = reader.blocks(c);
    InversePart part;
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
    entry.steps.emplace_back(part);
  }
  colour.place = place_run(run, run.source.x, run.source.y);
  colour.units = area(run.result);
  colour.components = frame.components;
  colour.h = frame.max_h;
  colour.v = frame.max_v;
  colour.chroma_width = frame.component[1].width;
  colour.chroma_height = frame.component[1].height;
  colour.to_at = to;
  entry.steps.emplace_back(colour);
}

// As `place` of an image that is there: the library's pixels of the region.
void BatchBuilder::describe_picture(const GpuSample& sample, const PlanRun& run, uint64_t to, Entry& entry) {
  const Box& region = sample.region();
  const JpegFrame& frame = sample.reader().frame();
  const size_t bytes = gpu_aligned(sample.file().size());
  files_begin_ = bytes > files_begin_ ? 0 : files_begin_ - bytes;  // what exceeds the buffer is seen by reserve()
  entry.file_at = files_begin_;
  entry.picture = {.file = upload_ + files_begin_,
                   .bytes = sample.file().size(),
                   .width = frame.width,
                   .height = frame.height,
                   .region = gpu_box(region),
                   .to_at = scratch(image_bytes({region.width, region.height})),
                   .place = places_};
  PlacePart part;
  part.units = area(run.result);
  part.place = place_run(run, run.source.x - region.x, run.source.y - region.y);
  part.from_width = region.width;
  part.from_height = region.height;
  part.from_at = entry.picture.to_at;
  part.to_at = to;
  entry.steps.emplace_back(part);
}

// Equal tables are stored once in a batch.
std::span<const uint64_t> BatchBuilder::table_places(const EntropyTables& tables) {
  table_places_.clear();
  for (const EntropyTables::Codes* const codes : tables.codes()) {
    const CodeTable* const table = &codes->codes.table();
    const auto same = [&](const Table& there) {
      return there.key == codes->key &&
             std::memcmp(there.not_written != nullptr ? static_cast<const void*>(there.not_written)
                                                      : static_cast<const void*>(upload_ + there.at),
                         table, sizeof(CodeTable)) == 0;
    };
    auto found = std::find_if(tables_.begin(), tables_.end(), same);
    if (found == tables_.end()) found = tables_.insert(found, {codes->key, upload(sizeof(CodeTable)), table});
    table_places_.push_back(found->at);
  }
  return table_places_;
}

EntropyPart BatchBuilder::entropy_part(const GpuSample& sample, const EntropyTables& tables, size_t bytes,
                                       uint64_t coefficients_at) {
  const JpegFrame& frame = sample.reader().frame();
  EntropyPart part;
  part.bytes = static_cast<uint32_t>(bytes);
  part.bytes_at = upload(bytes);
  part.status_at = statuses_at_ + places_ * sizeof(uint32_t);
  part.mcu_columns = static_cast<uint32_t>(frame.mcu_columns);
  part.mcu_blocks = static_cast<uint32_t>(tables.blocks());
  tables.write_mcu_blocks(table_places(tables), part.mcu_block);
  for (int c = 0; c < frame.components; ++c) {
    const JpegComponent& component = frame.component[static_cast<size_t>(c)];
    const CoefficientReader::Blocks& blocks = sample.reader().blocks(c);
    part.h[c] = component.h;
    part.v[c] = component.v;
    part.coefficients[c] = {.at = coefficients_at + blocks.at * sizeof(int16_t),
                            .row_bytes = blocks.row_stride * sizeof(int16_t),
                            .first_column = blocks.first_column,
                            .first_row = blocks.first_row,
                            .end_column = blocks.first_column + blocks.columns,
                            .end_row = blocks.first_row + blocks.rows};
  }
  for (size_t k = 0; k < std::size(part.places); ++k) {
    part.places[k] = static_cast<uint8_t>(tile_offset(kZigzagOrder[k]));
  }
  return part;
}

void BatchBuilder::describe_mcu_runs(const GpuSample& sample, uint64_t coefficients_at, Entry& entry) {
  const McuRunPlanner& mcu_runs = sample.mcu_runs();
  EntropyPart part = entropy_part(sample, mcu_runs.tables(), mcu_runs.bytes(), coefficients_at);
  part.units = static_cast<uint32_t>(mcu_runs.mcu_runs().size());
  part.restart_interval = static_cast<uint32_t>(sample.reader().frame().restart_interval);
  part.mcu_runs_at = upload(part.units * sizeof(GpuMcuRun));
  entry.steps.emplace_back(part);
}

void BatchBuilder::describe_scan(const GpuSample& sample, uint64_t coefficients_at, Entry& entry) {
  const ScanPlanner& scan = sample.scan();
  const McuWindow& window = sample.reader().window();
  WritePart write;
  write.entropy = entropy_part(sample, scan.tables(), scan.bytes(), coefficients_at);
  write.units = scan.subsequences();
  write.subsequence_bytes = scan.subsequence_bytes();
  write.subsequences_at = scratch(size_t{write.units} * sizeof(GpuSubsequence));
  write.blocks = scan.blocks();
  write.first_row = window.first_row;
  write.first_column = window.columns.first;
  write.end_column = window.columns.end;
  SyncPart sync;
  sync.subsequences = write.units;
  sync.subsequence_bytes = write.subsequence_bytes;
  sync.bytes = write.entropy.bytes;
  sync.bytes_at = write.entropy.bytes_at;
  sync.subsequences_at = write.subsequences_at;
  sync.mcu_blocks = write.entropy.mcu_blocks;
  std::copy(std::begin(write.entropy.mcu_block), std::end(write.entropy.mcu_block), sync.mcu_block);
  for (const ScanPlanner::Round& round : scan.rounds()) {
    sync.units = round.units;
    sync.assumed = round.assumed ? 1 : 0;
    sync.first = round.first;
    sync.step = round.step;
    sync.group = round.group;
    entry.steps.emplace_back(sync);
  }
  SumPart sum{.units = (write.units + kSubsequencesOfSum - 1) / kSubsequencesOfSum, .subsequences = write.units};
  sum.subsequences_at = write.subsequences_at;
  sum.to_at = write.sums_at = scratch(size_t{sum.units} * sizeof(GpuSubsequenceSum));
  entry.steps.emplace_back(sum);
  entry.steps.emplace_back(write);
}

void BatchBuilder::describe_resize(const GpuSample& sample, const KernelStep& kernel_step, uint64_t from, uint64_t to,
                                   Entry& entry) {
  const PlanRun& run = sample.plan().stages[kernel_step.plan_stage].geometry.runs[kernel_step.at];
  const std::array<Taps, 2>& taps = sample.taps(kernel_step.own);
  AcrossPart across;
  across.width = run.source.width;
  across.height = run.need.height;
  across.units = area(across.width, across.height);
  across.from_width = run.need.width;
  across.taps = place_taps(taps[0], true);
  across.from_at = from;
  across.to_at = scratch(size_t{across.units} * 3);
  entry.steps.emplace_back(across);
  DownPart down;
  down.place = place_run(run, 0, 0);
  down.units = area(run.result);
  down.from_width = across.width;
  down.from_height = across.height;
  down.taps = place_taps(taps[1], false);
  down.from_at = across.to_at;
  down.to_at = to;
  entry.steps.emplace_back(down);
}

void BatchBuilder::describe_ops(const GpuSample& sample, const KernelStep& kernel_step, uint64_t from, uint64_t to,
                                Entry& entry) {
  const std::vector<PixelOp>& ops = sample.plan().stages[kernel_step.plan_stage].ops;
  const PixelOp& op = ops[kernel_step.at];
  const uint32_t pixels = area(kernel_step.out);
  switch (kernel_step.kind) {
    case KernelStepKind::point: {
      PointPart part{
          .units = pixels, .width = kernel_step.out.width, .steps = static_cast<uint32_t>(kernel_step.count)};
      part.steps_at = upload(gpu_aligned(kernel_step.count * sizeof(PointStep)) +
                             tables_in(ops, kernel_step.at, kernel_step.count) * sizeof(ByteTable));
      part.from_at = from;
      part.to_at = to;
      entry.steps.emplace_back(part);
      return;
    }
    case KernelStepKind::tone: {
      const ToneKind kind = std::holds_alternative<ContrastOp>(op)       ? ToneKind::contrast
                            : std::holds_alternative<AutocontrastOp>(op) ? ToneKind::autocontrast
                                                                         : ToneKind::equalize;
      TallyPart tally{.units = (pixels + kTallyPixels - 1) / kTallyPixels, .kind = kind, .pixels = pixels};
      tally.from_at = from;
      tally.to_at = upload(tally_bytes(kind));
      entry.steps.emplace_back(tally);
      TonePart tone{.units = kind == ToneKind::contrast ? 256U : 768U, .kind = kind, .pixels = pixels};
      if (kind == ToneKind::contrast) tone.factor = std::get<ContrastOp>(op).factor;
      tone.from_at = tally.to_at;
      tone.to_at = scratch(tone.units);
      entry.steps.emplace_back(tone);
      return;
    }
    case KernelStepKind::smooth: {
      SmoothPart part{.units = pixels, .width = kernel_step.out.width, .height = kernel_step.out.height};
      part.factor = std::get<SharpnessOp>(op).factor;
      part.from_at = from;
      part.to_at = to;
      entry.steps.emplace_back(part);
      return;
    }
    case KernelStepKind::blur: {
      const auto& blur = std::get<BlurOp>(op);
      BlurPart part{
          .units = pixels, .width = kernel_step.out.width, .height = kernel_step.out.height, .half = blur.across.half};
      part.weights_at = upload(weights_bytes(blur.across));
      part.from_at = from;
      part.to_at = scratch(size_t{pixels} * 3 * sizeof(float));
      entry.steps.emplace_back(Across{part});
      part.half = blur.down.half;
      part.weights_at = upload(weights_bytes(blur.down));
      part.from_at = part.to_at;
      part.to_at = to;
      entry.steps.emplace_back(Down{part});
      return;
    }
    case KernelStepKind::warp: {
      const auto& warp = std::get<WarpOp>(op);
      WarpPart part{.units = pixels, .kind = kind_of(warp), .map = warp.rotation.map, .width = kernel_step.out.width};
      if (part.kind == WarpKind::fixed) part.fixed = fixed_map(warp.rotation.map);
      part.from_width = kernel_step.in.width;
      part.from_height = kernel_step.in.height;
      std::copy(warp.fill.begin(), warp.fill.end(), part.fill);
      part.from_at = from;
      part.to_at = to;
      entry.steps.emplace_back(part);
      return;
    }
    case KernelStepKind::gather: {
      const GatheredPlaces& places = sample.gathered(kernel_step.own);
      GatherPart part{.units = pixels, .width = kernel_step.out.width};
      part.from_width = kernel_step.in.width;
      part.from_height = kernel_step.in.height;
      part.turned = places.turned ? 1 : 0;
      std::copy(places.fill.begin(), places.fill.end(), part.fill);
      part.columns_at = upload(places.columns.size() * sizeof(int32_t));
      part.rows_at = upload(places.rows.size() * sizeof(int32_t));
      part.from_at = from;
      part.to_at = to;
      entry.steps.emplace_back(part);
      return;
    }
    case KernelStepKind::colour:
    case KernelStepKind::place:
    case KernelStepKind::resize: return;
  }
}

bool BatchBuilder::fill(size_t place, GpuSample& sample) {
  const Entry& entry = entries_[place];
  const std::vector<KernelStep>& kernel_steps = sample.kernel_steps();
  for (size_t a = 0; a < kernel_steps.size(); ++a) write_kernel_step(sample, kernel_steps[a], entry, entry.step_of[a]);
  if (sample.by_library()) {
    std::memcpy(upload_ + entry.file_at, sample.file().data(), sample.file().size());
    return true;
  }
  if (sample.leaves_entropy()) {
    write_entropy(sample, entry);
    return true;
  }
  const auto& first = std::get<InversePart>(entry.steps.front());
  return sample.reader().read(sample.index(), reinterpret_cast<int16_t*>(upload_ + first.coefficients_at));
}

void BatchBuilder::write_entropy(const GpuSample& sample, const Entry& entry) {
  const StagePart& last = entry.steps[entry.entropy_steps - 1];
  if (sample.entropy_mode() == GpuSample::EntropyMode::search) {
    const EntropyPart& part = std::get<WritePart>(last).entropy;
    sample.scan().copy_bytes(upload_ + part.bytes_at);
    return;
  }
  const auto& part = std::get<EntropyPart>(last);
  const McuRunPlanner& mcu_runs = sample.mcu_runs();
  write_array(part.mcu_runs_at, mcu_runs.mcu_runs().data(), mcu_runs.mcu_runs().size());
  mcu_runs.copy_bytes(upload_ + part.bytes_at);
}

template <class Value>
void BatchBuilder::write_array(uint64_t at, const Value* values, size_t count) {
  std::memcpy(upload_ + at, values, count * sizeof(Value));
}

void BatchBuilder::write_kernel_step(const GpuSample& sample, const KernelStep& kernel_step, const Entry& entry,
                                     size_t step) {
  const PlanStage& stage = sample.plan().stages[kernel_step.plan_stage];
  const std::vector<StagePart>& steps = entry.steps;
  switch (kernel_step.kind) {
    case KernelStepKind::colour: {
      if (sample.by_library()) {
        write_rings(std::get<PlacePart>(steps[step]).place, stage.geometry.runs[kernel_step.at], stage.geometry.rings);
        return;
      }
      const auto components = static_cast<size_t>(sample.reader().frame().components);
      const auto& colour = std::get<ColourPart>(steps[step + entry.entropy_steps + components]);
      write_rings(colour.place, stage.geometry.runs[kernel_step.at], stage.geometry.rings);
      return;
    }
    case KernelStepKind::place:
      write_rings(std::get<PlacePart>(steps[step]).place, stage.geometry.runs[kernel_step.at], stage.geometry.rings);
      return;
    case KernelStepKind::resize: {
      const PlanRun& run = stage.geometry.runs[kernel_step.at];
      const std::array<Taps, 2>& taps = sample.taps(kernel_step.own);
      const auto& down = std::get<DownPart>(steps[step + 1]);
      write_taps(std::get<AcrossPart>(steps[step]).taps, taps[0], run.need.x, true);
      write_rings(down.place, run, stage.geometry.rings);
      write_taps(down.taps, taps[1], run.need.y, false);
      return;
    }
    case KernelStepKind::point: write_points(sample, kernel_step, entry, step); return;
    case KernelStepKind::tone: {
      const auto& tally = std::get<TallyPart>(steps[step]);
      std::memset(upload_ + tally.to_at, 0, tally_bytes(tally.kind));
      return;
    }
    case KernelStepKind::blur: {
      const auto& blur = std::get<BlurOp>(stage.ops[kernel_step.at]);
      const auto write = [&](const BlurPart& part, const GaussianWeights& weights) {
        write_array(part.weights_at, weights.weight.data(), static_cast<size_t>(weights.half) + 1);
      };
      write(std::get<Across>(steps[step]), blur.across);
      write(std::get<Down>(steps[step + 1]), blur.down);
      return;
    }
    case KernelStepKind::gather: {
      const GatheredPlaces& places = sample.gathered(kernel_step.own);
      const auto& part = std::get<GatherPart>(steps[step]);
      write_array(part.columns_at, places.columns.data(), places.columns.size());
      write_array(part.rows_at, places.rows.data(), places.rows.size());
      return;
    }
    case KernelStepKind::smooth:
    case KernelStepKind::warp: return;
  }
}

void BatchBuilder::write_points(const GpuSample& sample, const KernelStep& kernel_step, const Entry& entry,
                                size_t step) {
  const auto& part = std::get<PointPart>(entry.steps[step]);
  uint64_t table_at = part.steps_at + gpu_aligned(kernel_step.count * sizeof(PointStep));
  for (size_t i = 0; i < kernel_step.count; ++i) {
    const PixelOp& op = sample.plan().stages[kernel_step.plan_stage].ops[kernel_step.at + i];
    PointStep written;
    if (const auto* table = std::get_if<TableOp>(&op)) {
      written.table_at = table_at;
      write_array(table_at, table->table.data(), table->table.size());
      table_at += sizeof(ByteTable);
    } else if (const auto* saturation = std::get_if<SaturationOp>(&op)) {
      written.kind = PointKind::saturation;
      written.factor = saturation->factor;
    } else if (const auto* hue = std::get_if<HueOp>(&op)) {
      written.kind = PointKind::hue;
      written.shift = hue->shift;
    } else if (const auto* noise = std::get_if<NoiseOp>(&op)) {
      written.kind = noise->clip ? PointKind::noise_clipped : PointKind::noise_wrapped;
      written.factor = noise->spread;
      written.offset = noise->offset;
      written.seed = noise->seed;
    } else if (const auto* permuted = std::get_if<PermuteOp>(&op)) {
      written.kind = PointKind::permute;
      std::copy(permuted->from.begin(), permuted->from.end(), written.colour);
    } else if (const auto* erase = std::get_if<EraseOp>(&op)) {
      written.kind = erase->noise ? PointKind::noise : PointKind::fill;
      written.box = gpu_box(erase->box);
      std::copy(erase->fill.begin(), erase->fill.end(), written.colour);
      written.seed = erase->seed;
    } else if (std::holds_alternative<GreyOp>(op)) {
      written.kind = PointKind::grey;
    } else {  // its tables are what the step before this one makes
      const auto& tone = std::get<TonePart>(entry.steps[step - 1]);
      written.table_at = tone.to_at;
      written.stride = tone.units > 256 ? 256 : 0;
    }
    write_array(part.steps_at + i * sizeof(PointStep), &written, 1);
  }
}

void BatchBuilder::write_rings(const Placement& place, const PlanRun& run, const std::vector<PlanRing>& rings) {
  for (size_t i = 0; i < place.rings; ++i) {
    const PlanRing& ring = rings[run.first_ring + i];
    GpuRing written{gpu_box(ring.outer), gpu_box(ring.inner), {}};
    std::copy(ring.fill.begin(), ring.fill.end(), written.fill);
    std::memcpy(upload_ + place.rings_at + i * sizeof written, &written, sizeof written);
  }
}

void BatchBuilder::write_taps(const GpuTaps& place, const Taps& taps, int origin, bool by_tap) {
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

void BatchBuilder::seal() {
  launches_.clear();
  struct StageArrays {
    uint64_t spans_at = 0;
    uint64_t parts_at = 0;
    uint32_t spans = 0;
    uint32_t parts = 0;
  };
  StageArrays arrays[kGpuStages];
  for (size_t s = 0; s < kGpuStages; ++s) {
    if (counts_.parts[s] == 0) continue;
    arrays[s].spans_at = upload(counts_.spans[s] * sizeof(PartSpan));
    arrays[s].parts_at = upload(counts_.parts[s] * part_bytes(s));
  }
  const std::span<Entry> entries(entries_.data(), places_);
  for (const Entry& entry : entries) {
    if (entry.used && entry.picture.bytes > 0) pictures_.push_back(entry.picture);
  }
  const auto left = [](const Entry& entry) { return entry.used ? entry.steps.size() - entry.next : 0; };
  for (;;) {
    const auto longest = std::max_element(entries.begin(), entries.end(),
                                          [&](const Entry& a, const Entry& b) { return left(a) < left(b); });
    if (longest == entries.end() || left(*longest) == 0) return;
    const size_t stage = longest->steps[longest->next].index();
    StageArrays& array = arrays[stage];
    StageLaunch launch{.stage = static_cast<GpuStage>(stage),
                       .spans_at = array.spans_at + array.spans * sizeof(PartSpan),
                       .parts_at = array.parts_at};
    const auto add = [&](const auto& part) {
      for (uint32_t first = 0; first < part.units; first += kSpanThreads) {
        const PartSpan span{array.parts, first};
        write_array(array.spans_at + array.spans++ * sizeof span, &span, 1);
        ++launch.spans;
      }
      write_array(array.parts_at + array.parts++ * sizeof part, &part, 1);
    };
    for (Entry& entry : entries) {
      while (left(entry) > 0 && entry.steps[entry.next].index() == stage) {
        std::visit(add, entry.steps[entry.next++]);
        // Components do not wait for each other.
        if (launch.stage != GpuStage::inverse) break;
      }
    }
    launches_.push_back(launch);
  }
}

}  // namespace penstock
