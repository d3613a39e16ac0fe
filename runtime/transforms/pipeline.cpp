#include "runtime/transforms/pipeline.h"

#include <algorithm>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/pixels/opencv_resize.h"
#include "runtime/transforms/catalog.h"
#include "runtime/transforms/crop_resize_planner.h"
#include "runtime/transforms/run_pixels.h"
#include "runtime/transforms/transform.h"

namespace penstock {
namespace {

// Batch transforms draw from places in the pipeline that no other transform has: from here on, by their number.
constexpr uint16_t kBatchPosition = 0xFE00;
constexpr size_t kMaxBatchTransforms = 64;

// cv2.resize's filter where Pillow's has that name; OpenCV's own stay.
Filter opencvs(Filter filter) {
  switch (filter) {
    case Filter::nearest: return Filter::opencv_nearest;
    case Filter::bilinear: return Filter::opencv_linear;
    case Filter::bicubic: return Filter::opencv_cubic;
    default: return filter;
  }
}

// The draws of the transform at `position`; `next` walks along the list, which is in pipeline order.
std::span<const int64_t> values_at(const Draws& draws, size_t& next, uint16_t position) {
  if (next == draws.size() || draws[next].position != position) return {};
  return draws[next++].values;
}

void list_steps(const Transform& transform, std::span<const int64_t> values, std::vector<Step>& steps) {
  steps.clear();
  if (const auto* group = as<TransformGroup>(transform)) {
    group->expand(values, steps);
  } else {
    steps.push_back({&transform, values});
  }
}

SampleStatus check_size(Size size, const DecodeLimits& limits) {
  if (int64_t{size.width} * size.height <= limits.max_pixels) return SampleStatus::good();
  return too_large(size.width, size.height, limits.max_pixels);
}

class KeptOps final : public PixelOpSink {
 public:
  explicit KeptOps(std::vector<PixelOp>& ops) : ops_(ops) {}
  void add(const PixelOp& op) override { ops_.push_back(op); }

 private:
  std::vector<PixelOp>& ops_;
};

}  // namespace

Scratch::Scratch(const DecodeLimits& decode_limits)
    : limits(decode_limits), decoder(decode_limits), plan(std::make_unique<CropResizePlanner>()) {}
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch::~Scratch() = default;
void Scratch::let_large_go() {
  decoder.let_large_go();
  resampler = {};
  for (PixelBuffer& buffer : pixels) buffer.let_large_go();
  for (PixelBuffer& buffer : whole) buffer.let_large_go();
  paint = {};
}

Pipeline::Pipeline(const std::vector<TransformSpec>& specs, const PixelRules& rules) : rules_(rules) {
  if (rules.arithmetic == Arithmetic::opencv) {
    require_opencv();
    header_options_ = {.exif_orientation = rules.turns, .conversion = ColourConversion::opencv};
  }
  if (specs.size() > kBatchPosition) {
    throw Error(ErrorKind::config, "a pipeline has at most " + std::to_string(kBatchPosition) + " transforms");
  }
  std::optional<Size> size;
  bool finishing = false;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string place = "pipeline[" + std::to_string(i) + "]: ";
    const TransformInfo* info = find_transform(specs[i].name);
    if (info == nullptr) {
      throw Error(ErrorKind::config, place + "there is no transform '" + specs[i].name + "'",
                  "`penstock schema` lists them");
    }
    const TransformSpec complete{specs[i].name, complete_params(*info, specs[i].params, rules.arithmetic)};
    canonical_ += canonical_text(complete) + "\n";
    Transform transform = info->make(complete.params);
    if (std::holds_alternative<ExifTranspose>(transform)) {
      if (i > 0) {
        throw Error(ErrorKind::config, place + specs[i].name + " does not stand first",
                    "move it to the front: it says how files are read");
      }
      header_options_.exif_orientation = true;
      continue;
    }
    if (auto* batch = std::get_if<std::unique_ptr<BatchTransform>>(&transform)) {
      add_batch_transform(static_cast<uint16_t>(i), std::move(*batch), place + specs[i].name);
      continue;
    }
    if (!batch_.empty()) {
      throw Error(ErrorKind::config, place + specs[i].name + " stands after MixUp or CutMix",
                  "what mixes whole batches stands last");
    }
    if (const auto* last = as<FinishingTransform>(transform)) {
      finishing = true;
      const std::string complaint = last->finish(finish_);
      if (!complaint.empty()) throw Error(ErrorKind::config, place + complaint);
      continue;
    }
    if (finishing) {
      throw Error(ErrorKind::config, place + specs[i].name + " stands after ToDtype",
                  "put ToDtype and Normalize last: geometry is done on uint8 pixels");
    }
    if (views_) {
      throw Error(ErrorKind::config, place + specs[i].name + " stands after " + specs[i - 1].name,
                  "FiveCrop and TenCrop make several images; only ToDtype and Normalize may follow");
    }
    if (const auto* sized = as<SampleTransform>(transform)) {
      if (const std::string why = size ? sized->misfit(*size) : std::string(); !why.empty()) {
        throw Error(ErrorKind::config, place + why, "every image has that size here");
      }
      size = sized->fixed_size(size);
    }
    if (auto* views = std::get_if<std::unique_ptr<ViewsTransform>>(&transform)) {
      views_ = std::move(*views);
      continue;
    }
    if (const auto* function = std::get_if<PythonFunction>(&transform)) functions_.push_back(function->name);
    count_flips(transform);
    placed_.push_back({static_cast<uint16_t>(i), std::move(transform)});
  }
  if (!size) {
    throw Error(ErrorKind::config, "the pipeline's output size depends on the image",
                "add CenterCrop or Resize: {size: [h, w]}");
  }
  size_ = *size;
  constexpr int64_t kMaxPixels = int64_t{1} << 29;
  if (int64_t{size_.width} * size_.height * views() > kMaxPixels) {
    throw Error(ErrorKind::config, "the pipeline's output of " + (views_ ? std::to_string(views()) + " x " : "") +
                                       std::to_string(size_.width) + " x " + std::to_string(size_.height) +
                                       " is above 2^29 pixels");
  }
}

Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

Draws Pipeline::draw(const DrawKey& key, const ImageHeader& header) const {
  Draws draws;
  Size size{header.width, header.height};
  for (const Placed& placed : placed_) {
    DrawStream stream(key, placed.position);
    TransformDraw drawn{placed.position, {}};
    if (const auto* drawing = as<DrawingTransform>(placed.transform)) drawing->draw(stream, size, drawn.values);
    const SampleStatus status = size_after(placed.transform, drawn.values, size, size);
    if (!drawn.values.empty()) draws.push_back(std::move(drawn));
    if (!status.ok()) break;  // apply() says so; there is no image for the transforms behind
  }
  return draws;
}

Draws Pipeline::draw_batch(uint64_t seed, uint32_t epoch, int64_t step, int64_t replica) const {
  Draws draws;
  for (size_t i = 0; i < batch_.size(); ++i) {
    const DrawKey key{seed, epoch, static_cast<uint64_t>(step), static_cast<uint16_t>(replica)};
    DrawStream stream(key, static_cast<uint16_t>(kBatchPosition + i));
    draws.push_back({batch_[i].position, {}});
    batch_[i].transform->draw(stream, size_, draws.back().values);
  }
  return draws;
}

void Pipeline::mix(const MixBatch& batch, const Draws& draws) const {
  if (draws.size() != batch_.size())
    throw Error(ErrorKind::usage, "the draws are not those of this pipeline's batches");
  for (size_t i = 0; i < batch_.size(); ++i) batch_[i].transform->mix(batch, draws[i].values);
}

bool Pipeline::mixing_needs_float() const noexcept {
  return std::any_of(batch_.begin(), batch_.end(), [](const auto& one) { return one.transform->needs_float(); });
}

SampleStatus Pipeline::apply(const ImageInput& input, const ImageHeader& header, const Draws& draws,
                             std::span<uint8_t> out, Scratch& scratch, const PixelFunction& function,
                             ImageRole role) const {
  if (out.size() != view_bytes() * static_cast<size_t>(views())) {
    throw Error(ErrorKind::usage, "the output has " + std::to_string(out.size()) + " bytes, not " +
                                      (views_ ? std::to_string(views()) + " x " : "") + "3 x " +
                                      std::to_string(size_.height) + " x " + std::to_string(size_.width));
  }
  if (!functions_.empty() && !function) {
    throw Error(ErrorKind::usage, "the pipeline calls '" + functions_.front() + "', and there is nothing to run it");
  }
  const int64_t start = clock_.now();
  const int64_t decoded_before = scratch.decode_ns;
  scratch.plan->role = role;
  SampleStatus status = run_stages(input, header, draws, out, scratch, function);
  if (rules_.bgr) swap_channels(out);
  scratch.augment_ns += clock_.now() - start - (scratch.decode_ns - decoded_before);
  return status;
}

bool Pipeline::plan(const ImageHeader& header, const Draws& draws, Scratch& scratch, ImagePlan& found,
                    DecodeSize decoded) const {
  found.stages.clear();
  if (views_ || !functions_.empty() || rules_.arithmetic == Arithmetic::opencv || rules_.bgr) return false;
  scratch.plan->role = ImageRole::image;
  Size size{header.width, header.height};
  const SampleStatus status = visit_steps(draws, size, scratch, [&](const Step& step, uint16_t) {
    const auto& pixels = *as<PixelTransform>(*step.transform);
    if (!pixels.acts(step.values) || plan_pixels(pixels, step.values, header, size, scratch, found, decoded)) {
      return SampleStatus::good();
    }
    return SampleStatus::bad("not data");
  });
  return status.ok() && plan_stage(header, size_, scratch, found, decoded);
}

Pipeline::Description Pipeline::describe(const ImageHeader& header, const Draws& draws) const {
  Description result;
  Box box{0, 0, header.width, header.height};  // what is left of the source so far
  bool moved = false;                          // pixels stand on another grid than the source's
  Size size{header.width, header.height};
  size_t next = 0;
  std::vector<Step> steps;
  for (const Placed& placed : placed_) {
    const std::span<const int64_t> values = values_at(draws, next, placed.position);
    list_steps(placed.transform, values, steps);
    SampleStatus status = SampleStatus::good();
    // A group's draws say more than what came of them; so do those of a pixel transform.
    const auto* alone = as<GeometricTransform>(placed.transform);
    bool explained = alone != nullptr && alone->draws_only_cuts();
    if (alone != nullptr && alone->flips()) explained = flips_[*alone->flips() == OpKind::flip_vertical] == 1;
    for (const Step& step : steps) {
      OpList ops(size);
      if (const auto* geometric = as<GeometricTransform>(*step.transform)) {
        status = geometric->geometry(size, step.values, ops);
        size = ops.size();
      } else if (const auto* pixels = as<PixelTransform>(*step.transform)) {
        status = pixels->size_after(size, step.values, size);
        moved = moved || (!pixels->colour_only() && pixels->acts(step.values));
      }
      if (!status.ok()) break;
      for (const GeometricOp& op : ops.ops()) {
        if (op.kind == OpKind::flip_horizontal) result.flip[0] = !result.flip[0];
        if (op.kind == OpKind::flip_vertical) result.flip[1] = !result.flip[1];
        if (op.kind == OpKind::resize) moved = true;
        if (op.kind != OpKind::crop) continue;
        if (moved) {
          explained = false;
          continue;
        }
        // A mirrored image is cut from the other side of the source.
        box.x += result.flip[0] ? box.width - (op.box.x + op.box.width) : op.box.x;
        box.y += result.flip[1] ? box.height - (op.box.y + op.box.height) : op.box.y;
        box.width = op.box.width;
        box.height = op.box.height;
        result.has_crop = true;
      }
    }
    if ((!explained || !status.ok()) && !values.empty()) {
      result.others.push_back({placed.position, {values.begin(), values.end()}});
    }
    if (!status.ok()) break;
  }
  if (result.has_crop) result.crop = box;
  return result;
}

void Pipeline::swap_channels(std::span<uint8_t> out) const {
  const size_t plane = view_bytes() / 3;
  for (size_t view = 0; view < out.size(); view += view_bytes()) {
    std::swap_ranges(&out[view], &out[view] + plane, &out[view] + 2 * plane);
  }
}

void Pipeline::add_batch_transform(uint16_t position, std::unique_ptr<BatchTransform> transform,
                                   const std::string& name) {
  if (transform->needs_float() && finish_.dtype == DType::uint8) {
    throw Error(ErrorKind::config, name + " needs a float tensor",
                "put ToDtype: {dtype: float32, scale: true} before it");
  }
  if (batch_.size() == kMaxBatchTransforms) throw Error(ErrorKind::config, name + ": too many transforms of batches");
  if (!batch_.empty() && transform->classes() != soft_classes()) {
    throw Error(ErrorKind::config, name + ": num_classes is " + std::to_string(transform->classes()) + " here and " +
                                       std::to_string(soft_classes()) + " before");
  }
  batch_.push_back({position, std::move(transform)});
}

void Pipeline::count_flips(const Transform& transform) {
  const auto* geometric = as<GeometricTransform>(transform);
  if (geometric != nullptr && geometric->flips()) ++flips_[*geometric->flips() == OpKind::flip_vertical];
  const auto* group = as<TransformGroup>(transform);
  for (const Transform& inner : group != nullptr ? group->inside() : std::span<const Transform>()) count_flips(inner);
}

// Where the sample stands: `source` and the operations gathered since make an image of `size`.
struct Pipeline::Stage {
  ImageInput source;
  Size size;
  PixelBuffer* whole = nullptr;  // what `source` is, where it is an image of our own
};

// Geometry gathers in plan.ops until something wants a whole image, or the pipeline ends; `visit` hears of all else.
// `size`: of the image at each step.
template <class Visit>
SampleStatus Pipeline::visit_steps(const Draws& draws, Size& size, Scratch& scratch, const Visit& visit) const {
  CropResizePlanner& plan = *scratch.plan;
  plan.ops.clear();
  size_t next_draw = 0;
  for (const Placed& placed : placed_) {
    list_steps(placed.transform, values_at(draws, next_draw, placed.position), plan.steps);
    for (const Step& step : plan.steps) {
      const auto* geometric = as<GeometricTransform>(*step.transform);
      SampleStatus status =
          geometric != nullptr ? add_geometry(*geometric, step.values, size, plan) : visit(step, placed.position);
      if (!status.ok()) return status;
    }
  }
  if (next_draw != draws.size()) {
    throw Error(ErrorKind::usage, "the draws are not of this pipeline: none of its transforms stands at position " +
                                      std::to_string(draws[next_draw].position));
  }
  return SampleStatus::good();
}

SampleStatus Pipeline::run_stages(const ImageInput& input, const ImageHeader& header, const Draws& draws,
                                  std::span<uint8_t> out, Scratch& scratch, const PixelFunction& function) const {
  Stage stage{input, {header.width, header.height}};
  size_t next_function = 0;
  SampleStatus status = visit_steps(draws, stage.size, scratch, [&](const Step& step, uint16_t position) {
    if (const auto* pixels = as<PixelTransform>(*step.transform)) {
      return paint(*pixels, step.values, stage, header, scratch);
    }
    if (scratch.plan->role == ImageRole::mask) return SampleStatus::good();
    SampleStatus whole = make_whole(stage, header, scratch);
    return whole.ok() ? function(next_function++, position, *stage.whole) : whole;
  });
  if (!status.ok()) return status;
  if (views_) return make_views(stage, header, out, scratch);
  return run_stage(stage.source, header, size_, scratch, out.data(), nullptr);
}

// All are cut from the image that precedes them, which is made once.
SampleStatus Pipeline::make_views(Stage& stage, const ImageHeader& header, std::span<uint8_t> out,
                                  Scratch& scratch) const {
  if (SampleStatus status = make_whole(stage, header, scratch); !status.ok()) return status;
  for (int number = 0; number < views(); ++number) {
    OpList ops(stage.size);
    if (SampleStatus status = views_->view(stage.size, number, ops); !status.ok()) return status;
    scratch.plan->ops.clear();
    for (const GeometricOp& op : ops.ops()) add_operation(op, *scratch.plan);
    const std::span<uint8_t> place = out.subspan(static_cast<size_t>(number) * view_bytes(), view_bytes());
    if (SampleStatus status = run_stage(stage.source, header, size_, scratch, place.data(), nullptr); !status.ok()) {
      return status;
    }
  }
  return SampleStatus::good();
}

SampleStatus Pipeline::add_geometry(const GeometricTransform& transform, std::span<const int64_t> values, Size& size,
                                    CropResizePlanner& plan) const {
  OpList ops(size);
  SampleStatus status = transform.geometry(size, values, ops);
  if (!status.ok()) return status;
  for (const GeometricOp& op : ops.ops()) add_operation(op, plan);
  size = ops.size();
  return SampleStatus::good();
}

void Pipeline::add_operation(GeometricOp op, CropResizePlanner& plan) const {
  if (plan.role == ImageRole::mask) op.filter = Filter::nearest;
  if (rules_.arithmetic == Arithmetic::opencv) op.filter = opencvs(op.filter);
  plan.ops.push_back(op);
}

SampleStatus Pipeline::make_whole(Stage& stage, const ImageHeader& header, Scratch& scratch) const {
  CropResizePlanner& plan = *scratch.plan;
  if (stage.whole != nullptr && plan.ops.empty()) return SampleStatus::good();
  if (SampleStatus status = check_size(stage.size, scratch.limits); !status.ok()) return status;
  PixelBuffer& whole = scratch.whole[stage.whole == &scratch.whole[0] ? 1 : 0];
  SampleStatus status = run_stage(stage.source, header, stage.size, scratch, nullptr, &whole);
  if (!status.ok()) return status;
  plan.ops.clear();
  stage.whole = &whole;
  stage.source.pixels = view_of(whole);
  return status;
}

SampleStatus Pipeline::paint(const PixelTransform& transform, std::span<const int64_t> values, Stage& stage,
                             const ImageHeader& header, Scratch& scratch) const {
  const ImageRole role = scratch.plan->role;
  if (!transform.acts(values)) return SampleStatus::good();
  if (role == ImageRole::mask && transform.colour_only()) return SampleStatus::good();
  Size after;
  if (SampleStatus status = transform.size_after(stage.size, values, after); !status.ok()) return status;
  if (SampleStatus status = check_size(after, scratch.limits); !status.ok()) return status;
  if (SampleStatus status = make_whole(stage, header, scratch); !status.ok()) return status;
  PixelBuffer& image = *stage.whole;
  if (SampleStatus status = transform.paint(image, values, role, scratch.paint); !status.ok()) return status;
  stage.size = after;
  if (Size{image.width(), image.height()} != stage.size) {
    throw Error(ErrorKind::usage, "a pixel transform made another size than it said");
  }
  stage.source.pixels = view_of(image);
  return SampleStatus::good();
}

// paint(), as data.
bool Pipeline::plan_pixels(const PixelTransform& transform, std::span<const int64_t> values, const ImageHeader& header,
                           Size& size, Scratch& scratch, ImagePlan& found, DecodeSize decoded) const {
  Size after;
  if (!transform.size_after(size, values, after).ok()) return false;
  if (!check_size(after, scratch.limits).ok() || !check_size(size, scratch.limits).ok()) return false;
  if (!plan_stage(header, size, scratch, found, decoded)) return false;
  KeptOps kept(found.stages.back().ops);
  if (!transform.list_ops(size, values, ImageRole::image, kept)) return false;
  size = after;
  return true;
}

// What run_stage() would do with the geometry gathered so far, as data; nothing, where there is none behind a stage.
bool Pipeline::plan_stage(const ImageHeader& header, Size size, Scratch& scratch, ImagePlan& found,
                          DecodeSize decoded) const {
  CropResizePlanner& plan = *scratch.plan;
  const bool first = found.stages.empty();
  if (!first && plan.ops.empty()) return true;
  // A reduced decode is the CPU's, so that a fast job, too, has the same pixels whoever makes them; unless a library
  // decodes for it that gives others anyway.
  int reduction = 1;
  Box judged;
  const bool reducible = first && decoded == DecodeSize::as_apply && header.format == ImageFormat::jpeg;
  if (!build_stage(header, size, scratch, reducible, reduction, judged).ok() || reduction != 1) return false;
  found.stages.push_back({{plan.runs, plan.rings}, {}});
  plan.ops.clear();
  return true;
}

// plan.runs of plan.ops. `judged`: what they read of a source that is not reduced.
SampleStatus Pipeline::build_stage(const ImageHeader& header, Size size, Scratch& scratch, bool reducible,
                                   int& reduction, Box& judged) const {
  CropResizePlanner& plan = *scratch.plan;
  SampleStatus status = plan.build(size, scratch.limits.max_pixels, scratch.resampler);
  if (!status.ok()) return status;
  judged = plan.runs.back().source;
  if (reducible && rules_.arithmetic == Arithmetic::fast) reduction = plan.reduce(header, scratch.resampler);
  return plan.check_sizes(scratch.limits);
}

// plan.ops, from the source to `planar` or to `whole`.
SampleStatus Pipeline::run_stage(const ImageInput& source, const ImageHeader& header, Size size, Scratch& scratch,
                                 uint8_t* planar, PixelBuffer* whole) const {
  CropResizePlanner& plan = *scratch.plan;
  const bool reducible =
      source.pixels.data == nullptr && header.format == ImageFormat::jpeg && plan.role == ImageRole::image;
  int reduction = 1;
  Box judged;
  if (SampleStatus status = build_stage(header, size, scratch, reducible, reduction, judged); !status.ok()) {
    return status;
  }

  size_t run = plan.runs.size() - 1;
  PixelView view;
  size_t next = 0;  // which of the two buffers is free to be written
  bool done = false;
  // The resize of plan.runs[run], which may be the last step of all.
  const auto writes_planes = [&](size_t to) { return to == 0 && plan.runs[0].whole() && planar != nullptr; };
  if (!plan.runs[run].after_resize && !is_empty(plan.runs[run].live)) {
    const Box& wanted = plan.runs[run].source;
    if (source.pixels.data != nullptr) {
      view = {source.pixels.row(wanted.y) + static_cast<size_t>(wanted.x) * 3, wanted.width, wanted.height,
              source.pixels.row_bytes};
    } else {
      const int64_t decode_start = clock_.now();
      // A resize that comes next takes rows as they are decoded.
      RowSink* rows = nullptr;
      if (run > 0 && plan.runs[run].trivial() && takes_rows(plan.runs[run - 1].geometry.filter)) {
        const PlanRun& resized = plan.runs[run - 1];
        rows = writes_planes(run - 1)
                   ? &scratch.resampler.begin_planar(resized.geometry, resized.source, resized.flip_horizontal,
                                                     resized.flip_vertical, planar)
                   : &scratch.resampler.begin(resized.geometry, resized.source, scratch.pixels[1]);
      }
      SampleStatus status = plan.role == ImageRole::mask
                                ? scratch.decoder.decode_mask(source.bytes, header, wanted, scratch.pixels[0], view)
                                : scratch.decoder.decode(source.bytes, header, wanted, scratch.pixels[0], view,
                                                         {.index = source.index,
                                                          .learned = source.learned,
                                                          .reduction = reduction,
                                                          .judged = judged,
                                                          .rows = rows});
      scratch.decode_ns += clock_.now() - decode_start;
      next = 1;
      if (!status.ok()) return status;
      if (view.data == nullptr) {
        scratch.resampler.finish();
        --run;
        done = writes_planes(run);
        if (!done) view = view_of(scratch.pixels[1]);
        next = 0;
      }
    }
  }
  for (; run > 0; --run) {
    const PlanRun& current = plan.runs[run];
    if (!current.trivial()) {
      materialise(current, plan.rings, view, scratch.pixels[next]);
      view = view_of(scratch.pixels[next]);
      next ^= 1;
    }
    const PlanRun& following = plan.runs[run - 1];
    if (writes_planes(run - 1)) {
      scratch.resampler.run_planar(following.geometry, view, following.need, following.source,
                                   following.flip_horizontal, following.flip_vertical, planar);
      done = true;
    } else {
      scratch.resampler.run(following.geometry, view, following.need, following.source, scratch.pixels[next]);
      view = view_of(scratch.pixels[next]);
      next ^= 1;
    }
  }
  if (planar == nullptr) {
    materialise(plan.runs[0], plan.rings, view, *whole);
  } else if (!done) {
    finish_planar(plan.runs[0], plan.rings, view, size_, scratch.pixels[next], planar);
  }
  return SampleStatus::good();
}

Finisher finisher_of(const Pipeline& pipeline, const FinishSpec& spec) {
  return Finisher(spec, 3, pipeline.out_height(), pipeline.out_width(), pipeline.views());
}

}  // namespace penstock
