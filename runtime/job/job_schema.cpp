// `penstock schema`: JSON Schema (draft 7) of the job file, made from the key table and the catalogue of transforms.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/job/job.h"
#include "runtime/job/json_value.h"
#include "runtime/job/key_table.h"
#include "runtime/transforms/catalog.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

Json bound(double value) {
  if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<int64_t>(value);
  return value;
}

Json scalar_schema(const ParamInfo& info, const char* type) {
  Json out = {{"type", type}};
  if (std::isfinite(info.minimum)) out["minimum"] = bound(info.minimum);
  if (std::isfinite(info.maximum)) out["maximum"] = bound(info.maximum);
  return out;
}

Json list_schema(const ParamInfo& info, const char* type) {
  const Json element = scalar_schema(info, type);
  Json list = {{"type", "array"}, {"items", element}, {"minItems", 1}};
  if (!info.lengths.empty()) {
    list["minItems"] = *std::min_element(info.lengths.begin(), info.lengths.end());
    list["maxItems"] = *std::max_element(info.lengths.begin(), info.lengths.end());
  }
  const bool one = info.lengths.empty() || std::count(info.lengths.begin(), info.lengths.end(), size_t{1}) > 0;
  if (!one && info.choices.empty()) return list;
  Json any = Json::array({list});
  if (one) any.insert(any.begin(), element);
  if (!info.choices.empty()) any.push_back({{"enum", info.choices}});
  return {{"anyOf", any}};
}

Json type_schema(const ParamInfo& info) {
  switch (info.kind) {
    case ParamKind::integer: return scalar_schema(info, "integer");
    case ParamKind::number: {
      const Json number = scalar_schema(info, "number");
      if (info.choices.empty()) return number;
      return {{"anyOf", Json::array({number, Json{{"enum", info.choices}}})}};
    }
    case ParamKind::boolean: return Json{{"type", "boolean"}};
    case ParamKind::text:
      if (!info.choices.empty()) return Json{{"enum", info.choices}};
      return Json{{"type", "string"}};
    case ParamKind::texts: {
      const Json one = {{"enum", info.choices}};
      const Json list = {{"type", "array"}, {"items", one}, {"minItems", 1}};
      return Json{{"anyOf", Json::array({one, list})}};
    }
    case ParamKind::mapping: return Json{{"type", "object"}};
    case ParamKind::integers: return list_schema(info, "integer");
    case ParamKind::numbers: return list_schema(info, "number");
    case ParamKind::transforms: return Json{{"$ref", "#/definitions/split/properties/pipeline"}};
  }
  return Json::object();
}

Json param_schema(const ParamInfo& info) {
  if (info.kind == ParamKind::transforms)
    return Json{{"allOf", Json::array({type_schema(info)})}, {"description", info.doc}};
  Json out = type_schema(info);
  if (info.takes_null()) {
    out = Json{{"anyOf", Json::array({out, Json{{"type", "null"}}})}};
  }
  out["description"] = info.doc;
  if (info.default_value) out["default"] = Json(json_value(*info.default_value, info.kind));
  return out;
}

Json object_schema(const std::string& doc, Json properties, const std::vector<std::string>& required) {
  Json out;
  // A mapping whose keys are all optional may be left empty, which is YAML's null.
  out["type"] = required.empty() ? Json::array({"object", "null"}) : Json("object");
  if (!doc.empty()) out["description"] = doc;
  out["properties"] = std::move(properties);
  if (!required.empty()) out["required"] = required;
  out["additionalProperties"] = false;
  return out;
}

template <class T>
void add_level(const std::vector<Section<T>>& sections, Json& properties, std::vector<std::string>& required) {
  for (const Section<T>& section : sections) {
    if (section.name.empty()) {
      for (const Key<T>& key : section.keys) properties[key.info.name] = param_schema(key.info);
      continue;
    }
    Json inner = Json::object();
    for (const Key<T>& key : section.keys) inner[key.info.name] = param_schema(key.info);
    Json& object = properties[section.name] = object_schema(section.doc, std::move(inner), {});
    if (section.one_of.empty()) continue;
    required.push_back(section.name);
    object["type"] = "object";
    for (const std::string& name : section.one_of) object["oneOf"].push_back({{"required", {name}}});
  }
}

Json transform_schema(const TransformInfo& info) {
  Json params = Json::object();
  std::vector<std::string> required;
  for (const ParamInfo& param : info.params) {
    params[param.name] = param_schema(param);
    if (!param.default_value) required.push_back(param.name);
  }
  Json properties;
  properties[info.name] = object_schema(info.doc, std::move(params), required);
  return object_schema(info.doc, std::move(properties), {info.name});
}

}  // namespace

std::string job_schema() {
  Json transforms = Json::array();
  Json bare_names = Json::array();
  for (const TransformInfo& info : transform_catalog()) {
    transforms.push_back(transform_schema(info));
    const bool bare = std::all_of(info.params.begin(), info.params.end(),
                                  [](const ParamInfo& param) { return param.default_value.has_value(); });
    if (bare) bare_names.push_back(info.name);
  }
  transforms.push_back(Json{{"enum", bare_names}, {"description", "A transform with its defaults."}});

  Json split = Json::object();
  std::vector<std::string> split_required;
  add_level(split_sections(), split, split_required);
  split["pipeline"] = {{"type", "array"},
                       {"description", "Transforms, in order; ToDtype and Normalize last. torchvision v2's names."},
                       {"minItems", 1},
                       {"items", Json{{"anyOf", transforms}}}};
  split["gpu_pipeline"] = {{"allOf", Json::array({Json{{"$ref", "#/definitions/split/properties/pipeline"}}})},
                           {"description",
                            "A second list, for the samples that cpu_fraction leaves; what it makes is part of the "
                            "stream, whoever makes it. Ends as pipeline does: same size, ToDtype, Normalize, MixUp."}};
  split_required.push_back("pipeline");

  Json top = Json::object();
  std::vector<std::string> required;
  add_level(job_sections(), top, required);
  top["splits"] = {{"type", "object"},
                   {"description", "The splits by name, such as train and val."},
                   {"minProperties", 1},
                   {"propertyNames", Json{{"pattern", "^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$"}}},
                   {"additionalProperties", Json{{"$ref", "#/definitions/split"}}}};
  required.push_back("splits");

  Json schema;
  schema["$schema"] = "http://json-schema.org/draft-07/schema#";
  schema["title"] = "penstock job file";
  const Json body = object_schema("", std::move(top), required);
  for (const auto& [name, value] : body.items()) schema[name] = value;
  schema["definitions"]["split"] = object_schema("One split of the data.", std::move(split), split_required);
  return schema.dump(2) + "\n";
}

}  // namespace penstock
