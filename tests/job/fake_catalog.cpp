// A small catalogue of transforms for the tests of the job file, so that they need neither the transforms nor their
// libraries. config_catalog_test runs on the real one.
#include "runtime/transforms/catalog.h"

namespace penstock {

const std::vector<TransformInfo>& transform_catalog() {
  static const std::vector<TransformInfo> catalog = [] {
    const auto none = std::optional<ParamValue>(ParamValue{});
    std::vector<TransformInfo> out;
    out.push_back(
        {"RandomResizedCrop",
         "a random box, resized",
         {{.name = "size", .kind = ParamKind::integers, .minimum = 1, .lengths = {1, 2}, .doc = "of the result"},
          {.name = "scale",
           .kind = ParamKind::numbers,
           .default_value = std::vector<double>{0.08, 1.0},
           .minimum = 0,
           .lengths = {2},
           .doc = "area"},
          {.name = "interpolation",
           .kind = ParamKind::text,
           .default_value = std::string("bilinear"),
           .choices = {"nearest", "bilinear", "bicubic"},
           .doc = "filter"}},
         [](const ParamMap& params, std::string& culprit) -> std::string {
           const auto& scale = std::get<std::vector<double>>(params.at("scale"));
           if (scale[0] <= scale[1]) return {};
           culprit = "scale";
           return "scale must be increasing";
         }});
    out.push_back({"Resize",
                   "",
                   {{.name = "size", .kind = ParamKind::integers, .minimum = 1, .lengths = {1, 2}, .doc = ""},
                    {.name = "max_size", .kind = ParamKind::integer, .default_value = none, .minimum = 1, .doc = ""}}});
    for (const char* flip : {"RandomHorizontalFlip", "RandomVerticalFlip"}) {
      out.push_back({flip,
                     "",
                     {{.name = "p",
                       .kind = ParamKind::number,
                       .default_value = 0.5,
                       .minimum = 0,
                       .maximum = 1,
                       .doc = "probability"}}});
    }
    out.push_back(
        {"ToDtype",
         "",
         {{.name = "dtype", .kind = ParamKind::text, .choices = {"uint8", "float32", "float16", "bfloat16"}, .doc = ""},
          {.name = "scale", .kind = ParamKind::boolean, .default_value = false, .doc = ""}}});
    out.push_back({"Normalize",
                   "",
                   {{.name = "mean", .kind = ParamKind::numbers, .lengths = {3}, .doc = ""},
                    {.name = "std", .kind = ParamKind::numbers, .minimum = 1e-6, .lengths = {3}, .doc = ""}}});
    return out;
  }();
  return catalog;
}

const TransformInfo* find_transform(const std::string& name) {
  for (const TransformInfo& info : transform_catalog()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

bool is_batch_transform(const TransformSpec&) {
  return false;
}

ParamValue default_of(const ParamInfo& param, Arithmetic) {
  return *param.default_value;
}

std::string misfit_of(const TransformSpec&, Arithmetic, std::string&) {
  return {};
}

}  // namespace penstock
