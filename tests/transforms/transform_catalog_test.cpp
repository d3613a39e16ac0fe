#include "runtime/transforms/catalog.h"

#include <doctest/doctest.h>

#include "runtime/base/error.h"
#include "runtime/transforms/transform.h"

using penstock::Error;
using penstock::find_transform;
using penstock::ParamMap;
using penstock::ParamValue;
using penstock::resolve_params;
using penstock::TransformInfo;

namespace {

const TransformInfo& entry(const char* name) {
  const TransformInfo* info = find_transform(name);
  REQUIRE(info != nullptr);
  return *info;
}

std::string complaint(const char* name, const ParamMap& given) {
  try {
    resolve_params(entry(name), given);
  } catch (const Error& error) {
    CHECK(error.kind() == penstock::ErrorKind::config);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("the catalogue has torchvision's names, and says what everything is") {
  for (const char* name : {"RandomResizedCrop", "Resize", "CenterCrop", "RandomCrop", "RandomHorizontalFlip",
                           "RandomVerticalFlip", "RandomInvert", "ExifTranspose", "ToDtype", "Normalize"}) {
    CHECK_MESSAGE(find_transform(name) != nullptr, name);
  }
  CHECK(find_transform("randomresizedcrop") == nullptr);
  for (const TransformInfo& info : penstock::transform_catalog()) {
    CHECK_FALSE(info.doc.empty());
    CHECK(info.make);
    for (const penstock::ParamInfo& param : info.params) CHECK_MESSAGE(!param.doc.empty(), info.name << param.name);
  }
}

TEST_CASE("pixel transforms: what the parameters must be") {
  const auto numbers = [](std::vector<double> list) { return penstock::ParamValue(std::move(list)); };
  CHECK(complaint("Grayscale", {}) == "");
  CHECK(complaint("Grayscale", {{"num_output_channels", int64_t{1}}}).find("only 3 is supported") != std::string::npos);
  CHECK(complaint("Grayscale", {{"num_output_channels", int64_t{3}}}) == "");
  CHECK(complaint("ColorJitter", {}) == "");
  CHECK(complaint("ColorJitter", {{"hue", 0.6}}).find("-0.5 to 0.5") != std::string::npos);
  CHECK(complaint("ColorJitter", {{"hue", -0.1}}).find("must not be negative") != std::string::npos);
  CHECK(complaint("ColorJitter", {{"brightness", numbers({2, 1})}}).find("[smaller, larger]") != std::string::npos);
  CHECK(complaint("ColorJitter", {{"contrast", 3.0}}) == "");
  CHECK(complaint("RandomPhotometricDistort", {}) == "");
  CHECK(complaint("RandomPhotometricDistort", {{"contrast", numbers({2, 1})}}).find("contrast: must be [smaller") !=
        std::string::npos);
  CHECK(complaint("RandomPhotometricDistort", {{"hue", numbers({-0.6, 0})}}).find("outside -0.5 to 0.5") !=
        std::string::npos);
  CHECK(complaint("RandomPosterize", {{"bits", int64_t{9}}}) != "");
  CHECK(complaint("RandomRotation", {{"degrees", -10.0}}).find("must not be negative") != std::string::npos);
  CHECK(complaint("RandomRotation", {{"degrees", numbers({-10, -20})}}).find("[smaller") != std::string::npos);
  CHECK(complaint("RandomAffine", {{"degrees", 1.0}, {"scale", numbers({0, 1})}}).find("above 0") != std::string::npos);
  CHECK(complaint("RandomAffine", {{"degrees", 1.0}, {"shear", numbers({1, 2, 4, 3})}}) != "");
  CHECK(complaint("RandomAffine", {{"degrees", 1.0}, {"shear", numbers({1, 2, 3})}}) != "");
  CHECK(complaint("RandomAffine", {{"degrees", 1.0}, {"interpolation", std::string("lanczos")}}) != "");
  CHECK(complaint("GaussianBlur", {{"kernel_size", int64_t{4}}}).find("must be odd") != std::string::npos);
  CHECK(complaint("GaussianBlur", {{"kernel_size", int64_t{3}}, {"sigma", 0.0}}) != "");
  CHECK(complaint("GaussianNoise", {{"sigma", -0.1}}).find("outside 0 to 10") != std::string::npos);
  CHECK(complaint("JPEG", {{"quality", int64_t{0}}}).find("outside 1 to 100") != std::string::npos);
  CHECK(complaint("JPEG", {{"quality", numbers({80, 20})}}).find("[smaller, larger]") != std::string::npos);
  CHECK(complaint("RandomErasing", {{"value", std::string("random")}}) == "");
  CHECK(complaint("RandomErasing", {{"value", std::string("rand")}}) != "");
  CHECK(complaint("RandomErasing", {{"value", 0.5}}) != "");
  CHECK(complaint("RandAugment", {{"magnitude", int64_t{31}}}).find("num_magnitude_bins") != std::string::npos);
  CHECK(complaint("AutoAugment", {{"policy", std::string("coco")}}) != "");
}

TEST_CASE("defaults are torchvision v2's") {
  const ParamMap params = resolve_params(entry("RandomResizedCrop"), {{"size", int64_t{224}}});
  CHECK(std::get<std::vector<double>>(params.at("scale")) == std::vector<double>{0.08, 1.0});
  CHECK(std::get<std::vector<double>>(params.at("ratio")) == std::vector<double>{3.0 / 4, 4.0 / 3});
  CHECK(std::get<std::string>(params.at("interpolation")) == "bilinear");
  CHECK(std::get<bool>(params.at("antialias")));
  CHECK(std::get<double>(resolve_params(entry("RandomHorizontalFlip"), {}).at("p")) == 0.5);
  const ParamMap crop = resolve_params(entry("RandomCrop"), {{"size", int64_t{32}}});
  CHECK(std::holds_alternative<std::monostate>(crop.at("padding")));
  CHECK_FALSE(std::get<bool>(crop.at("pad_if_needed")));
  CHECK(std::get<std::vector<double>>(crop.at("fill")) == std::vector<double>{0});
  CHECK_FALSE(std::get<bool>(resolve_params(entry("ToDtype"), {{"dtype", std::string("float32")}}).at("scale")));
}

TEST_CASE("numbers are taken where lists or doubles are wanted") {
  CHECK(std::get<std::vector<double>>(resolve_params(entry("CenterCrop"), {{"size", int64_t{7}}}).at("size")) ==
        std::vector<double>{7});
  CHECK(std::get<double>(resolve_params(entry("RandomHorizontalFlip"), {{"p", int64_t{1}}}).at("p")) == 1.0);
}

TEST_CASE("what cannot be is refused, naming transform and parameter") {
  using List = std::vector<double>;
  CHECK(complaint("CenterCrop", {}) == "CenterCrop: size: is required");
  CHECK(complaint("CenterCrop", {{"size", int64_t{0}}}).find("size: 0 is outside 1 to 65500") != std::string::npos);
  CHECK(complaint("CenterCrop", {{"size", List{1, 2, 3}}}).find("wrong number of values") != std::string::npos);
  CHECK(complaint("CenterCrop", {{"size", List{1.5}}}).find("integers") != std::string::npos);
  CHECK(complaint("CenterCrop", {{"size", std::string("big")}}).find("list of numbers") != std::string::npos);
  CHECK(complaint("CenterCrop", {{"size", int64_t{1}}, {"sice", int64_t{1}}}).find("sice") != std::string::npos);
  CHECK(complaint("RandomHorizontalFlip", {{"p", 1.5}}).find("p: 1.5 is outside 0 to 1") != std::string::npos);
  CHECK(complaint("RandomHorizontalFlip", {{"p", ParamValue{}}}).find("null") != std::string::npos);
  CHECK(complaint("RandomResizedCrop", {{"size", int64_t{8}}, {"scale", List{0.9, 0.1}}}).find("scale: must be [sm") !=
        std::string::npos);
  CHECK(complaint("RandomResizedCrop", {{"size", int64_t{8}}, {"scale", List{0, 0.1}}}).find("above 0") !=
        std::string::npos);
  CHECK(complaint("RandomResizedCrop", {{"size", int64_t{8}}, {"antialias", false}}).find("antialias") !=
        std::string::npos);
  CHECK(complaint("Resize", {{"size", int64_t{8}}, {"interpolation", std::string("cubic")}}).find("bicubic") !=
        std::string::npos);
  CHECK(complaint("Resize", {{"size", int64_t{8}}, {"max_size", int64_t{8}}}).find("max_size: must be larger") !=
        std::string::npos);
  CHECK(complaint("Resize", {{"size", ParamValue{}}}).find("size: null leaves the size to max_size") !=
        std::string::npos);
  CHECK(complaint("Resize", {{"max_size", int64_t{8}}}) == "Resize: size: is required");
  CHECK(complaint("Resize", {{"size", ParamValue{}}, {"max_size", int64_t{8}}}).empty());
  CHECK(complaint("Resize", {{"size", List{8, 8}}, {"max_size", int64_t{9}}}).find("max_size: is only") !=
        std::string::npos);
  CHECK(complaint("RandomResize", {{"min_size", int64_t{8}}, {"max_size", int64_t{8}}}).find("larger than min_size") !=
        std::string::npos);
  CHECK(complaint("RandomShortestSize", {{"min_size", List{}}}).find("wrong number") != std::string::npos);
  CHECK(complaint("RandomShortestSize", {{"min_size", List{8, 9, 10}}, {"max_size", int64_t{7}}}).empty());
  CHECK(complaint("ScaleJitter", {{"target_size", List{8}}}).find("wrong number") != std::string::npos);
  CHECK(complaint("ScaleJitter", {{"target_size", List{8, 8}}, {"scale_range", List{2, 1}}}).find("[smaller") !=
        std::string::npos);
  CHECK(complaint("RandomCrop", {{"size", int64_t{8}}, {"padding_mode", std::string("wrap")}}).find("constant") !=
        std::string::npos);
  CHECK(complaint("RandomCrop", {{"size", int64_t{8}}, {"fill", int64_t{256}}}).find("fill") != std::string::npos);
  CHECK(complaint("Normalize", {{"mean", 0.5}, {"std", List{1, 0, 1}}}).find("std: must not be 0") !=
        std::string::npos);
}

TEST_CASE("a list of texts: of one it is that one, and each must be known") {
  using Texts = std::vector<std::string>;
  const auto crop = [](ParamValue interpolation) -> ParamMap {
    return {{"size", int64_t{8}}, {"interpolation", std::move(interpolation)}};
  };
  const ParamMap one = resolve_params(entry("RandomResizedCrop"), crop(Texts{"bicubic"}));
  CHECK(std::get<std::string>(one.at("interpolation")) == "bicubic");
  const ParamMap two = resolve_params(entry("RandomResizedCrop"), crop(Texts{"bilinear", "bicubic"}));
  CHECK(penstock::canonical_text({"RandomResizedCrop", two}).find("interpolation=[bilinear, bicubic]") !=
        std::string::npos);
  CHECK(complaint("RandomResizedCrop", crop(Texts{"bilinear", "random"})).find("'random' is none of") !=
        std::string::npos);
  CHECK(complaint("RandomResizedCrop", crop(Texts{})).find("must not be empty") != std::string::npos);
  CHECK(complaint("RandomResizedCrop", crop(int64_t{2})).find("a text or a list of texts") != std::string::npos);
  CHECK(complaint("RandomResizedCrop", crop(Texts{"bilinear", "area"})).find("area is OpenCV's") != std::string::npos);
  CHECK(complaint("Resize", crop(Texts{"bilinear", "bicubic"})).find("must be a text") != std::string::npos);
}

TEST_CASE("canonical text has every parameter and the shortest numbers") {
  CHECK(penstock::canonical_text({"RandomHorizontalFlip", resolve_params(entry("RandomHorizontalFlip"), {})}) ==
        "RandomHorizontalFlip(p=0.5)");
  CHECK(penstock::canonical_text(
            {"RandomResizedCrop", resolve_params(entry("RandomResizedCrop"), {{"size", int64_t{224}}})}) ==
        "RandomResizedCrop(antialias=true, interpolation=bilinear, ratio=[0.75, 1.3333333333333333], "
        "scale=[0.08, 1], size=[224])");
}

TEST_CASE("transforms inside transforms are completed and checked like any others") {
  using penstock::TransformSpec;
  using Inside = std::vector<TransformSpec>;
  const ParamMap params = resolve_params(entry("RandomApply"), {{"transforms", Inside{{"RandomInvert", {}}}}});
  CHECK(penstock::canonical_text({"RandomApply", params}) == "RandomApply(p=0.5, transforms=[RandomInvert(p=0.5)])");
  CHECK(complaint("RandomApply", {}).find("transforms: is required") != std::string::npos);
  CHECK(complaint("RandomApply", {{"transforms", Inside{}}}).find("must not be empty") != std::string::npos);
  CHECK(complaint("RandomApply", {{"transforms", 0.5}}).find("must be a list of transforms") != std::string::npos);
  CHECK(complaint("RandomChoice", {{"transforms", Inside{{"Invert", {}}}}}).find("there is no transform 'Invert'") !=
        std::string::npos);
  CHECK(complaint("RandomChoice", {{"transforms", Inside{{"RandomInvert", {{"p", 2.0}}}}}})
            .find("RandomInvert: p: 2 is outside 0 to 1") != std::string::npos);
  CHECK(complaint("RandomChoice", {{"transforms", Inside{{"RandomInvert", {}}}}, {"p", std::vector<double>{1, 2}}})
            .find("one number for each of the 1 transforms") != std::string::npos);
  CHECK(complaint("RandomOrder", {{"transforms", Inside{{"Python", {{"function", std::string("a:b")}}}}}})
            .find("Python cannot stand inside") != std::string::npos);
  CHECK(complaint("RandomOrder", {{"transforms", Inside{{"ToDtype", {{"dtype", std::string("float32")}}}}}})
            .find("ToDtype and Normalize cannot") != std::string::npos);
  CHECK(complaint("RandomApply", {{"transforms", Inside{{"ExifTranspose", {}}}}}).find("ExifTranspose cannot stand") !=
        std::string::npos);
  TransformSpec deep{"RandomInvert", {}};
  for (int i = 0; i < 4; ++i) deep = {"RandomOrder", {{"transforms", Inside{deep}}}};
  CHECK(complaint(deep.name.c_str(), deep.params).empty());
  deep = {"RandomOrder", {{"transforms", Inside{deep}}}};
  CHECK(complaint(deep.name.c_str(), deep.params).find("more than 4 deep") != std::string::npos);
}
