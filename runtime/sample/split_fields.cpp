#include "runtime/sample/split_fields.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {

Variants make_variants(const ResolvedSplit& split) {
  try {
    const PixelRules rules = pixel_rules(split);
    Pipeline pipeline(split.split.pipeline, rules);
    if (pipeline.soft_classes() > 0 && split.split.mode == Mode::eval) {
      throw Error(ErrorKind::config, "MixUp and CutMix are for training, and this split's mode is eval",
                  "leave them out of it");
    }
    if (pipeline.soft_classes() > 0 && split.split.dataset.is_paired()) {
      throw Error(ErrorKind::config, "MixUp and CutMix mix labels, and pictures in pairs have none", "leave them out");
    }
    if (split.split.gpu_pipeline.empty()) return Variants(std::move(pipeline));
    return {std::move(pipeline), Pipeline(split.split.gpu_pipeline, rules), split.split.cpu_fraction.value_or(1)};
  } catch (const Error& error) {
    throw Error(error.kind(), "split '" + split.name + "': " + error.message(), error.remedy());
  }
}

FieldTable raw_fields(const Pipeline& pipeline) {
  FieldSpec image{"image", FieldKind::image, DType::uint8, {3, pipeline.out_height(), pipeline.out_width()}};
  if (pipeline.views() > 1) image.shape.insert(image.shape.begin(), pipeline.views());
  return {std::move(image), {"label", FieldKind::tensor, DType::int64, {}}};
}

FieldTable delivered_fields(FieldTable raw, const Pipeline& pipeline, const FinishSpec& finish) {
  for (FieldSpec& field : raw) {
    if (field.kind == FieldKind::image) field.dtype = finish.dtype;
  }
  if (pipeline.soft_classes() > 0) raw[1] = {"label", FieldKind::tensor, DType::float32, {pipeline.soft_classes()}};
  return raw;
}

std::string mix_batch(const Pipeline& pipeline, const FinishSpec& finish, const Draws& draws, void* images,
                      std::span<const int64_t> labels, float* soft,
                      const std::function<std::string(size_t)>& name_of_sample) {
  const int64_t classes = pipeline.soft_classes();
  std::fill_n(soft, std::ssize(labels) * classes, 0.0F);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0 || labels[i] >= classes) {
      return "label " + std::to_string(labels[i]) + " of sample '" + name_of_sample(i) +
             "' is none of the num_classes: " + std::to_string(classes) + " of MixUp or CutMix";
    }
    soft[static_cast<int64_t>(i) * classes + labels[i]] = 1;
  }
  pipeline.mix({images, finish.dtype, finish.memory_format, std::ssize(labels), pipeline.views(),
                Size{pipeline.out_width(), pipeline.out_height()}, soft, classes},
               draws);
  return {};
}

std::span<const FieldSpec> extra_fields(const FieldTable& fields) {
  return std::span(fields).subspan(std::min<size_t>(2, fields.size()));
}

}  // namespace penstock
