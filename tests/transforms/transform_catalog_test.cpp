#include "runtime/transforms/catalog.h"

#include <doctest/doctest.h>

#include "runtime/base/error.h"
#include "runtime/transforms/transform.h"

using penstock::complete_params;
using penstock::Error;
using penstock::find_transform;
using penstock::ParamMap;
using penstock::TransformInfo;

namespace {

const TransformInfo& entry(const char* name) {
  const TransformInfo* info = find_transform(name);
  REQUIRE(info != nullptr);
  return *info;
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

TEST_CASE("defaults are torchvision v2's") {
  const ParamMap params = complete_params(entry("RandomResizedCrop"), {{"size", int64_t{224}}});
  CHECK(std::get<std::vector<double>>(params.at("scale")) == std::vector<double>{0.08, 1.0});
  CHECK(std::get<std::vector<double>>(params.at("ratio")) == std::vector<double>{3.0 / 4, 4.0 / 3});
  CHECK(std::get<std::string>(params.at("interpolation")) == "bilinear");
  CHECK(std::get<bool>(params.at("antialias")));
  CHECK(std::get<double>(complete_params(entry("RandomHorizontalFlip"), {}).at("p")) == 0.5);
  const ParamMap crop = complete_params(entry("RandomCrop"), {{"size", int64_t{32}}});
  CHECK(std::holds_alternative<std::monostate>(crop.at("padding")));
  CHECK_FALSE(std::get<bool>(crop.at("pad_if_needed")));
  CHECK(std::get<std::vector<double>>(crop.at("fill")) == std::vector<double>{0});
  CHECK_FALSE(std::get<bool>(complete_params(entry("ToDtype"), {{"dtype", std::string("float32")}}).at("scale")));
}

TEST_CASE("numbers are taken where lists or doubles are wanted") {
  CHECK(std::get<std::vector<double>>(complete_params(entry("CenterCrop"), {{"size", int64_t{7}}}).at("size")) ==
        std::vector<double>{7});
  CHECK(std::get<double>(complete_params(entry("RandomHorizontalFlip"), {{"p", int64_t{1}}}).at("p")) == 1.0);
}

TEST_CASE("a parameter that has to be given, and two values where one or several may be") {
  CHECK_THROWS_WITH_AS(complete_params(entry("CenterCrop"), {}), doctest::Contains("CenterCrop: size: is required"),
                       Error);
  const ParamMap two =
      complete_params(entry("RandomResizedCrop"),
                      {{"size", int64_t{8}}, {"interpolation", std::vector<std::string>{"bilinear", "bicubic"}}});
  CHECK(penstock::canonical_text({"RandomResizedCrop", two}).find("interpolation=[bilinear, bicubic]") !=
        std::string::npos);
}

TEST_CASE("canonical text has every parameter and the shortest numbers") {
  CHECK(penstock::canonical_text({"RandomHorizontalFlip", complete_params(entry("RandomHorizontalFlip"), {})}) ==
        "RandomHorizontalFlip(p=0.5)");
  CHECK(penstock::canonical_text(
            {"RandomResizedCrop", complete_params(entry("RandomResizedCrop"), {{"size", int64_t{224}}})}) ==
        "RandomResizedCrop(antialias=true, interpolation=bilinear, ratio=[0.75, 1.3333333333333333], "
        "scale=[0.08, 1], size=[224])");
}

TEST_CASE("transforms inside transforms are completed like any others") {
  using Inside = std::vector<penstock::TransformSpec>;
  const ParamMap params = complete_params(entry("RandomApply"), {{"transforms", Inside{{"RandomInvert", {}}}}});
  CHECK(penstock::canonical_text({"RandomApply", params}) == "RandomApply(p=0.5, transforms=[RandomInvert(p=0.5)])");
}
