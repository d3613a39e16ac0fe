// The transforms there are, as catalogue entries: one function a transform, each in a file of its family.
//
// Adding one: write its class and entry beside its relatives, declare the entry here, list it in catalog.cpp.
// The helpers below read a ParamMap that resolve_params() has completed and checked.
#pragma once

#include <string>
#include <vector>

#include "runtime/augment/catalog.h"
#include "runtime/augment/transform.h"

namespace penstock {

TransformInfo random_resized_crop_info();     // random_resized_crop.cpp
TransformInfo resize_info();                  // resize.cpp
TransformInfo center_crop_info();             // crop.cpp
TransformInfo random_crop_info();             // crop.cpp
TransformInfo pad_info();                     // crop.cpp
TransformInfo five_crop_info();               // crop.cpp
TransformInfo ten_crop_info();                // crop.cpp
TransformInfo random_horizontal_flip_info();  // flip.cpp
TransformInfo random_vertical_flip_info();    // flip.cpp
TransformInfo random_invert_info();           // random_invert.cpp
TransformInfo random_apply_info();            // groups.cpp
TransformInfo random_choice_info();           // groups.cpp
TransformInfo random_order_info();            // groups.cpp
TransformInfo python_info();                  // python.cpp
TransformInfo to_dtype_info();                // to_dtype.cpp
TransformInfo normalize_info();               // to_dtype.cpp
TransformInfo mix_up_info();                  // mix.cpp
TransformInfo cut_mix_info();                 // mix.cpp

// Largest side that a parameter may ask for; keeps every product of sizes far inside 64 bits.
constexpr int kMaxSide = 65500;

bool is_given(const ParamMap& params, const std::string& name);  // false for null
double number_param(const ParamMap& params, const std::string& name);
bool boolean_param(const ParamMap& params, const std::string& name);
const std::string& text_param(const ParamMap& params, const std::string& name);
const std::vector<double>& list_param(const ParamMap& params, const std::string& name);
int64_t integer_param(const ParamMap& params, const std::string& name);
std::vector<std::unique_ptr<Transform>> transforms_param(const ParamMap& params, const std::string& name);
// `size: 224`, `size: [224]` and `size: [height, width]`.
Size size_param(const ParamMap& params, const std::string& name);
Filter filter_param(const ParamMap& params, const std::string& name);

// Parameters that several transforms share.
ParamInfo size_info(const std::string& doc);
ParamInfo interpolation_info();
ParamInfo antialias_info();
std::string check_antialias(const ParamMap& params, std::string& culprit);

}  // namespace penstock
