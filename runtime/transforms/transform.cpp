#include "runtime/transforms/transform.h"

#include "runtime/pixels/pixel_ops.h"

namespace penstock {

void DrawingTransform::draw(DrawStream&, Size, std::vector<int64_t>&) const {}

SampleStatus PixelTransform::size_after(Size in, std::span<const int64_t>, Size& out) const {
  out = in;
  return SampleStatus::good();
}

bool PixelTransform::acts(std::span<const int64_t>) const {
  return true;
}

bool PixelTransform::list_ops(Size, std::span<const int64_t>, ImageRole, PixelOpSink&) const {
  return false;
}

SampleStatus PixelTransform::paint(PixelBuffer& image, std::span<const int64_t> values, ImageRole role,
                                   PaintScratch& scratch) const {
  Painter painter(image, scratch);
  (void)list_ops({image.width(), image.height()}, values, role, painter);
  return SampleStatus::good();
}

SampleStatus size_after(const Transform& transform, std::span<const int64_t> values, Size in, Size& out) {
  out = in;
  if (const auto* pixels = as<PixelTransform>(transform)) return pixels->size_after(in, values, out);
  if (const auto* geometric = as<GeometricTransform>(transform)) {
    OpList ops(in);
    SampleStatus status = geometric->geometry(in, values, ops);
    if (status.ok()) out = ops.size();
    return status;
  }
  std::vector<Step> steps;
  if (const auto* group = as<TransformGroup>(transform)) group->expand(values, steps);
  for (const Step& step : steps) {
    if (SampleStatus status = size_after(*step.transform, step.values, out, out); !status.ok()) return status;
  }
  return SampleStatus::good();
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
