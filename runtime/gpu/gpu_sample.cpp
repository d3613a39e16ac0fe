#include "runtime/gpu/gpu_sample.h"

#include <algorithm>
#include <numeric>

#include "runtime/pixels/resample_math.h"

namespace penstock {
namespace {

// Above it 32-bit counts of units might not do; such pictures are rare, and the CPU makes them.
constexpr int64_t kMostPixels = int64_t{1} << 29;

bool too_large(Size size) {
  return int64_t{size.width} * size.height > kMostPixels;
}

// Taps that change nothing, where a pass is left out.
void identity_taps(int first, int count, Taps& taps) {
  taps.first = first;
  taps.stride = 1;
  taps.start.resize(static_cast<size_t>(count));
  std::iota(taps.start.begin(), taps.start.end(), first);
  taps.size.assign(static_cast<size_t>(count), 1);
  taps.q22.assign(static_cast<size_t>(count), 1 << kResamplePrecisionBits);
}

// The resampler keeps its own only until it is asked for others.
void keep_taps(const Taps* found, int first, int count, Taps& taps) {
  if (found == nullptr) {
    identity_taps(first, count, taps);
    return;
  }
  taps.first = found->first;
  taps.stride = found->stride;
  taps.start = found->start;
  taps.size = found->size;
  taps.q22 = found->q22;
}

enum class OpClass : uint8_t { point, tone, smooth, blur, warp, border };

OpClass class_of(const PixelOp& op) {
  struct Visitor {
    OpClass operator()(const TableOp&) const { return OpClass::point; }
    OpClass operator()(const GreyOp&) const { return OpClass::point; }
    OpClass operator()(const SaturationOp&) const { return OpClass::point; }
    OpClass operator()(const HueOp&) const { return OpClass::point; }
    OpClass operator()(const PermuteOp&) const { return OpClass::point; }
    OpClass operator()(const EraseOp&) const { return OpClass::point; }
    OpClass operator()(const NoiseOp&) const { return OpClass::point; }
    OpClass operator()(const ContrastOp&) const { return OpClass::tone; }
    OpClass operator()(const AutocontrastOp&) const { return OpClass::tone; }
    OpClass operator()(const EqualizeOp&) const { return OpClass::tone; }
    OpClass operator()(const SharpnessOp&) const { return OpClass::smooth; }
    OpClass operator()(const BlurOp&) const { return OpClass::blur; }
    OpClass operator()(const WarpOp&) const { return OpClass::warp; }
    OpClass operator()(const BorderOp&) const { return OpClass::border; }
  };
  return std::visit(Visitor{}, static_cast<const PixelOp::variant&>(op));
}

// The box with a margin for interpolation at its edges, extended to whole MCUs, because a library may treat a region's
// border as the picture's.
Box region_with_margin(const Box& box, const JpegFrame& frame) {
  constexpr int kMargin = 4;
  const int across = 8 * frame.max_h;
  const int down = 8 * frame.max_v;
  const int left = std::max(0, box.x - kMargin) / across * across;
  const int top = std::max(0, box.y - kMargin) / down * down;
  const int right = std::min(frame.width, (box.x + box.width + kMargin + across - 1) / across * across);
  const int bottom = std::min(frame.height, (box.y + box.height + kMargin + down - 1) / down * down);
  return {left, top, right - left, bottom - top};
}

// Is the first marker of the scan behind the index's last point? Otherwise the file has been cut or is another one, or
// its index was learned only so far that anything may follow.
bool scan_is_whole(EncodedView file, const JpegFrame& frame, const SideIndex& index) {
  size_t marker = 0;
  return find_marker(file, frame.scan_begin, marker) && marker > index.at(index.size() - 1).byte;
}

template <class Place>
void list_places(int count, std::vector<int32_t>& places, Place place) {
  places.clear();
  for (int i = 0; i < count; ++i) places.push_back(place(i));
}

}  // namespace

bool GpuSample::plan(const Pipeline& pipeline, Scratch& scratch, const ImageInput& input, const ImageHeader& header,
                     const Draws& draws, const LibraryOffer* library) {
  by_library_ = false;
  miss_ = LibraryMiss::none;
  file_ = input.bytes;
  if (input.pixels.data != nullptr || header.format != ImageFormat::jpeg) return false;
  // A limit that refuses every file is libjpeg's to enforce.
  const DecodeLimits& limits = scratch.limits;
  if (limits.max_scans < 1 || limits.max_warnings < 0) return false;
  if (library != nullptr && pipeline.arithmetic() == Arithmetic::fast &&
      plan_for_library(pipeline, scratch, input, header, draws, *library)) {
    return true;
  }
  if (!pipeline.plan(header, draws, scratch, plan_) ||
      !list_kernel_steps({header.width, header.height}, scratch.resampler) ||
      !reader_.open(input.bytes, header, plan_.stages.front().geometry.runs.back().source, limits.max_scans)) {
    return false;
  }
  index_ = input.index;
  entropy_mode_ = EntropyMode::cpu;
  if (entropy_.by_index && mcu_runs_.plan(input.bytes, reader_.frame(), index_, reader_.window())) {
    entropy_mode_ = EntropyMode::index;
  } else if (entropy_.by_search && mcu_runs_.plan_at_restarts(input.bytes, reader_.frame(), reader_.window())) {
    entropy_mode_ = EntropyMode::restarts;
  } else if (entropy_.by_search &&
             scan_.plan(input.bytes, reader_.frame(), reader_.window(), entropy_.subsequence_bytes)) {
    entropy_mode_ = EntropyMode::search;
  }
  return true;
}

bool GpuSample::plan_for_library(const Pipeline& pipeline, Scratch& scratch, const ImageInput& input,
                                 const ImageHeader& header, const Draws& draws, const LibraryOffer& library) {
  if (input.index == nullptr) {
    miss_ = LibraryMiss::no_index;
    return false;
  }
  if (!pipeline.plan(header, draws, scratch, plan_, DecodeSize::full) ||
      !list_kernel_steps({header.width, header.height}, scratch.resampler)) {
    return false;
  }
  const Box& box = plan_.stages.front().geometry.runs.back().source;
  const bool ours = reader_.open(input.bytes, header, box, scratch.limits.max_scans);
  const JpegFrame& frame = reader_.frame();
  if (!ours || frame.progressive || frame.components != 3 || frame.restart_interval != 0) {
    miss_ = LibraryMiss::kind;
    return false;
  }
  // The reference reads the rows down to the crop's last, and no more.
  if (!input.index->fits(frame) ||
      input.index->mcus_without_warning(frame) < int64_t{reader_.window().end_row} * frame.mcu_columns ||
      !scan_is_whole(input.bytes, frame, *input.index)) {
    miss_ = LibraryMiss::no_index;
    return false;
  }
  const Box all{0, 0, header.width, header.height};
  region_ = library.cuts_regions ? region_with_margin(box, frame) : all;
  if (too_large({region_.width, region_.height})) return false;
  index_ = input.index;
  entropy_mode_ = EntropyMode::cpu;
  by_library_ = true;
  return true;
}

bool GpuSample::list_kernel_steps(Size size, Resampler& resampler) {
  kernel_steps_.clear();
  resizes_ = 0;
  gathers_ = 0;
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    if (!add_runs(s, size, resampler) || !add_ops(s, size)) return false;
  }
  return true;
}

bool GpuSample::add_runs(size_t stage, Size& size, Resampler& resampler) {
  const std::vector<PlanRun>& runs = plan_.stages[stage].geometry.runs;
  for (const PlanRun& run : runs) {
    if (run.live.width < 1 || run.live.height < 1) return false;  // nothing of the image is seen
    if (too_large(run.result)) return false;
  }
  const PlanRun& earliest = runs.back();
  const Box all{0, 0, size.width, size.height};
  KernelStep kernel_step{
      .kind = stage == 0 ? KernelStepKind::colour : KernelStepKind::place, .plan_stage = stage, .at = runs.size() - 1};
  kernel_step.in = size;
  kernel_step.out = earliest.result;
  if (stage == 0 || !earliest.trivial() || !(earliest.source == all)) kernel_steps_.push_back(kernel_step);
  for (size_t r = runs.size() - 1; r-- > 0;) {
    const PlanRun& run = runs[r];
    if (too_large({run.source.width, run.need.height})) return false;
    if (resizes_ == taps_.size()) taps_.emplace_back();
    std::array<Taps, 2>& kept = taps_[resizes_];
    const WindowTaps found = resampler.taps(run.geometry, run.source);
    keep_taps(found.columns, run.source.x, run.source.width, kept[0]);
    keep_taps(found.rows, run.source.y, run.source.height, kept[1]);
    kernel_step.kind = KernelStepKind::resize;
    kernel_step.at = r;
    kernel_step.own = resizes_++;
    kernel_step.in = kernel_step.out;
    kernel_step.out = run.result;
    kernel_steps_.push_back(kernel_step);
  }
  size = runs.front().result;
  return true;
}

bool GpuSample::add_ops(size_t stage, Size& size) {
  const std::vector<PixelOp>& ops = plan_.stages[stage].ops;
  bool in_point = false;  // the last kernel step is a point that may go on
  for (size_t i = 0; i < ops.size(); ++i) {
    KernelStep kernel_step{.plan_stage = stage, .at = i, .count = 1};
    kernel_step.in = kernel_step.out = size;
    switch (class_of(ops[i])) {
      case OpClass::point:
        if (in_point) {
          ++kernel_steps_.back().count;
          continue;
        }
        kernel_step.kind = KernelStepKind::point;
        kernel_steps_.push_back(kernel_step);
        in_point = true;
        continue;
      case OpClass::tone:
        kernel_step.kind = KernelStepKind::tone;
        kernel_steps_.push_back(kernel_step);
        kernel_step.kind = KernelStepKind::point;
        kernel_steps_.push_back(kernel_step);
        in_point = true;
        continue;
      case OpClass::smooth:
        kernel_step.kind = KernelStepKind::smooth;
        kernel_steps_.push_back(kernel_step);
        break;
      case OpClass::blur:
        kernel_step.kind = KernelStepKind::blur;
        kernel_steps_.push_back(kernel_step);
        break;
      case OpClass::warp: {
        const auto& op = std::get<WarpOp>(ops[i]);
        // No kernel, but it parts the points before from those behind: a point's operations lie side by side.
        if (op.rotation.kind == Rotation::Kind::none) break;
        kernel_step.out = op.rotation.out;
        if (too_large(kernel_step.out) || !add_warp(kernel_step, op)) return false;
        break;
      }
      case OpClass::border: {
        const auto& op = std::get<BorderOp>(ops[i]);
        kernel_step.out = {static_cast<int>(op.columns.size()), static_cast<int>(op.rows.size())};
        if (too_large(kernel_step.out)) return false;
        GatheredPlaces& places = add_gather(kernel_step);
        places.columns.assign(op.columns.begin(), op.columns.end());
        places.rows.assign(op.rows.begin(), op.rows.end());
        break;
      }
    }
    in_point = false;
    size = kernel_step.out;
  }
  return true;
}

bool GpuSample::add_warp(KernelStep kernel_step, const WarpOp& op) {
  const int right = kernel_step.in.width - 1;
  const int bottom = kernel_step.in.height - 1;
  const auto same = [](int i) { return i; };
  switch (op.rotation.kind) {
    case Rotation::Kind::none: return true;
    case Rotation::Kind::half: {
      GatheredPlaces& places = add_gather(kernel_step);
      list_places(kernel_step.out.width, places.columns, [&](int x) { return right - x; });
      list_places(kernel_step.out.height, places.rows, [&](int y) { return bottom - y; });
      return true;
    }
    case Rotation::Kind::quarter: {
      GatheredPlaces& places = add_gather(kernel_step);
      places.turned = true;
      list_places(kernel_step.out.height, places.columns, [&](int y) { return right - y; });
      list_places(kernel_step.out.width, places.rows, same);
      return true;
    }
    case Rotation::Kind::three_quarters: {
      GatheredPlaces& places = add_gather(kernel_step);
      places.turned = true;
      list_places(kernel_step.out.height, places.columns, same);
      list_places(kernel_step.out.width, places.rows, [&](int x) { return bottom - x; });
      return true;
    }
    case Rotation::Kind::map: break;
  }
  const WarpMap& map = op.rotation.map;
  if (op.filter == Filter::nearest && !map.perspective) {
    const NearestMethod way = nearest_method(map, kernel_step.out);
    if (way == NearestMethod::added) return false;
    if (way == NearestMethod::scaled) {
      GatheredPlaces& places = add_gather(kernel_step);
      places.fill = op.fill;
      scaled_places(map.a[0], map.a[2], kernel_step.in.width, kernel_step.out.width, places.columns);
      scaled_places(map.a[4], map.a[5], kernel_step.in.height, kernel_step.out.height, places.rows);
      return true;
    }
  }
  kernel_step.kind = KernelStepKind::warp;
  kernel_steps_.push_back(kernel_step);
  return true;
}

GatheredPlaces& GpuSample::add_gather(KernelStep kernel_step) {
  if (gathers_ == gathered_.size()) gathered_.emplace_back();
  GatheredPlaces& places = gathered_[gathers_];
  places.turned = false;
  places.fill = {};
  kernel_step.kind = KernelStepKind::gather;
  kernel_step.own = gathers_++;
  kernel_steps_.push_back(kernel_step);
  return places;
}

}  // namespace penstock
