// The catalogue of transforms: every name a job file may use, with its parameters.
//
//   const TransformInfo* info = find_transform("CenterCrop");
//   ParamMap params = complete_params(*info, {{"size", int64_t{224}}});  // defaults filled in
//   Transform crop = info->make(params);
//
// Adding one: see runtime/README.md, Where to add something.
// Thread-safety: the catalogue is built once and never changes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/params.h"

namespace penstock {

struct Transform;  // transform.h

struct TransformInfo {
  std::string name;  // torchvision v2's, where it has such a transform
  std::string doc;
  std::vector<ParamInfo> params;
  // Checks what one parameter cannot: "scale must be increasing". Returns the complaint, empty when fine; `culprit`
  // names the parameter to point at. The map is complete and each value has passed its own ParamInfo.
  std::function<std::string(const ParamMap&, std::string& culprit)> check{};
  // Takes a map that complete_params() returned.
  std::function<Transform(const ParamMap&)> make{};
  bool batch = false;  // mixes whole finished batches: stands after ToDtype and Normalize
};

const std::vector<TransformInfo>& transform_catalog();
const TransformInfo* find_transform(const std::string& name);  // nullptr when there is none

// MixUp, CutMix, or a group of them.
bool is_batch_transform(const TransformSpec& spec);

// Fills in defaults, also of transforms inside it. What is given was checked by whoever read it (job/pipeline_reader.h).
// Throws Error(config) where a parameter is missing.
ParamMap complete_params(const TransformInfo& info, const ParamMap& given, Arithmetic arithmetic = Arithmetic::exact);

// The value in the one type that a parameter of the kind has: 3 becomes 3.0 where a number is wanted, [3] where a list is.
inline ParamValue in_kind(const ParamValue& value, ParamKind kind) {
  const auto* integer = std::get_if<int64_t>(&value);
  const auto* number = std::get_if<double>(&value);
  if (kind == ParamKind::number && integer != nullptr) return static_cast<double>(*integer);
  if (kind == ParamKind::numbers || kind == ParamKind::integers) {
    if (integer != nullptr) return std::vector<double>{static_cast<double>(*integer)};
    if (number != nullptr) return std::vector<double>{*number};
  }
  return value;
}

// A parameter's default: antialias is true but for arithmetic: opencv. The parameter must have one.
ParamValue default_of(const ParamInfo& param, Arithmetic arithmetic);

// Why a transform, whose parameters are complete, does not go with the job's arithmetic; empty: it does. `culprit`: the
// parameter, or nothing.
std::string misfit_of(const TransformSpec& spec, Arithmetic arithmetic, std::string& culprit);

// The canonical text of a transform: "CenterCrop(size=[224])", with every parameter, in the order of the map. Numbers
// are printed with the fewest digits that read back as the same double.
std::string canonical_text(const TransformSpec& spec);

}  // namespace penstock
