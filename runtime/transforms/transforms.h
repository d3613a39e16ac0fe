// The transforms there are, as catalogue entries: one function a transform, each in a file of its family.
//
// Adding one: see runtime/README.md, Where to add something.
// The helpers below read a ParamMap that complete_params() has completed.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/transforms/catalog.h"
#include "runtime/transforms/transform.h"

namespace penstock {

TransformInfo exif_transpose_info();              // exif_transpose.cpp
TransformInfo identity_info();                    // identity.cpp
TransformInfo rgb_info();                         // identity.cpp
TransformInfo random_resized_crop_info();         // random_resized_crop.cpp
TransformInfo resize_info();                      // resize.cpp
TransformInfo random_resize_info();               // resize.cpp
TransformInfo random_shortest_size_info();        // resize.cpp
TransformInfo scale_jitter_info();                // resize.cpp
TransformInfo center_crop_info();                 // crop.cpp
TransformInfo random_crop_info();                 // crop.cpp
TransformInfo pad_info();                         // crop.cpp
TransformInfo five_crop_info();                   // crop.cpp
TransformInfo ten_crop_info();                    // crop.cpp
TransformInfo random_horizontal_flip_info();      // flip.cpp
TransformInfo random_vertical_flip_info();        // flip.cpp
TransformInfo grayscale_info();                   // random_color.cpp
TransformInfo random_grayscale_info();            // random_color.cpp
TransformInfo random_channel_permutation_info();  // random_color.cpp
TransformInfo random_invert_info();               // random_color.cpp
TransformInfo random_posterize_info();            // random_color.cpp
TransformInfo random_solarize_info();             // random_color.cpp
TransformInfo random_adjust_sharpness_info();     // random_color.cpp
TransformInfo random_autocontrast_info();         // random_color.cpp
TransformInfo random_equalize_info();             // random_color.cpp
TransformInfo color_jitter_info();                // random_color.cpp
TransformInfo random_photometric_distort_info();  // random_color.cpp
TransformInfo random_rotation_info();             // random_warp.cpp
TransformInfo random_affine_info();               // random_warp.cpp
TransformInfo random_perspective_info();          // random_warp.cpp
TransformInfo gaussian_blur_info();               // random_blur.cpp
TransformInfo gaussian_noise_info();              // gaussian_noise.cpp
TransformInfo jpeg_info();                        // jpeg.cpp
TransformInfo random_erasing_info();              // random_erasing.cpp
TransformInfo rand_augment_info();                // policies.cpp
TransformInfo auto_augment_info();                // policies.cpp
TransformInfo trivial_augment_wide_info();        // policies.cpp
TransformInfo aug_mix_info();                     // policies.cpp
TransformInfo random_apply_info();                // groups.cpp
TransformInfo random_choice_info();               // groups.cpp
TransformInfo random_order_info();                // groups.cpp
TransformInfo python_info();                      // python.cpp
TransformInfo to_dtype_info();                    // to_dtype.cpp
TransformInfo normalize_info();                   // to_dtype.cpp
TransformInfo mix_up_info();                      // mix.cpp
TransformInfo cut_mix_info();                     // mix.cpp

// Largest side that a parameter may ask for; keeps every product of sizes far inside 64 bits.
constexpr int kMaxSide = 65500;

bool is_given(const ParamMap& params, const std::string& name);  // false for null
double number_param(const ParamMap& params, const std::string& name);
bool boolean_param(const ParamMap& params, const std::string& name);
const std::string& text_param(const ParamMap& params, const std::string& name);
const std::vector<double>& list_param(const ParamMap& params, const std::string& name);
int64_t integer_param(const ParamMap& params, const std::string& name);
std::vector<Transform> transforms_param(const ParamMap& params, const std::string& name);
// `size: 224`, `size: [224]` and `size: [height, width]`.
Size size_param(const ParamMap& params, const std::string& name);
Filter filter_param(const ParamMap& params, const std::string& name);
std::vector<Filter> filters_param(const ParamMap& params, const std::string& name);  // one or several

Fill fill_param(const ParamMap& params, const std::string& name);  // black for null
Fills fills_param(const ParamMap& params);                         // of fill and mask_fill

// Numbers in a record of draws: in units of 2^-32, which a float or an image's coordinates do not see.
int64_t to_fixed(double value);
double from_fixed(int64_t value);
// A number drawn from [range[0], range[1]], as it is recorded.
int64_t draw_fixed(DrawStream& stream, const std::array<double, 2>& range);

// A parameter of each kind. The default: a value, ParamValue{} for null, {} for a parameter that is required.
using ParamDefault = std::optional<ParamValue>;
ParamInfo boolean_info(const std::string& name, bool value, const std::string& doc);
ParamInfo integer_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                       const std::string& doc);
ParamInfo number_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                      const std::string& doc);
ParamInfo integers_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                        std::vector<size_t> lengths, const std::string& doc);
ParamInfo numbers_info(const std::string& name, ParamDefault value, double minimum, double maximum,
                       std::vector<size_t> lengths, const std::string& doc);

// Parameters that several transforms share.
ParamInfo probability_info(double default_value, const std::string& doc);
// Parameters of a box drawn at random: its share of the image's area, and its ratio of sides.
ParamInfo box_scale_info(double low, double high);
ParamInfo box_ratio_info(double low, double high, const std::string& doc);
ParamInfo fill_info(const std::string& doc);
ParamInfo mask_fill_info();
ParamInfo warp_interpolation_info(const std::string& default_value);
ParamInfo size_info(const std::string& doc);
ParamInfo interpolation_info();
ParamInfo antialias_info();
// A check that each of these lists is [smaller, larger].
std::function<std::string(const ParamMap&, std::string&)> rising(std::vector<std::string> names);

}  // namespace penstock
