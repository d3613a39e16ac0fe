#include "runtime/augment/pipeline.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/augment/catalog.h"
#include "runtime/augment/transform.h"
#include "runtime/base/clock.h"

namespace penstock {

namespace {

bool is_empty(const Box& box) {
  return box.width <= 0 || box.height <= 0;
}

Box intersection(const Box& a, const Box& b) {
  const int x = std::max(a.x, b.x);
  const int y = std::max(a.y, b.y);
  return {x, y, std::max(0, std::min(a.x + a.width, b.x + b.width) - x),
          std::max(0, std::min(a.y + a.height, b.y + b.height) - y)};
}

}  // namespace

// A pipeline's operations on one sample, cut into runs of crops and flips with a resize between each two:
//
//   decode(run n-1's source) → run n-1 → resize → run n-2 → ... → resize → run 0 → out
//
// Crops and flips of a run collapse into one integer mapping: the pixels of `source` go to `live`, mirrored or not, and
// what is outside is painted, ring by ring, with the fills of the crops that reached outside their image. Walking from
// the output backwards keeps every box as small as the result needs.
class PipelinePlan {
 public:
  struct Ring {  // outer minus inner, in the coordinates of the run's result
    Box outer;
    Box inner;
    Fill fill;
  };

  struct Run {
    Box source;  // in the coordinates of the image that the run starts from
    Size result;
    Box live;  // where the source's pixels are in the result; empty: all is painted, and nothing before matters
    bool flip_horizontal = false;
    bool flip_vertical = false;
    size_t first_ring = 0;
    size_t last_ring = 0;
    // The resize before this run, making `source` of it from `need`. Absent for the last (earliest) run.
    bool after_resize = false;
    ResampleGeometry geometry;
    Box need;

    bool whole() const noexcept { return live.width == result.width && live.height == result.height; }
    bool trivial() const noexcept { return whole() && !flip_horizontal && !flip_vertical; }
  };

  std::vector<GeometricOp> ops;  // of all transforms
  std::vector<Run> runs;         // backwards: runs[0] makes the output
  std::vector<Ring> rings;

  void build(Size out, Resampler& resampler) {
    runs.clear();
    rings.clear();
    begin_run({0, 0, out.width, out.height});
    for (size_t i = ops.size(); i-- > 0;) {
      const GeometricOp& op = ops[i];
      Run& run = runs.back();
      switch (op.kind) {
        case OpKind::flip_horizontal:
          run.source.x = op.in.width - (run.source.x + run.source.width);
          run.flip_horizontal = !run.flip_horizontal;
          break;
        case OpKind::flip_vertical:
          run.source.y = op.in.height - (run.source.y + run.source.height);
          run.flip_vertical = !run.flip_vertical;
          break;
        case OpKind::crop:
          undo_crop(run, op);
          if (is_empty(run.live)) return;
          break;
        case OpKind::resize:
          if (op.in == op.out) break;  // Pillow copies
          run.after_resize = true;
          run.geometry = {op.in.width, op.in.height, op.out.width, op.out.height, op.filter};
          run.need = resampler.source_window(run.geometry, run.source);
          begin_run(Box{run.need});
          break;
      }
    }
  }

 private:
  void begin_run(const Box& window) {
    runs.push_back({.source = window,
                    .result = {window.width, window.height},
                    .live = {0, 0, window.width, window.height},
                    .first_ring = rings.size(),
                    .last_ring = rings.size()});
  }

  void undo_crop(Run& run, const GeometricOp& op) {
    const Box wanted{run.source.x + op.box.x, run.source.y + op.box.y, run.source.width, run.source.height};
    const Box inside = intersection(wanted, {0, 0, op.in.width, op.in.height});
    run.source = inside;
    if (inside == wanted) return;
    const int left = inside.x - wanted.x;
    const int top = inside.y - wanted.y;
    const int right = wanted.width - left - inside.width;
    const int bottom = wanted.height - top - inside.height;
    const Box outer = run.live;
    if (is_empty(inside)) {
      run.live = {outer.x, outer.y, 0, 0};
    } else {
      // Flips after this crop have mirrored the result, so what is cut off on the left there may be on the right here.
      run.live = {outer.x + (run.flip_horizontal ? right : left), outer.y + (run.flip_vertical ? bottom : top),
                  inside.width, inside.height};
    }
    rings.push_back({outer, run.live, op.fill});
    run.last_ring = rings.size();
  }
};

namespace {

using Run = PipelinePlan::Run;
using Ring = PipelinePlan::Ring;

// Calls paint(x, y, width, height) for the up to four rectangles of a ring.
template <class Paint>
void for_each_side(const Ring& ring, Paint paint) {
  const Box& o = ring.outer;
  const Box& i = ring.inner;
  if (is_empty(i)) {
    paint(o.x, o.y, o.width, o.height);
    return;
  }
  paint(o.x, o.y, o.width, i.y - o.y);
  paint(o.x, i.y + i.height, o.width, o.y + o.height - (i.y + i.height));
  paint(o.x, i.y, i.x - o.x, i.height);
  paint(i.x + i.width, i.y, o.x + o.width - (i.x + i.width), i.height);
}

void paint_interleaved(const Ring& ring, PixelBuffer& out) {
  for_each_side(ring, [&](int x, int y, int width, int height) {
    for (int row = y; row < y + height; ++row) {
      uint8_t* p = out.row(row) + static_cast<size_t>(x) * 3;
      for (int i = 0; i < width; ++i, p += 3) std::memcpy(p, ring.fill.data(), 3);
    }
  });
}

void paint_planar(const Ring& ring, Size size, uint8_t* out) {
  for_each_side(ring, [&](int x, int y, int width, int height) {
    if (width <= 0) return;
    for (size_t channel = 0; channel < 3; ++channel) {
      uint8_t* plane = out + channel * static_cast<size_t>(size.width) * static_cast<size_t>(size.height);
      for (int row = y; row < y + height; ++row) {
        std::memset(plane + static_cast<size_t>(row) * static_cast<size_t>(size.width) + x, ring.fill[channel],
                    static_cast<size_t>(width));
      }
    }
  });
}

// A run in the middle: its result, interleaved, for the resize that follows.
void materialise(const Run& run, const std::vector<Ring>& rings, const PixelView& source, PixelBuffer& out) {
  out.resize(run.result.width, run.result.height);
  for (size_t i = run.first_ring; i < run.last_ring; ++i) paint_interleaved(rings[i], out);
  for (int y = 0; y < run.live.height; ++y) {
    const uint8_t* from = source.row(run.flip_vertical ? run.live.height - 1 - y : y);
    uint8_t* to = out.row(run.live.y + y) + static_cast<size_t>(run.live.x) * 3;
    const size_t width = static_cast<size_t>(run.live.width);
    if (!run.flip_horizontal) {
      std::memcpy(to, from, width * 3);
      continue;
    }
    for (size_t x = 0; x < width; ++x) std::memcpy(to + x * 3, from + (width - 1 - x) * 3, 3);
  }
}

PixelView view_of(const PixelBuffer& buffer) {
  return {buffer.row(0), buffer.width(), buffer.height(), buffer.row_bytes()};
}

Verdict too_large(int64_t width, int64_t height, int64_t limit) {
  return Verdict::bad("the pipeline needs an intermediate image of " + std::to_string(width) + " x " +
                      std::to_string(height) + ", above the limit of " + std::to_string(limit) + " pixels");
}

}  // namespace

Scratch::Scratch(const DecodeLimits& decode_limits)
    : limits(decode_limits), decoder(decode_limits), plan(std::make_unique<PipelinePlan>()) {}
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch::~Scratch() = default;

class Pipeline::Impl {
 public:
  explicit Impl(const std::vector<TransformSpec>& specs) {
    if (specs.size() > 65535) throw Error(ErrorKind::config, "a pipeline has at most 65535 transforms");
    std::optional<Size> size;
    bool finishing = false;
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::string place = "pipeline[" + std::to_string(i) + "]: ";
      const TransformInfo* info = find_transform(specs[i].name);
      if (info == nullptr) {
        throw Error(ErrorKind::config, place + "there is no transform '" + specs[i].name + "'",
                    "`penstock schema` lists them");
      }
      TransformSpec complete{specs[i].name, {}};
      try {
        complete.params = resolve_params(*info, specs[i].params);
      } catch (const Error& error) {
        throw Error(error.kind(), place + error.message(), error.remedy());
      }
      canonical_ += canonical_text(complete) + "\n";
      std::unique_ptr<Transform> transform = info->make(complete.params);
      if (transform->kind() == Transform::Kind::upright) {
        if (i > 0) {
          throw Error(ErrorKind::config, place + specs[i].name + " does not stand first",
                      "move it to the front: it says how files are read");
        }
        header_options_.exif_orientation = true;
        continue;
      }
      if (transform->kind() == Transform::Kind::finishing) {
        finishing = true;
        const std::string complaint = transform->finish(finish_);
        if (!complaint.empty()) throw Error(ErrorKind::config, place + complaint);
        continue;
      }
      if (finishing) {
        throw Error(ErrorKind::config, place + specs[i].name + " stands after ToDtype",
                    "put ToDtype and Normalize last: geometry is done on uint8 pixels");
      }
      size = transform->fixed_size(size);
      if (transform->kind() == Transform::Kind::function) {
        functions_.push_back(transform->function());
        walls_.push_back(geometric_.size());
      }
      if (transform->flips()) ++flips_[*transform->flips() == OpKind::flip_vertical];
      geometric_.push_back({static_cast<uint16_t>(i), std::move(transform)});
    }
    if (!size) {
      throw Error(ErrorKind::config, "the pipeline's output size depends on the image",
                  "add CenterCrop or Resize: {size: [h, w]}");
    }
    size_ = *size;
    constexpr int64_t kMaxPixels = int64_t{1} << 29;
    if (int64_t{size_.width} * size_.height > kMaxPixels) {
      throw Error(ErrorKind::config, "the pipeline's output of " + std::to_string(size_.width) + " x " +
                                         std::to_string(size_.height) + " is above 2^29 pixels");
    }
  }

  Draws draw(const DrawKey& key, const ImageHeader& header) const {
    Draws draws;
    Size size{header.width, header.height};
    for (const Placed& placed : geometric_) {
      DrawStream stream(key, placed.position);
      TransformDraw drawn{placed.position, {}};
      placed.transform->draw(stream, size, drawn.values);
      OpList ops(size);
      const Verdict verdict = placed.transform->geometry(size, drawn.values, ops);
      if (!drawn.values.empty()) draws.push_back(std::move(drawn));
      if (!verdict.ok()) break;  // apply() says so; there is no image for the transforms behind
      size = ops.size();
    }
    return draws;
  }

  Verdict apply(const ImageInput& input, const ImageHeader& header, const Draws& draws, std::span<uint8_t> out,
                Scratch& scratch, const PixelFunction& function) const {
    if (out.size() != static_cast<size_t>(size_.width) * static_cast<size_t>(size_.height) * 3) {
      throw Error(ErrorKind::usage, "the output has " + std::to_string(out.size()) + " bytes, not 3 x " +
                                        std::to_string(size_.height) + " x " + std::to_string(size_.width));
    }
    if (!functions_.empty() && !function) {
      throw Error(ErrorKind::usage, "the pipeline calls '" + functions_.front() + "', and there is nothing to run it");
    }
    const int64_t start = clock_.now();
    const int64_t decoded_before = scratch.decode_ns;
    Verdict verdict = run_stages(input, header, draws, out, scratch, function);
    scratch.augment_ns += clock_.now() - start - (scratch.decode_ns - decoded_before);
    return verdict;
  }

  Description describe(const ImageHeader& header, const Draws& draws) const {
    Description result;
    Box box{0, 0, header.width, header.height};  // what is left of the source so far
    bool resized = false;
    Size size{header.width, header.height};
    size_t next = 0;
    for (const Placed& placed : geometric_) {
      OpList ops(size);
      const std::span<const int64_t> values = values_at(draws, next, placed.position);
      const Verdict verdict = placed.transform->geometry(size, values, ops);
      bool explained = verdict.ok();
      if (placed.transform->flips()) {
        explained = explained && flips_[*placed.transform->flips() == OpKind::flip_vertical] == 1;
      }
      for (const GeometricOp& op : ops.ops()) {
        if (op.kind == OpKind::flip_horizontal) result.flip[0] = !result.flip[0];
        if (op.kind == OpKind::flip_vertical) result.flip[1] = !result.flip[1];
        if (op.kind == OpKind::resize) resized = true;
        if (op.kind != OpKind::crop) continue;
        if (resized) {
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
      if (!explained && !values.empty()) {
        result.others.push_back({placed.position, {values.begin(), values.end()}});
      }
      if (!verdict.ok()) break;
      size = ops.size();
    }
    if (result.has_crop) result.crop = box;
    return result;
  }

  const std::vector<std::string>& functions() const noexcept { return functions_; }
  Size size() const noexcept { return size_; }
  const HeaderOptions& header_options() const noexcept { return header_options_; }
  const FinishSpec& finish() const noexcept { return finish_; }
  const std::string& canonical() const noexcept { return canonical_; }

 private:
  struct Placed {
    uint16_t position = 0;
    std::unique_ptr<Transform> transform;
  };

  // The draws of the transform at `position`; `next` walks along the list, which is in pipeline order.
  static std::span<const int64_t> values_at(const Draws& draws, size_t& next, uint16_t position) {
    if (next == draws.size() || draws[next].position != position) return {};
    return draws[next++].values;
  }

  // One stage a function of the user's, and the last: each makes all of its image from the one before.
  Verdict run_stages(const ImageInput& input, const ImageHeader& header, const Draws& draws, std::span<uint8_t> out,
                     Scratch& scratch, const PixelFunction& function) const {
    PipelinePlan& plan = *scratch.plan;
    Size size{header.width, header.height};
    size_t next_draw = 0;
    ImageInput source = input;
    for (size_t stage = 0; stage < walls_.size(); ++stage) {
      if (Verdict verdict = operations(stage, draws, next_draw, size, plan.ops); !verdict.ok()) return verdict;
      if (int64_t{size.width} * size.height > scratch.limits.max_pixels) {
        return too_large(size.width, size.height, scratch.limits.max_pixels);
      }
      PixelBuffer& whole = scratch.whole[stage % 2];
      if (Verdict verdict = run_stage(source, header, size, scratch, nullptr, &whole); !verdict.ok()) return verdict;
      if (Verdict verdict = function(stage, geometric_[walls_[stage]].position, whole); !verdict.ok()) return verdict;
      source.pixels = view_of(whole);
    }
    if (Verdict verdict = operations(walls_.size(), draws, next_draw, size, plan.ops); !verdict.ok()) return verdict;
    if (next_draw != draws.size()) {
      throw Error(ErrorKind::usage, "the draws are not of this pipeline: none of its transforms stands at position " +
                                        std::to_string(draws[next_draw].position));
    }
    return run_stage(source, header, size_, scratch, out.data(), nullptr);
  }

  // plan.ops, from the source to `planar` or to `whole`.
  Verdict run_stage(const ImageInput& source, const ImageHeader& header, Size size, Scratch& scratch, uint8_t* planar,
                    PixelBuffer* whole) const {
    PipelinePlan& plan = *scratch.plan;
    plan.build(size, scratch.resampler);
    if (Verdict verdict = check_sizes(plan, scratch.limits); !verdict.ok()) return verdict;

    size_t run = plan.runs.size() - 1;
    PixelView view;
    size_t next = 0;  // which of the two buffers is free to be written
    if (!plan.runs[run].after_resize && !is_empty(plan.runs[run].live)) {
      const Box& wanted = plan.runs[run].source;
      if (source.pixels.data != nullptr) {
        view = {source.pixels.row(wanted.y) + static_cast<size_t>(wanted.x) * 3, wanted.width, wanted.height,
                source.pixels.row_bytes};
      } else {
        const int64_t decode_start = clock_.now();
        Verdict verdict = scratch.decoder.decode(source.bytes, header, wanted, scratch.pixels[0], view);
        scratch.decode_ns += clock_.now() - decode_start;
        next = 1;
        if (!verdict.ok()) return verdict;
      }
    }
    bool done = false;
    for (; run > 0; --run) {
      const Run& current = plan.runs[run];
      if (!current.trivial()) {
        materialise(current, plan.rings, view, scratch.pixels[next]);
        view = view_of(scratch.pixels[next]);
        next ^= 1;
      }
      const Run& following = plan.runs[run - 1];
      if (run == 1 && following.whole() && planar != nullptr) {
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
      finish_planar(plan, view, scratch.pixels[next], planar);
    }
    return Verdict::good();
  }

  // The operations of one stage's transforms, on an image of `size`, which becomes that of its result.
  Verdict operations(size_t stage, const Draws& draws, size_t& next, Size& size, std::vector<GeometricOp>& out) const {
    out.clear();
    const size_t first = stage == 0 ? 0 : walls_[stage - 1] + 1;
    const size_t end = stage < walls_.size() ? walls_[stage] : geometric_.size();
    for (size_t i = first; i < end; ++i) {
      const Placed& placed = geometric_[i];
      OpList ops(size);
      Verdict verdict = placed.transform->geometry(size, values_at(draws, next, placed.position), ops);
      if (!verdict.ok()) return verdict;
      out.insert(out.end(), ops.ops().begin(), ops.ops().end());
      size = ops.size();
    }
    return Verdict::good();
  }

  // Memory is bounded before any is taken: by the decode limit, for intermediate images too. (A sliver of a file that
  // is resized by its shorter edge and then as a whole would otherwise ask for gigabytes.)
  static Verdict check_sizes(const PipelinePlan& plan, const DecodeLimits& limits) {
    for (size_t i = 0; i < plan.runs.size(); ++i) {
      const Run& run = plan.runs[i];
      if (run.after_resize) {
        // The window itself, and what is between the horizontal and the vertical pass.
        const int64_t rows = std::max(run.source.height, run.need.height);
        if (int64_t{run.source.width} * rows > limits.max_pixels) {
          return too_large(run.source.width, rows, limits.max_pixels);
        }
      }
      if (i > 0 && int64_t{run.result.width} * run.result.height > limits.max_pixels) {
        return too_large(run.result.width, run.result.height, limits.max_pixels);
      }
    }
    return Verdict::good();
  }

  // The last run where no resize wrote the output directly.
  void finish_planar(const PipelinePlan& plan, const PixelView& view, PixelBuffer& spare, uint8_t* out) const {
    const Run& run = plan.runs[0];
    for (size_t i = run.first_ring; i < run.last_ring; ++i) paint_planar(plan.rings[i], size_, out);
    if (is_empty(run.live)) return;
    if (run.whole()) {
      to_planar(view, run.flip_horizontal, run.flip_vertical, out);
      return;
    }
    spare.resize(run.live.width, run.live.height);
    const uint8_t* from = spare.row(0);
    to_planar(view, run.flip_horizontal, run.flip_vertical, spare.row(0));
    const auto width = static_cast<size_t>(size_.width);
    const auto live_width = static_cast<size_t>(run.live.width);
    for (size_t channel = 0; channel < 3; ++channel) {
      uint8_t* to = out + channel * width * static_cast<size_t>(size_.height) +
                    static_cast<size_t>(run.live.y) * width + static_cast<size_t>(run.live.x);
      for (int y = 0; y < run.live.height; ++y, to += width, from += live_width) std::memcpy(to, from, live_width);
    }
  }

  HeaderOptions header_options_;
  std::vector<Placed> geometric_;        // and functions
  std::vector<size_t> walls_;            // which of them are functions
  std::vector<std::string> functions_;   // their names
  int flips_[2] = {0, 0};  // how many transforms flip each axis
  Size size_;
  FinishSpec finish_;
  std::string canonical_;
  MonotonicClock clock_;
};

Pipeline::Pipeline(const std::vector<TransformSpec>& transforms) : impl_(std::make_unique<Impl>(transforms)) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

Draws Pipeline::draw(const DrawKey& key, const ImageHeader& header) const {
  return impl_->draw(key, header);
}

Verdict Pipeline::apply(const ImageInput& input, const ImageHeader& header, const Draws& draws, std::span<uint8_t> out,
                        Scratch& scratch, const PixelFunction& function) const {
  return impl_->apply(input, header, draws, out, scratch, function);
}

const std::vector<std::string>& Pipeline::functions() const noexcept {
  return impl_->functions();
}

const HeaderOptions& Pipeline::header_options() const noexcept {
  return impl_->header_options();
}

int Pipeline::out_height() const noexcept {
  return impl_->size().height;
}
int Pipeline::out_width() const noexcept {
  return impl_->size().width;
}
const FinishSpec& Pipeline::finish() const noexcept {
  return impl_->finish();
}

Pipeline::Description Pipeline::describe(const ImageHeader& header, const Draws& draws) const {
  return impl_->describe(header, draws);
}

std::string Pipeline::canonical() const {
  return impl_->canonical();
}

}  // namespace penstock
