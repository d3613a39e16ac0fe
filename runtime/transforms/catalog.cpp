#include "runtime/transforms/catalog.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

std::string number_text(double value) {
  char buffer[64];
  const std::to_chars_result result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, result.ptr};
}

struct ValueText {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(int64_t v) const { return std::to_string(v); }
  std::string operator()(double v) const { return number_text(v); }
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const TransformSpec& v) const { return canonical_text(v); }
  template <class Item>
  std::string operator()(const std::vector<Item>& v) const {
    std::string text = "[";
    for (size_t i = 0; i < v.size(); ++i) text += (i == 0 ? "" : ", ") + (*this)(v[i]);
    return text + "]";
  }
};

}  // namespace

const std::vector<TransformInfo>& transform_catalog() {
  static const std::vector<TransformInfo> catalog = {exif_transpose_info(),
                                                     identity_info(),
                                                     rgb_info(),
                                                     random_resized_crop_info(),
                                                     resize_info(),
                                                     random_resize_info(),
                                                     random_shortest_size_info(),
                                                     scale_jitter_info(),
                                                     center_crop_info(),
                                                     random_crop_info(),
                                                     pad_info(),
                                                     five_crop_info(),
                                                     ten_crop_info(),
                                                     random_horizontal_flip_info(),
                                                     random_vertical_flip_info(),
                                                     grayscale_info(),
                                                     random_grayscale_info(),
                                                     color_jitter_info(),
                                                     random_channel_permutation_info(),
                                                     random_invert_info(),
                                                     random_posterize_info(),
                                                     random_solarize_info(),
                                                     random_adjust_sharpness_info(),
                                                     random_autocontrast_info(),
                                                     random_equalize_info(),
                                                     random_photometric_distort_info(),
                                                     random_rotation_info(),
                                                     random_affine_info(),
                                                     random_perspective_info(),
                                                     gaussian_blur_info(),
                                                     gaussian_noise_info(),
                                                     jpeg_info(),
                                                     random_erasing_info(),
                                                     rand_augment_info(),
                                                     auto_augment_info(),
                                                     trivial_augment_wide_info(),
                                                     aug_mix_info(),
                                                     random_apply_info(),
                                                     random_choice_info(),
                                                     random_order_info(),
                                                     python_info(),
                                                     to_dtype_info(),
                                                     normalize_info(),
                                                     mix_up_info(),
                                                     cut_mix_info()};
  return catalog;
}

const TransformInfo* find_transform(const std::string& name) {
  for (const TransformInfo& info : transform_catalog()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

bool is_batch_transform(const TransformSpec& spec) {
  const TransformInfo* info = find_transform(spec.name);
  if (info == nullptr || info->batch) return info != nullptr;
  for (const auto& [name, value] : spec.params) {
    const auto* inside = std::get_if<std::vector<TransformSpec>>(&value);
    if (inside != nullptr && !inside->empty()) return is_batch_transform(inside->front());
  }
  return false;
}

ParamMap complete_params(const TransformInfo& info, const ParamMap& given, Arithmetic arithmetic) {
  ParamMap complete;
  for (const ParamInfo& param : info.params) {
    const auto found = given.find(param.name);
    if (found == given.end() && !param.default_value) {
      throw Error(ErrorKind::config, info.name + ": " + param.name + ": is required",
                  "`penstock schema` lists the parameters of every transform");
    }
    ParamValue& value = complete[param.name];
    value = in_kind(found != given.end() ? found->second : default_of(param, arithmetic), param.kind);
    if (auto* inside = std::get_if<std::vector<TransformSpec>>(&value)) {
      for (TransformSpec& spec : *inside) {
        spec.params = complete_params(*find_transform(spec.name), spec.params, arithmetic);
      }
    }
  }
  return complete;
}

std::string canonical_text(const TransformSpec& spec) {
  std::string text = spec.name + "(";
  const char* separator = "";
  for (const auto& [name, value] : spec.params) {
    text += separator + name + "=" + std::visit(ValueText{}, value);
    separator = ", ";
  }
  return text + ")";
}

// Helpers of transforms.h ---------------------------------------------------------------------------------------------

bool is_given(const ParamMap& params, const std::string& name) {
  return !std::holds_alternative<std::monostate>(params.at(name));
}

double number_param(const ParamMap& params, const std::string& name) {
  return std::get<double>(params.at(name));
}

bool boolean_param(const ParamMap& params, const std::string& name) {
  return std::get<bool>(params.at(name));
}

const std::string& text_param(const ParamMap& params, const std::string& name) {
  return std::get<std::string>(params.at(name));
}

const std::vector<double>& list_param(const ParamMap& params, const std::string& name) {
  return std::get<std::vector<double>>(params.at(name));
}

std::vector<Transform> transforms_param(const ParamMap& params, const std::string& name) {
  std::vector<Transform> made;
  for (const TransformSpec& spec : std::get<std::vector<TransformSpec>>(params.at(name))) {
    made.push_back(find_transform(spec.name)->make(spec.params));
  }
  return made;
}

int64_t integer_param(const ParamMap& params, const std::string& name) {
  return std::get<int64_t>(params.at(name));
}

Size size_param(const ParamMap& params, const std::string& name) {
  const std::vector<double>& list = list_param(params, name);
  return {static_cast<int>(list.back()), static_cast<int>(list.front())};
}

namespace {

Filter filter_of(const std::string& text) {
  if (text == "nearest" || text == "nearest-exact") return Filter::nearest;
  if (text == "box") return Filter::box;
  if (text == "bicubic") return Filter::bicubic;
  if (text == "lanczos") return Filter::lanczos;
  if (text == "hamming") return Filter::hamming;
  if (text == "area") return Filter::opencv_area;
  if (text == "lanczos4") return Filter::opencv_lanczos4;
  return Filter::bilinear;
}

// One text or several.
std::vector<std::string> texts_param(const ParamMap& params, const std::string& name) {
  if (const auto* one = std::get_if<std::string>(&params.at(name))) return {*one};
  return std::get<std::vector<std::string>>(params.at(name));
}

}  // namespace

Filter filter_param(const ParamMap& params, const std::string& name) {
  return filter_of(text_param(params, name));
}

std::vector<Filter> filters_param(const ParamMap& params, const std::string& name) {
  std::vector<Filter> filters;
  for (const std::string& text : texts_param(params, name)) filters.push_back(filter_of(text));
  return filters;
}

Fill fill_param(const ParamMap& params, const std::string& name) {
  if (!is_given(params, name)) return {0, 0, 0};
  const std::vector<double>& list = list_param(params, name);
  Fill fill{};
  for (size_t channel = 0; channel < 3; ++channel) fill[channel] = static_cast<uint8_t>(list[channel % list.size()]);
  return fill;
}

// A colour means nothing among class ids, so a mask gets 0 for one; a single number is one for all.
Fills fills_param(const ParamMap& params) {
  Fills fills{fill_param(params, "fill"), 0};
  const Fill& image = fills.image;
  if (image[0] == image[1] && image[1] == image[2]) fills.mask = image[0];
  if (params.contains("mask_fill") && is_given(params, "mask_fill")) {
    fills.mask = static_cast<uint8_t>(integer_param(params, "mask_fill"));
  }
  return fills;
}

int64_t to_fixed(double value) {
  return static_cast<int64_t>(std::floor(value * 0x1p32 + 0.5));
}

double from_fixed(int64_t value) {
  return static_cast<double>(value) * 0x1p-32;
}

int64_t draw_fixed(DrawStream& stream, const std::array<double, 2>& range) {
  return to_fixed(stream.uniform(range[0], range[1]));
}

ParamInfo boolean_info(const std::string& name, bool value, const std::string& doc) {
  return {.name = name, .kind = ParamKind::boolean, .default_value = value, .doc = doc};
}

ParamInfo integer_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                       const std::string& doc) {
  return {name, ParamKind::integer, std::move(value), minimum, maximum, {}, {}, false, doc};
}

ParamInfo number_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                      const std::string& doc) {
  return {name, ParamKind::number, std::move(value), minimum, maximum, {}, {}, false, doc};
}

ParamInfo integers_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                        std::vector<size_t> lengths, const std::string& doc) {
  return {name, ParamKind::integers, std::move(value), minimum, maximum, {}, std::move(lengths), false, doc};
}

ParamInfo numbers_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                       std::vector<size_t> lengths, const std::string& doc) {
  return {name, ParamKind::numbers, std::move(value), minimum, maximum, {}, std::move(lengths), false, doc};
}

ParamInfo probability_info(double default_value, const std::string& doc) {
  return number_info("p", default_value, 0, 1, doc);
}

ParamInfo box_scale_info(double low, double high) {
  return numbers_info("scale", std::vector<double>{low, high}, 0, 1, {2},
                      "range of the box's area, as a share of the image's");
}

ParamInfo box_ratio_info(double low, double high, const std::string& doc) {
  return numbers_info("ratio", std::vector<double>{low, high}, 1e-3, 1e3, {2}, doc);
}

ParamInfo fill_info(const std::string& doc) {
  return integers_info("fill", std::vector<double>{0}, 0, 255, {1, 3}, doc);
}

ParamInfo mask_fill_info() {
  return integer_info("mask_fill", ParamValue{}, 0, 255,
                      "class id of what comes from outside in masks, such as 255 for pixels that no loss counts; null: "
                      "fill where that is one number, else 0");
}

ParamInfo warp_interpolation_info(const std::string& default_value) {
  return {.name = "interpolation",
          .kind = ParamKind::text,
          .default_value = default_value,
          .choices = {"nearest", "bilinear", "bicubic"},
          .doc = "the filter of Pillow's Image.transform, which does not antialias; masks are always nearest"};
}

ParamInfo size_info(const std::string& doc) {
  return integers_info("size", {}, 1, kMaxSide, {1, 2}, doc);
}

ParamInfo interpolation_info() {
  return {
      .name = "interpolation",
      .kind = ParamKind::text,
      .default_value = std::string("bilinear"),
      .choices = {"nearest", "nearest-exact", "box", "bilinear", "hamming", "bicubic", "lanczos", "area", "lanczos4"},
      .doc =
          "Pillow's filter, antialiased; nearest and nearest-exact are both Pillow's nearest. With arithmetic: "
          "opencv cv2.resize's: nearest, bilinear (INTER_LINEAR), bicubic (INTER_CUBIC), area, lanczos4"};
}

ParamInfo antialias_info() {
  return boolean_info("antialias", true,
                      "only true, because Pillow's filters antialias; with arithmetic: opencv only false, because "
                      "cv2.resize does not. Leave it out");
}

std::function<std::string(const ParamMap&, std::string&)> rising(std::vector<std::string> names) {
  return [names = std::move(names)](const ParamMap& params, std::string& culprit) {
    for (const std::string& name : names) {
      culprit = name;
      const std::vector<double>& range = list_param(params, name);
      if (range.front() > range.back()) return "must be [smaller, larger]";
    }
    return "";
  };
}

std::string misfit_of(const TransformSpec& spec, Arithmetic arithmetic, std::string& culprit) {
  const bool opencv = arithmetic == Arithmetic::opencv;
  if (opencv && spec.name == "ExifTranspose") {
    return "with arithmetic: opencv pictures are turned as cv2.imread does (exif: true at the top level)";
  }
  if (!spec.params.contains("antialias")) return {};  // it does not resize
  culprit = "interpolation";
  for (const std::string& filter : texts_param(spec.params, culprit)) {
    const bool is_pillows = filter == "box" || filter == "hamming" || filter == "lanczos" || filter == "nearest-exact";
    const bool is_opencvs = filter == "area" || filter == "lanczos4";
    if (opencv && is_pillows) {
      return filter + " is Pillow's; with arithmetic: opencv there are nearest, bilinear, bicubic, area and lanczos4";
    }
    if (!opencv && is_opencvs) return filter + " is OpenCV's, and arithmetic is " + name_of(arithmetic);
  }
  culprit = "antialias";
  if (opencv == !boolean_param(spec.params, culprit)) return {};
  return opencv
             ? "true is not supported with arithmetic: opencv: cv2.resize does not antialias; leave it out"
             : "false is not supported: resampling is Pillow's, which always antialiases (but for arithmetic: opencv)";
}

ParamValue default_of(const ParamInfo& param, Arithmetic arithmetic) {
  if (param.name == "antialias" && arithmetic == Arithmetic::opencv) return false;
  return *param.default_value;
}

}  // namespace penstock
