// The job file on the real catalogue of transforms: the issue's own example, the schema, and that every default given
// in the catalogue is one that the parser would accept.
#include <doctest/doctest.h>

#include "runtime/augment/catalog.h"
#include "runtime/config/value_reader.h"
#include "tests/config/job_texts.h"

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
      std::string value = "1";
      if (!param.choices.empty()) {
        value = param.choices.back();
      } else if (param.kind == ParamKind::numbers || param.kind == ParamKind::integers) {
        value = "[1";
        for (size_t i = 1; !param.lengths.empty() && i < param.lengths.back(); ++i) value += ", 1";
        value += "]";
      }
      params += (params.empty() ? "" : ", ") + param.name + ": " + value;
    }
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
