#include "runtime/job/pipeline_reader.h"

#include <algorithm>
#include <set>

#include "runtime/base/lower_case.h"
#include "runtime/job/suggest.h"
#include "runtime/job/value_reader.h"
#include "runtime/transforms/catalog.h"

namespace penstock {
namespace {

std::vector<std::string> transform_names() {
  std::vector<std::string> names;
  for (const TransformInfo& info : transform_catalog()) names.push_back(info.name);
  return names;
}

// What torchvision has under other names, or not as a transform of its own.
std::string transform_hint(const std::string& name) {
  static const std::set<std::string> conversions{"totensor", "toimage", "piltotensor", "topureimage",
                                                 "convertimagedtype"};
  if (conversions.count(lower_case(name)) > 0) return "did you mean {ToDtype: {dtype: float32, scale: true}}?";
  const std::string hint = did_you_mean(name, transform_names());
  return hint.empty() ? "there are " + list_of(transform_names(), "and") : hint;
}

void read_pipeline(const YamlNode& node, const std::string& path, int depth, std::vector<TransformSpec>& pipeline,
                   Reading& reading);

// One transform's parameters. `path` is "splits.train.pipeline.0"; `name_span` its name. False: complaints.
bool read_params(const TransformInfo& info, const YamlNode* params, const Span& name_span, const std::string& path,
                 int depth, TransformSpec& spec, Reading& reading) {
  const size_t before = reading.complaints.count();
  const std::string prefix = path + "." + info.name + ".";
  std::vector<std::string> names;
  for (const ParamInfo& param : info.params) names.push_back(param.name);
  if (params != nullptr && params->kind == YamlNode::Kind::unknown) return false;
  if (params != nullptr && !params->is_null() && !params->is_mapping()) {
    std::string hint;
    if (!names.empty()) {
      const std::string text = params->is_scalar() ? params->text.substr(0, 60) : "...";
      hint = "write {" + info.name + ": {" + names.front() + ": " + text + "}}";
    }
    reading.complaints.add(params->span,
                           in_quotes(info.name) + ": expected a mapping of its parameters, found " + describe(*params),
                           hint);
    return false;
  }
  for (const ParamInfo& param : info.params) {
    const YamlNode::Entry* entry = params == nullptr ? nullptr : params->find(param.name);
    if (entry != nullptr && param.kind == ParamKind::transforms) {
      std::vector<TransformSpec> inner;
      read_pipeline(entry->value, prefix + param.name, depth + 1, inner, reading);
      spec.params[param.name] = std::move(inner);
    } else if (entry != nullptr) {
      if (const auto value = read_value(entry->value, param, prefix + param.name, reading.complaints)) {
        spec.params[param.name] = *value;
        reading.note(prefix + param.name, entry->value);
      }
    } else if (param.default_value) {
      spec.params[param.name] = in_kind(default_of(param, reading.arithmetic), param.kind);
    } else {
      reading.complaints.add(name_span, in_quotes(info.name) + " needs " + in_quotes(param.name),
                             "write {" + info.name + ": {" + param.name + ": ...}}");
    }
  }
  if (params != nullptr) {
    for (const YamlNode::Entry& entry : params->entries) {
      if (std::find(names.begin(), names.end(), entry.key) != names.end()) continue;
      std::string hint = reading.complaints.full() ? "" : did_you_mean(entry.key, names);
      if (hint.empty()) hint = names.empty() ? "it has no parameters" : "it takes " + list_of(names, "and");
      reading.complaints.add(entry.key_span,
                             "unknown parameter " + in_quotes(entry.key) + " of " + in_quotes(info.name), hint);
    }
  }
  if (reading.complaints.count() != before) return false;
  std::string culprit;
  std::string complaint = info.check ? info.check(spec.params, culprit) : std::string();
  if (complaint.empty()) complaint = misfit_of(spec, reading.arithmetic, culprit);
  if (complaint.empty()) return true;
  const YamlNode::Entry* entry = params == nullptr ? nullptr : params->find(culprit);
  reading.complaints.add(entry == nullptr ? name_span : entry->value.span,
                         in_quotes(culprit.empty() ? info.name : info.name + "." + culprit) + ": " + complaint);
  return false;
}

// ToDtype and Normalize run in the copy that delivers a batch, after everything that moves pixels.
class FinishOrder {
 public:
  void check(const TransformSpec& spec, const Span& where, bool params_known, Complaints& complaints) {
    const bool mixes = is_batch_transform(spec);
    if (!mixing_.empty() && !mixes) {
      complaints.add(where, in_quotes(spec.name) + " stands after " + mixing_, "what mixes whole batches comes last");
      return;
    }
    if (mixes) {
      mixing_ = spec.name;
    } else if (spec.name == "ToDtype") {
      const auto dtype = spec.params.find("dtype");
      is_float_ = !params_known || dtype == spec.params.end() || dtype->second != ParamValue(std::string("uint8"));
      finishing_ = spec.name;
    } else if (spec.name == "Normalize") {
      if (!is_float_) {
        complaints.add(where, "Normalize needs float pixels", "put {ToDtype: {dtype: float32, scale: true}} before it");
      }
      finishing_ = spec.name;
    } else if (!finishing_.empty()) {
      complaints.add(where, in_quotes(spec.name) + " stands after " + finishing_, "ToDtype and Normalize come last");
    }
  }

  // Whatever it was meant to be, it may have been what makes pixels float.
  void unknown() { is_float_ = true; }

 private:
  std::string finishing_;
  std::string mixing_;
  bool is_float_ = false;
};

// `depth`: of how many transforms the list is inside.
void read_pipeline(const YamlNode& node, const std::string& path, int depth, std::vector<TransformSpec>& pipeline,
                   Reading& reading) {
  Complaints& complaints = reading.complaints;
  if (node.kind == YamlNode::Kind::unknown) return;
  if (depth > kMaxTransformDepth) {
    complaints.add(node.span,
                   "transforms inside transforms, more than " + std::to_string(kMaxTransformDepth) + " deep");
    return;
  }
  if (!node.is_sequence() || node.items.empty()) {
    const std::string found = node.is_sequence() ? "an empty list" : describe(node);
    complaints.add(node.span, in_quotes(path) + ": expected a list of transforms, found " + found,
                   "write [{RandomResizedCrop: {size: 224}}, ...]");
    return;
  }
  reading.note(path, node);
  FinishOrder order;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode& item = node.items[i];
    const std::string here = path + "." + std::to_string(i);
    if (item.kind == YamlNode::Kind::unknown) continue;
    const bool named = item.is_mapping() && !item.entries.empty();
    if (!item.is_scalar() && !named) {
      complaints.add(item.span, in_quotes(here) + ": expected {Name: {parameters}}, found " + describe(item));
      continue;
    }
    const std::string& name = named ? item.entries.front().key : item.text;
    const Span& name_span = named ? item.entries.front().key_span : item.span;
    const YamlNode* params = named ? &item.entries.front().value : nullptr;
    for (size_t k = 1; named && k < item.entries.size(); ++k) {
      const YamlNode::Entry& beside = item.entries[k];
      const bool transform = find_transform(beside.key) != nullptr;
      complaints.add(beside.key_span, in_quotes(beside.key) + " stands beside " + in_quotes(name),
                     transform ? "begin it with '- '" : "indent parameters further than the transform's name");
    }
    const TransformInfo* info = find_transform(name);
    if (info == nullptr) {
      complaints.add(name_span, "unknown transform " + in_quotes(name), complaints.full() ? "" : transform_hint(name));
      order.unknown();
      continue;
    }
    if (named && item.entries.size() > 1) continue;  // what is missing probably stands beside it
    TransformSpec spec{.name = info->name, .params = {}};
    const bool good = read_params(*info, params, name_span, here, depth, spec, reading);
    reading.origins[here] = name_span.source == nullptr ? "" : name_span.source->origin(name_span.offset);
    if (depth == 0) order.check(spec, name_span, good, complaints);
    pipeline.push_back(std::move(spec));
  }
}

// Where what is the same for a whole batch begins: ToDtype, Normalize, MixUp and CutMix.
size_t begin_of_finish(const std::vector<TransformSpec>& pipeline) {
  const auto finishes = [](const TransformSpec& spec) {
    return spec.name == "ToDtype" || spec.name == "Normalize" || is_batch_transform(spec);
  };
  return static_cast<size_t>(std::find_if(pipeline.begin(), pipeline.end(), finishes) - pipeline.begin());
}

}  // namespace

void read_pipeline(const YamlNode& node, const std::string& path, std::vector<TransformSpec>& pipeline,
                   Reading& reading) {
  read_pipeline(node, path, 0, pipeline, reading);
}

void check_variants(const YamlNode& node, const std::string& path, bool good, SplitSpec& split, Reading& reading) {
  Complaints& complaints = reading.complaints;
  const YamlNode* fraction = value_at(node, "cpu_fraction");
  const YamlNode* gpu = value_at(node, "gpu_pipeline");
  if (gpu == nullptr) {
    if (!split.cpu_fraction) return;
    complaints.add(fraction->span,
                   "'cpu_fraction' shares the samples between 'pipeline' and 'gpu_pipeline', which is not given",
                   "with one list it says who makes a sample and changes nothing in it: write loader.cpu_fraction");
    return;
  }
  const size_t before = complaints.count();
  read_pipeline(*gpu, path + ".gpu_pipeline", 0, split.gpu_pipeline, reading);
  if (fraction == nullptr || fraction->is_null()) {
    complaints.add(gpu->span, "'gpu_pipeline' needs 'cpu_fraction' beside it",
                   "write cpu_fraction: 0.3 for three samples of ten to be made by 'pipeline'");
  }
  if (!good || complaints.count() != before) return;
  const size_t first = begin_of_finish(split.pipeline);
  const size_t begin = begin_of_finish(split.gpu_pipeline);
  for (size_t i = 0; first + i < split.pipeline.size() || begin + i < split.gpu_pipeline.size(); ++i) {
    const bool missing = begin + i >= split.gpu_pipeline.size();
    const bool more = first + i >= split.pipeline.size();
    if (!missing && !more && split.pipeline[first + i] == split.gpu_pipeline[begin + i]) continue;
    complaints.add(
        missing ? gpu->span : gpu->items[begin + i].span,
        missing ? "'gpu_pipeline' ends without the " + in_quotes(split.pipeline[first + i].name) + " of 'pipeline'"
                : "'gpu_pipeline' ends otherwise than 'pipeline', from " +
                      in_quotes(split.gpu_pipeline[begin + i].name) + " on",
        "a batch has samples of both: let them end with the same ToDtype, Normalize, MixUp and CutMix");
    return;
  }
}

}  // namespace penstock
