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

std::string value_text(const ParamValue& value) {
  struct Visitor {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return number_text(v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<double>& v) const {
      std::string text = "[";
      for (size_t i = 0; i < v.size(); ++i) text += (i == 0 ? "" : ", ") + number_text(v[i]);
      return text + "]";
    }
    std::string operator()(const std::vector<TransformSpec>& v) const {
      std::string text = "[";
      for (size_t i = 0; i < v.size(); ++i) text += (i == 0 ? "" : ", ") + canonical_text(v[i]);
      return text + "]";
    }
    std::string operator()(const std::vector<std::string>& v) const {
      std::string text = "[";
      for (size_t i = 0; i < v.size(); ++i) text += (i == 0 ? "" : ", ") + v[i];
      return text + "]";
    }
  };
  return std::visit(Visitor{}, value);
}

[[noreturn]] void complain(const TransformInfo& info, const std::string& param, const std::string& what) {
  throw Error(ErrorKind::config, info.name + ": " + param + ": " + what,
              "`penstock schema` lists the parameters of every transform");
}

void check_range(const TransformInfo& info, const ParamInfo& param, double value) {
  if (!std::isfinite(value)) complain(info, param.name, "must be a finite number");
  if (value < param.minimum || value > param.maximum) {
    complain(info, param.name,
             number_text(value) + " is outside " + number_text(param.minimum) + " to " + number_text(param.maximum));
  }
}

void check_choice(const TransformInfo& info, const ParamInfo& param, const std::string& text) {
  bool known = param.choices.empty();
  std::string choices;
  for (const std::string& choice : param.choices) {
    known = known || choice == text;
    choices += (choices.empty() ? "" : ", ") + choice;
  }
  if (!known) complain(info, param.name, "'" + text + "' is none of " + choices);
}

ParamMap resolve(const TransformInfo& info, const ParamMap& given, int depth, Arithmetic arithmetic);

std::vector<TransformSpec> resolve_inside(const TransformInfo& info, const ParamInfo& param,
                                          const std::vector<TransformSpec>& given, int depth, Arithmetic arithmetic) {
  if (given.empty()) complain(info, param.name, "must not be empty");
  if (depth > kMaxTransformDepth) {
    complain(info, param.name,
             "transforms inside transforms, more than " + std::to_string(kMaxTransformDepth) + " deep");
  }
  std::vector<TransformSpec> resolved;
  for (const TransformSpec& spec : given) {
    const TransformInfo* inner = find_transform(spec.name);
    if (inner == nullptr) complain(info, param.name, "there is no transform '" + spec.name + "'");
    resolved.push_back({spec.name, resolve(*inner, spec.params, depth, arithmetic)});
  }
  return resolved;
}

// The value in the one type that the parameter's kind has.
ParamValue convert(const TransformInfo& info, const ParamInfo& param, const ParamValue& value, int depth,
                   Arithmetic arithmetic) {
  if (std::holds_alternative<std::monostate>(value)) {
    if (param.takes_null()) return value;
    complain(info, param.name, "must not be null");
  }
  const int64_t* integer = std::get_if<int64_t>(&value);
  const double* number = std::get_if<double>(&value);
  switch (param.kind) {
    case ParamKind::integer:
      if (integer == nullptr) complain(info, param.name, "must be an integer, not " + value_text(value));
      check_range(info, param, static_cast<double>(*integer));
      return value;
    case ParamKind::number: {
      if (integer == nullptr && number == nullptr) {
        complain(info, param.name, "must be a number, not " + value_text(value));
      }
      const double result = integer != nullptr ? static_cast<double>(*integer) : *number;
      check_range(info, param, result);
      return result;
    }
    case ParamKind::boolean:
      if (!std::holds_alternative<bool>(value)) {
        complain(info, param.name, "must be true or false, not " + value_text(value));
      }
      return value;
    case ParamKind::mapping:
    case ParamKind::text: {
      const std::string* text = std::get_if<std::string>(&value);
      if (text == nullptr) complain(info, param.name, "must be a text, not " + value_text(value));
      check_choice(info, param, *text);
      return value;
    }
    case ParamKind::texts: {
      if (const auto* text = std::get_if<std::string>(&value)) {
        check_choice(info, param, *text);
        return value;
      }
      const auto* list = std::get_if<std::vector<std::string>>(&value);
      if (list == nullptr) complain(info, param.name, "must be a text or a list of texts, not " + value_text(value));
      if (list->empty()) complain(info, param.name, "must not be empty");
      for (const std::string& text : *list) check_choice(info, param, text);
      return list->size() == 1 ? ParamValue(list->front()) : value;
    }
    case ParamKind::numbers:
    case ParamKind::integers: {
      if (const std::string* text = std::get_if<std::string>(&value)) {
        if (std::find(param.choices.begin(), param.choices.end(), *text) != param.choices.end()) return value;
      }
      std::vector<double> list;
      if (integer != nullptr) {
        list = {static_cast<double>(*integer)};
      } else if (number != nullptr) {
        list = {*number};
      } else if (const auto* given = std::get_if<std::vector<double>>(&value)) {
        list = *given;
      } else {
        complain(info, param.name, "must be a list of numbers, not " + value_text(value));
      }
      bool fits = param.lengths.empty() ? !list.empty() : false;
      for (const size_t length : param.lengths) fits = fits || length == list.size();
      if (!fits) complain(info, param.name, "has the wrong number of values: " + value_text(list));
      for (const double element : list) {
        check_range(info, param, element);
        if (param.kind == ParamKind::integers && element != std::floor(element)) {
          complain(info, param.name, "must hold integers, not " + number_text(element));
        }
      }
      return list;
    }
    case ParamKind::transforms: {
      const auto* list = std::get_if<std::vector<TransformSpec>>(&value);
      if (list == nullptr) complain(info, param.name, "must be a list of transforms, not " + value_text(value));
      return resolve_inside(info, param, *list, depth + 1, arithmetic);
    }
  }
  return value;
}

ParamMap resolve(const TransformInfo& info, const ParamMap& given, int depth, Arithmetic arithmetic) {
  ParamMap resolved;
  for (const ParamInfo& param : info.params) {
    const auto found = given.find(param.name);
    if (found != given.end()) {
      resolved[param.name] = convert(info, param, found->second, depth, arithmetic);
    } else if (param.default_value) {
      resolved[param.name] = convert(info, param, default_of(param, arithmetic), depth, arithmetic);
    } else {
      complain(info, param.name, "is required");
    }
  }
  for (const auto& [name, value] : given) {
    if (!resolved.contains(name)) complain(info, name, "there is no such parameter");
  }
  std::string culprit;
  std::string complaint = info.check ? info.check(resolved, culprit) : std::string();
  if (complaint.empty()) complaint = misfit_of({info.name, resolved}, arithmetic, culprit);
  if (!complaint.empty()) complain(info, culprit, complaint);
  return resolved;
}

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

ParamMap resolve_params(const TransformInfo& info, const ParamMap& given, Arithmetic arithmetic) {
  return resolve(info, given, 0, arithmetic);
}

std::string canonical_text(const TransformSpec& spec) {
  std::string text = spec.name + "(";
  const char* separator = "";
  for (const auto& [name, value] : spec.params) {
    text += separator + name + "=" + value_text(value);
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

ParamInfo box_scale_info(double low, double high) {
  return {.name = "scale",
          .kind = ParamKind::numbers,
          .default_value = std::vector<double>{low, high},
          .minimum = 0,
          .maximum = 1,
          .lengths = {2},
          .doc = "range of the box's area, as a share of the image's"};
}

ParamInfo box_ratio_info(double low, double high, const std::string& doc) {
  return {.name = "ratio",
          .kind = ParamKind::numbers,
          .default_value = std::vector<double>{low, high},
          .minimum = 1e-3,
          .maximum = 1e3,
          .lengths = {2},
          .doc = doc};
}

ParamInfo probability_info(double default_value, const std::string& doc) {
  return {
      .name = "p", .kind = ParamKind::number, .default_value = default_value, .minimum = 0, .maximum = 1, .doc = doc};
}

ParamInfo fill_info(const std::string& doc) {
  return {.name = "fill",
          .kind = ParamKind::integers,
          .default_value = std::vector<double>{0},
          .minimum = 0,
          .maximum = 255,
          .lengths = {1, 3},
          .doc = doc};
}

ParamInfo mask_fill_info() {
  return {.name = "mask_fill",
          .kind = ParamKind::integer,
          .default_value = ParamValue{},
          .minimum = 0,
          .maximum = 255,
          .doc =
              "class id of what comes from outside in masks, such as 255 for pixels that no loss counts; null: fill "
              "where that is one number, else 0"};
}

ParamInfo warp_interpolation_info(const std::string& default_value) {
  return {.name = "interpolation",
          .kind = ParamKind::text,
          .default_value = default_value,
          .choices = {"nearest", "bilinear", "bicubic"},
          .doc = "the filter of Pillow's Image.transform, which does not antialias; masks are always nearest"};
}

ParamInfo size_info(const std::string& doc) {
  return {
      .name = "size", .kind = ParamKind::integers, .minimum = 1, .maximum = kMaxSide, .lengths = {1, 2}, .doc = doc};
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
  return {.name = "antialias",
          .kind = ParamKind::boolean,
          .default_value = true,
          .doc =
              "only true, because Pillow's filters antialias; with arithmetic: opencv only false, because cv2.resize "
              "does not. Leave it out"};
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
