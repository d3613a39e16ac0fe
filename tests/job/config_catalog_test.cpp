// The job file on the real catalogue of transforms: the issue's own example, the schema, and that every default given
// in the catalogue is one that the parser would accept.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "runtime/job/value_reader.h"
#include "runtime/transforms/catalog.h"
#include "tests/job/job_texts.h"

using namespace penstock;

TEST_CASE("the documented pipeline parses, travels and shows") {
  const Job job = parse_job(good_job, "/j/job.yaml");
  const std::string canonical = canonical_json(resolve_split(job, "train"));
  CHECK(canonical_json(split_from_json(canonical)) == canonical);
  const std::string shown = show_job_text(good_job, "/j/job.yaml", {}, {}, true);
  CHECK(canonical_json(resolve_split(parse_job(shown, "/j/job.yaml"), "train")) == canonical);
}

TEST_CASE("every transform of the catalogue survives show, JSON and back with its defaults") {
  CHECK(transform_catalog().size() >= 8);
  for (const TransformInfo& info : transform_catalog()) {
    std::string params;
    for (const ParamInfo& param : info.params) {
      CHECK(!param.doc.empty());
      if (param.default_value) continue;
      const std::string least = std::to_string(std::llround(std::ceil(std::max(1.0, param.minimum))));
      std::string value = least;
      if (!param.choices.empty()) {
        value = param.choices.back();
      } else if (param.kind == ParamKind::text) {
        value = "a.b:c";
      } else if (param.kind == ParamKind::transforms) {
        value = "[RandomInvert, {RandomChoice: {transforms: [{CenterCrop: {size: 5}}, {Resize: {size: [5, 6]}}]}}]";
      } else if (param.kind == ParamKind::numbers || param.kind == ParamKind::integers) {
        value = "[" + least;
        for (size_t i = 1; !param.lengths.empty() && i < param.lengths.back(); ++i) value += ", " + least;
        value += "]";
      }
      params += (params.empty() ? "" : ", ") + param.name + ": " + value;
    }
    if (info.name == "RandomResize") params = "min_size: 1, max_size: 2";  // the second is larger
    const std::string before = info.name == "Normalize" ? "{ToDtype: {dtype: float32}}, " : "";
    const std::string text =
        "splits: {t: {dataset: {folder: /d}, pipeline: [" + before + "{" + info.name + ": {" + params + "}}]}}";
    INFO(text);
    const std::string canonical = canonical_json(resolve_split(parse_job(text, "j"), "t"));
    CHECK(canonical_json(split_from_json(canonical)) == canonical);
    const std::string shown = show_job_text(text, "j", {}, {}, false);
    INFO(shown);
    CHECK(canonical_json(resolve_split(parse_job(shown, "j"), "t")) == canonical);
    CHECK(job_schema().find("\"" + info.name + "\"") != std::string::npos);
  }
}

TEST_CASE("what the catalogue's parameters may be") {
  const auto complaint = [](const std::string& transform, const std::string& arithmetic = "exact") -> std::string {
    const std::string before = transform.rfind("Normalize", 0) == 0 ? "{ToDtype: {dtype: float32}}, " : "";
    try {
      (void)parse_job("arithmetic: " + arithmetic + "\nsplits: {t: {dataset: {folder: /d}, pipeline: [" + before + "{" +
                          transform + "}]}}",
                      "j");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::config);
      return error.what();
    }
    return {};
  };
  struct Case {
    const char* transform;
    const char* complaint;  // a part of it; empty: there is none
  };
  const Case cases[] = {
      {"Grayscale", ""},
      {"Grayscale: {num_output_channels: 1}", "only 3 is supported"},
      {"Grayscale: {num_output_channels: 3}", ""},
      {"ColorJitter", ""},
      {"ColorJitter: {hue: 0.6}", "-0.5 to 0.5"},
      {"ColorJitter: {hue: -0.1}", "must not be negative"},
      {"ColorJitter: {brightness: [2, 1]}", "[smaller, larger]"},
      {"ColorJitter: {contrast: 3}", ""},
      {"RandomPhotometricDistort", ""},
      {"RandomPhotometricDistort: {contrast: [2, 1]}", "'RandomPhotometricDistort.contrast': must be [smaller"},
      {"RandomPhotometricDistort: {hue: [-0.6, 0]}", "between -0.5 and 0.5"},
      {"RandomPosterize: {bits: 9}", "between 0 and 8"},
      {"RandomRotation: {degrees: -10}", "must not be negative"},
      {"RandomRotation: {degrees: [-10, -20]}", "[smaller"},
      {"RandomAffine: {degrees: 1, scale: [0, 1]}", "above 0"},
      {"RandomAffine: {degrees: 1, shear: [1, 2, 4, 3]}", "[smaller"},
      {"RandomAffine: {degrees: 1, shear: [1, 2, 3]}", "found 3"},
      {"RandomAffine: {degrees: 1, interpolation: lanczos}", "found the text 'lanczos'"},
      {"GaussianBlur: {kernel_size: 4}", "must be odd"},
      {"GaussianBlur: {kernel_size: 3, sigma: 0}", "GaussianBlur.sigma"},
      {"GaussianNoise: {sigma: -0.1}", "between 0 and 10"},
      {"JPEG: {quality: 0}", "between 1 and 100"},
      {"JPEG: {quality: [80, 20]}", "[smaller, larger]"},
      {"RandomErasing: {value: 0.5}", "found the number 0.5"},
      {"RandAugment: {magnitude: 31}", "num_magnitude_bins"},
      {"AutoAugment: {policy: coco}", "found the text 'coco'"},
      {"CenterCrop: {size: 0}", "between 1 and 65500"},
      {"CenterCrop: {size: [1, 2, 3]}", "expected 1 or 2 values, found 3"},
      {"RandomResizedCrop: {size: 8, scale: [0.9, 0.1]}", "'RandomResizedCrop.scale': must be [sm"},
      {"RandomResizedCrop: {size: 8, scale: [0, 0.1]}", "above 0"},
      {"RandomResizedCrop: {size: 8, antialias: false}", "antialias"},
      {"RandomResizedCrop: {size: 8, interpolation: [bilinear, area]}", "area is OpenCV's"},
      {"Resize: {size: 8, interpolation: cubic}", "bicubic"},
      {"Resize: {size: 8, max_size: 8}", "'Resize.max_size': must be larger"},
      {"Resize: {size: null, max_size: 8}", ""},
      {"Resize: {size: [8, 8], max_size: 9}", "'Resize.max_size': is only"},
      {"RandomResize: {min_size: 8, max_size: 8}", "larger than min_size"},
      {"RandomShortestSize: {min_size: []}", "expected at least one value"},
      {"RandomShortestSize: {min_size: [8, 9, 10], max_size: 7}", ""},
      {"ScaleJitter: {target_size: [8]}", "expected 2 values, found 1"},
      {"ScaleJitter: {target_size: [8, 8], scale_range: [2, 1]}", "[smaller"},
      {"RandomCrop: {size: 8, padding_mode: wrap}", "constant"},
      {"RandomCrop: {size: 8, fill: 256}", "between 0 and 255"},
      {"Normalize: {mean: 0.5, std: [1, 0, 1]}", "'Normalize.std': must not be 0"},
      {"RandomApply", "'RandomApply' needs 'transforms'"},
      {"RandomApply: {transforms: []}", "found an empty list"},
      {"RandomChoice: {transforms: [RandomInvert], p: [1, 2]}", "one number for each of the 1 transforms"},
      {"RandomOrder: {transforms: [{Python: {function: 'a:b'}}]}", "Python cannot stand inside"},
      {"RandomOrder: {transforms: [{ToDtype: {dtype: float32}}]}", "ToDtype and Normalize cannot"},
      {"RandomApply: {transforms: [ExifTranspose]}", "ExifTranspose cannot stand"},
      {"RandomApply: {transforms: [{FiveCrop: {size: 8}}]}", "FiveCrop"},
      {"Resize: {size: 8, interpolation: lanczos4}", "OpenCV's, and arithmetic is exact"},
      {"RandomApply: {transforms: [{Resize: {size: 8, interpolation: area}}]}", "OpenCV's"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.transform);
    const std::string found = complaint(one.transform);
    CAPTURE(found);
    CHECK(found.empty() == std::string(one.complaint).empty());
    CHECK(found.find(one.complaint) != std::string::npos);
  }
  CHECK(complaint("Resize: {size: 8, antialias: true}", "opencv").find("cv2.resize does not antialias") !=
        std::string::npos);
  CHECK(complaint("Resize: {size: 8, antialias: false}", "opencv").empty());
  CHECK(complaint("Resize: {size: 8, interpolation: box}", "opencv").find("box is Pillow's") != std::string::npos);
  CHECK(complaint("Resize: {size: 8, interpolation: area}", "opencv").empty());
  CHECK(complaint("ExifTranspose", "opencv").find("turned as cv2.imread does") != std::string::npos);
  std::string deep = "RandomInvert";
  for (int i = 0; i < 4; ++i) deep = "{RandomOrder: {transforms: [" + deep + "]}}";
  CHECK(complaint("RandomApply: {transforms: [RandomInvert]}").empty());
  CHECK(complaint(deep.substr(1, deep.size() - 2)).empty());
  CHECK(complaint("RandomOrder: {transforms: [" + deep + "]}").find("more than 4 deep") != std::string::npos);
}

TEST_CASE("a list of numbers that may be a word") {
  const auto job = [](const std::string& value) {
    return "splits: {t: {dataset: {folder: /d}, pipeline: [{CenterCrop: {size: 8}}, {RandomErasing: {value: " + value +
           "}}]}}";
  };
  for (const char* value : {"random", "'random'", "7", "[1, 2, 3]"}) {
    const std::string canonical = canonical_json(resolve_split(parse_job(job(value), "j"), "t"));
    CHECK(canonical_json(split_from_json(canonical)) == canonical);
    CHECK((canonical.find(R"("value":"random")") != std::string::npos) == (std::string(value).find("random") < 2));
    const std::string shown = show_job_text(job(value), "j", {}, {}, false);
    INFO(shown);
    CHECK(canonical_json(resolve_split(parse_job(shown, "j"), "t")) == canonical);
  }
  try {
    (void)parse_job(job("noise"), "j");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(
        std::string(error.what()).find("expected an integer or a list of integers or random, found the text 'noise'") !=
        std::string::npos);
  }
}

TEST_CASE("a word or a list of words") {
  const auto job = [](const std::string& value) {
    return "splits: {t: {dataset: {folder: /d}, pipeline: [{RandomResizedCrop: {size: 8, interpolation: " + value +
           "}}]}}";
  };
  const auto canonical_of = [&](const std::string& value) {
    const std::string canonical = canonical_json(resolve_split(parse_job(job(value), "j"), "t"));
    CHECK(canonical_json(split_from_json(canonical)) == canonical);
    const std::string shown = show_job_text(job(value), "j", {}, {}, false);
    INFO(shown);
    CHECK(canonical_json(resolve_split(parse_job(shown, "j"), "t")) == canonical);
    return canonical;
  };
  CHECK(canonical_of("[bicubic]") == canonical_of("bicubic"));
  CHECK(canonical_of("[bilinear, bicubic]").find(R"("interpolation":["bilinear","bicubic"])") != std::string::npos);
  for (const char* value : {"[]", "[bilinear, 3]", "[[bilinear]]", "{a: b}", "random", "[bilinear, bicubi]"}) {
    CHECK_THROWS_WITH_AS((void)parse_job(job(value), "j"), doctest::Contains("or lanczos4, or a list of these"), Error);
  }
}

TEST_CASE("null where a parameter has to be given and may be null") {
  const auto job = [](const std::string& params) {
    return "splits: {t: {dataset: {folder: /d}, pipeline: [{Resize: {" + params + "}}, {CenterCrop: {size: 8}}]}}";
  };
  const std::string text = job("size: null, max_size: 9");
  const std::string canonical = canonical_json(resolve_split(parse_job(text, "j"), "t"));
  CHECK(canonical.find(R"("max_size":9,"size":null)") != std::string::npos);
  CHECK(canonical_json(split_from_json(canonical)) == canonical);
  CHECK(canonical_json(resolve_split(parse_job(show_job_text(text, "j", {}, {}, false), "j"), "t")) == canonical);
  CHECK_THROWS_WITH_AS((void)parse_job(job("max_size: 9"), "j"), doctest::Contains("'Resize' needs 'size'"), Error);
  CHECK_THROWS_WITH_AS((void)parse_job(job("size: null"), "j"), doctest::Contains("null leaves the size to max_size"),
                       Error);
}

TEST_CASE("a dataset in Python") {
  const auto job = [](const std::string& dataset, const std::string& pipeline = "{Resize: {size: [8, 8]}}") {
    return "splits:\n  t:\n    dataset: " + dataset + "\n    pipeline: [" + pipeline + "]\n";
  };
  const std::string text =
      job(R"({python: "my.data:Photos", args: {root: /x, count: 3, share: 0.5, deep: {list: [1, yes, null, "2"]}},
             path: "../src:/lib"})");
  const Job parsed = parse_job(text, "/j/job.yaml");
  const DatasetSpec& dataset = parsed.splits.at("t").dataset;
  CHECK(dataset.args == R"({"count":3,"deep":{"list":[1,"yes",null,"2"]},"root":"/x","share":0.5})");
  CHECK(dataset.path == "/src:/lib");
  CHECK(dataset.title() == "my.data:Photos");
  const std::string canonical = canonical_json(resolve_split(parsed, "t"));
  CHECK(canonical_json(split_from_json(canonical)) == canonical);
  const std::string shown = show_job_text(text, "/j/job.yaml", {}, {}, true);
  INFO(shown);
  CHECK(canonical_json(resolve_split(parse_job(shown, "/elsewhere/job.yaml"), "t")) == canonical);
  CHECK(first_difference(canonical, canonical_json(resolve_split(
                                        parse_job(text, "/j/job.yaml", {"splits.t.dataset.args.count=4"}), "t"))) ==
        "splits.t.dataset.args.count: 3 here, 4 there");
  // Modules are looked for beside the job file, where anything is in Python.
  CHECK(parse_job(job("{python: \"a:b\"}"), "/j/job.yaml").splits.at("t").dataset.path == "/j");
  CHECK(parse_job(job("{folder: /d}", "{Resize: {size: [8, 8]}}, {Python: {function: \"a:b\"}}"), "/j/job.yaml")
            .splits.at("t")
            .dataset.path == "/j");
  CHECK(parse_job(job("{folder: /d}"), "/j/job.yaml").splits.at("t").dataset.path.empty());
  const auto complaint = [&](const std::string& dataset_text) -> std::string {
    try {
      (void)parse_job(job(dataset_text), "j");
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  CHECK(complaint("{python: \"a:b\", folder: /d}")
            .find("a dataset has one of folder, images, tar, cifar10, cifar100, mnist, list, csv, mds, tfrecord, "
                  "parquet, pack, python and pickle") != std::string::npos);
  CHECK(complaint("{python: data.py}").find("expected 'package.module:name', found the text 'data.py'") !=
        std::string::npos);
  CHECK(complaint("{folder: /d, args: {a: 1}}").find("'args' are those of 'python'") != std::string::npos);
  CHECK(complaint("{images: /d, folder: /d, masks: /m}").find("a dataset has one of") != std::string::npos);
  CHECK(complaint("{images: /d}").find("'images' needs 'targets' or 'masks' beside it") != std::string::npos);
  CHECK(complaint("{folder: /d, masks: /m}").find("'masks' belong to 'images', which is not given") !=
        std::string::npos);
  const DatasetSpec paired =
      parse_job(job("{images: a, targets: /b, masks: ../c/}"), "/j/job.yaml").splits.at("t").dataset;
  CHECK(paired.images == "/j/a");
  CHECK(paired.targets == "/b");
  CHECK(paired.masks == "/c");
  CHECK(complaint("{python: \"a:b\", args: 3}").find("expected a mapping, found the integer 3") != std::string::npos);
}

TEST_CASE("mistakes in transforms inside transforms have their line and column") {
  const auto job = [](const std::string& inside) {
    return "splits:\n  t:\n    dataset: {folder: /d}\n    pipeline:\n      - RandomApply:\n          transforms:\n" +
           inside + "      - CenterCrop: {size: 8}\n";
  };
  const auto complaint = [&](const std::string& inside) -> std::string {
    try {
      (void)parse_job(job(inside), "job.yaml");
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  const std::string good = "            - RandomInvert: {p: 0.25}\n            - RandomHorizontalFlip\n";
  CHECK(complaint(good).empty());
  CHECK(complaint("            - RandomInvert: {q: 0.25}\n") ==
        "job.yaml:7:30: error: unknown parameter 'q' of 'RandomInvert'\n"
        "    7 |             - RandomInvert: {q: 0.25}\n"
        "      |                              ^ it takes p");
  CHECK(complaint("            - RandomInvret\n") ==
        "job.yaml:7:15: error: unknown transform 'RandomInvret'\n"
        "    7 |             - RandomInvret\n"
        "      |               ^~~~~~~~~~~~ did you mean 'RandomInvert'?");
  CHECK(complaint("            - RandomInvert: {p: 2}\n")
            .find("'splits.t.pipeline.0.RandomApply.transforms.0.RandomInvert.p' is 2; it must be between 0 and 1") !=
        std::string::npos);
  CHECK(complaint("            - ToDtype: {dtype: uint8}\n").find("job.yaml:7:13: error: 'RandomApply.transforms'") ==
        0);
  CHECK(complaint("            5\n").find("expected a list of transforms, found the integer 5") != std::string::npos);
  const std::string canonical = canonical_json(resolve_split(parse_job(job(good), "/j"), "t"));
  CHECK(canonical.find(R"({"RandomApply":{"p":0.5,"transforms":[{"RandomInvert":{"p":0.25}},)") != std::string::npos);
  CHECK(first_difference(canonical,
                         canonical_json(resolve_split(parse_job(job("            - RandomInvert\n"), "/j"), "t"))) ==
        "splits.t.pipeline.0.RandomApply.transforms.0.RandomInvert.p: 0.25 here, 0.5 there");
}
