#include "runtime/transforms/transform.h"

#include "runtime/pixels/pixel_ops.h"

namespace penstock {

void Transform::draw(DrawStream&, Size, std::vector<int64_t>&) const {}

Verdict Transform::geometry(Size, std::span<const int64_t>, OpList&) const {
  return Verdict::good();
}

bool Transform::acts(std::span<const int64_t>) const {
  return true;
}

bool Transform::list_ops(Size, std::span<const int64_t>, ImageRole, PixelOpSink&) const {
  return false;
}

Verdict Transform::paint(PixelBuffer& image, std::span<const int64_t> values, ImageRole role,
                         PaintScratch& scratch) const {
  Painter painter(image, scratch);
  (void)list_ops({image.width(), image.height()}, values, role, painter);
  return Verdict::good();
}

Verdict Transform::view(Size, int, OpList&) const {
  return Verdict::good();
}

void Transform::mix(const MixBatch&, std::span<const int64_t>) const {}

void Transform::expand(std::span<const int64_t>, std::vector<Step>&) const {}

std::string Transform::finish(FinishSpec&) const {
  return {};
}

Verdict size_after(const Transform& transform, std::span<const int64_t> values, Size in, Size& out) {
  out = in;
  if (transform.kind() != Transform::Kind::group) {
    OpList ops(in);
    Verdict verdict = transform.geometry(in, values, ops);
    if (verdict.ok()) out = ops.size();
    return verdict;
  }
  std::vector<Step> steps;
  transform.expand(values, steps);
  for (const Step& step : steps) {
    if (Verdict verdict = size_after(*step.transform, step.values, out, out); !verdict.ok()) return verdict;
  }
  return Verdict::good();
}

void require_draws(std::span<const int64_t> values, size_t count, const char* transform) {
  if (values.size() != count) {
    throw Error(
        ErrorKind::usage,
        std::string(transform) + " needs " + std::to_string(count) + " draws, not " + std::to_string(values.size()),
        "use the draws that Pipeline::draw made for this pipeline");
  }
}

}  // namespace penstock
