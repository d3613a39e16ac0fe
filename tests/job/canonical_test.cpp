// What travels between ranks: the canonical form, its checks, the first difference; and the schema.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "runtime/base/json_text.h"
#include "runtime/job/key_table.h"
#include "runtime/job/saved_difference.h"
#include "runtime/transforms/catalog.h"
#include "tests/job/job_texts.h"

using namespace penstock;
using Json = nlohmann::json;

namespace {
ResolvedSplit train(const std::vector<std::string>& overrides = {}) {
  return resolve_split(parse_job(good_job, "/j/job.yaml", overrides), "train");
}
std::string canonical(const std::vector<std::string>& overrides = {}) {
  return canonical_json(train(overrides));
}
}  // namespace

TEST_CASE("the canonical form, to the character") {
  CHECK(
      canonical({"splits.train.pipeline=[{RandomResizedCrop: {size: 224}}, RandomHorizontalFlip]"}) ==
      R"({"arithmetic":"exact","bad_samples":{"max_count":100,"max_fraction":0.01},)"
      R"("limits":{"max_encoded_bytes":268435456,"max_pixels":178956970,"max_scans":100,"max_side":65500,)"
      R"("max_warnings":100},"name":"train","on_error":"substitute","seed":7,)"
      R"("split":{"batch_size":64,"channels_last":false,"dataset":{"folder":"/j/photos/train"},"drop_last":false,)"
      R"("mode":"train","pipeline":[)"
      R"({"RandomResizedCrop":{"interpolation":"bilinear","scale":[0.08,1.0],"size":[224]}},)"
      R"({"RandomHorizontalFlip":{"p":0.5}}],"sampler":{"drop_last":false,"shuffle":true},"tail":"torch"},"version":1})");
}

TEST_CASE("what does not change the stream is not in it; what does, is") {
  for (const char* same : {"loader.threads=1", "loader.cpu_fraction=0.3", "loader.cpu_fraction=auto",
                           "loader.executor=gpu", "loader.nvjpeg=interpolated", "loader.prefetch=9", "transport=mpi",
                           "roles.trainers=1", "name=x", "balancer.policy=random", "mpi.max_message_bytes=4096",
                           "splits.val.batch_size=1", "splits.train.pipeline.1.RandomHorizontalFlip.p=0.5"}) {
    INFO(same);
    CHECK(canonical({same}) == canonical());
  }
  CHECK(canonical({"arithmetic=opencv", "exif=false"}) != canonical({"arithmetic=opencv"}));
  for (const char* other :
       {"seed=8", "arithmetic=fast", "color=bgr", "on_error=fail", "bad_samples.max_count=1", "limits.max_scans=9",
        "limits.max_field_bytes=9", "splits.train.batch_size=2", "splits.train.mode=eval", "splits.train.tail=pad",
        "splits.train.drop_last=true", "splits.train.channels_last=true", "splits.train.sampler.shuffle=false",
        "splits.train.sampler.drop_last=true", "splits.train.dataset.folder=/x",
        "splits.train.pipeline.1.RandomHorizontalFlip.p=0.25"}) {
    INFO(other);
    CHECK(canonical({other}) != canonical());
  }
}

TEST_CASE("round trip") {
  for (const std::vector<std::string>& overrides :
       std::vector<std::vector<std::string>>{{},
                                             {"splits.train.mode=eval", "seed=9223372036854775807"},
                                             {"splits.train.dataset.folder=/d/\u65e5 'x' \"y\" #"},
                                             {"splits.train.pipeline.1.RandomHorizontalFlip.p=0.1", "on_error=fail"},
                                             {"arithmetic=opencv", "color=bgr", "exif=false"},
                                             {"bad_samples.max_fraction=0.3333333333333333", "limits.max_side=9"},
                                             {"splits.train.pipeline=[{Resize: {size: [8, 9], max_size: 12}}]"}}) {
    const ResolvedSplit split = train(overrides);
    const std::string text = canonical_json(split);
    const ResolvedSplit again = split_from_json(text);
    CHECK(canonical_json(again) == text);
    CHECK(again.name == "train");
    CHECK(again.seed == split.seed);
    CHECK(again.on_error == split.on_error);
    CHECK(again.limits == split.limits);
    CHECK(again.bad_samples.max_fraction == split.bad_samples.max_fraction);
    CHECK(again.split.mode == split.split.mode);
    CHECK(again.split.dataset.folder == split.split.dataset.folder);
    REQUIRE(again.split.pipeline.size() == split.split.pipeline.size());
    for (size_t i = 0; i < split.split.pipeline.size(); ++i) {
      CHECK(again.split.pipeline[i].name == split.split.pipeline[i].name);
      CHECK((again.split.pipeline[i].params == split.split.pipeline[i].params));
    }
  }
  ResolvedSplit all_bits = train();  // a job made in code may use all 64 bits of the seed
  all_bits.seed = ~uint64_t{0};
  CHECK(split_from_json(canonical_json(all_bits)).seed == ~uint64_t{0});
}

TEST_CASE("a second list of transforms is part of the stream, and so is the share of the first") {
  const std::vector<std::string> both{
      "splits.train.cpu_fraction=0",
      "splits.train.gpu_pipeline=[{Resize: {size: 224}}, {ToDtype: {dtype: float32, scale: true}}, "
      "{Normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}]"};
  const std::string text = canonical(both);
  CHECK(text != canonical());
  CHECK(text.find(R"("gpu_pipeline":[{"Resize":{"max_size":null,"size":[224]}},)") != std::string::npos);
  CHECK(text.find(R"("cpu_fraction":0.0)") != std::string::npos);
  const ResolvedSplit again = split_from_json(text);
  CHECK(canonical_json(again) == text);
  CHECK(again.split.gpu_pipeline.size() == 3);
  CHECK(again.split.cpu_fraction == 0.0);
  std::vector<std::string> other = both;
  other[0] = "splits.train.cpu_fraction=0.25";
  CHECK(first_difference(text, canonical(other)) == "splits.train.cpu_fraction: 0.0 here, 0.25 there");
  CHECK(first_difference(canonical(), text).starts_with("splits.train.cpu_fraction: absent here, "));
  other = both;
  other.emplace_back("splits.train.gpu_pipeline.Resize.size=223");
  CHECK(first_difference(text, canonical(other)).starts_with("splits.train.gpu_pipeline.0.Resize.size: "));
  // Shown, it reads back; without it, nothing of it is there.
  const std::string shown = show_job_text(good_job, "/j/job.yaml", both, {}, true);
  CHECK(canonical_json(resolve_split(parse_job(shown, "/j/job.yaml"), "train")) == text);
  CHECK(shown.find("    gpu_pipeline:                       # command line\n") != std::string::npos);
  CHECK(show_job_text(good_job, "/j/job.yaml", {}, {}, true).find("gpu_pipeline") == std::string::npos);
}

TEST_CASE("a peer's description is checked like a file") {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      split_from_json(text);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::config ? error.what() : "WRONG KIND";
    }
    return "accepted";
  };
  CHECK(refused(canonical()) == "accepted");
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json json = parse_json(canonical());
    json[Json::json_pointer(pointer)] = value;
    return refused(json_text(json));
  };
  const auto says = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  says(with("/split/batch_size", 0), "'splits.train.batch_size' is 0; it must be between 1 and 1048576");
  says(with("/split/batch_size", "64"), "expected an integer, found the text '64'");
  says(with("/split/batchsize", 1), "unknown key 'batchsize'");
  says(with("/split/dataset/folder", "relative"), "is not an absolute path");
  says(with("/split/dataset/folder", std::string("/a\0b", 4)), "contains a zero byte");
  says(with("/split/pipeline/0", Json{{"Evil", Json::object()}}), "unknown transform 'Evil'");
  says(with("/split/pipeline/0/RandomResizedCrop/size", Json::array({0})), "it must be at least 1");
  says(with("/split/pipeline", Json::array()), "found an empty list");
  says(with("/version", 2), "another version");
  says(with("/name", "../x"), "no valid name");
  says(with("/seed", -1), "no valid seed");
  says(with("/seed", 1e300), "no valid seed");
  says(with("/loader", 1), "unknown key 'loader'");
  says(with("/limits/max_side", 1e10), "expected an integer");
  says(refused(""), "it is not JSON");
  says(refused("[]"), "it is not an object");
  says(refused(std::string(100000, '[')), "nested too deeply");
  says(refused(std::string(size_t{2} << 20, ' ')), "larger than 1 MiB");
}

TEST_CASE("random mutations of a description never crash") {
  const uint64_t seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const std::string good = canonical();
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (size_t i = 1 + random() % 3; i > 0; --i) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = static_cast<char>(random());
      } else {
        text.replace(at, random() % 4, good.substr(random() % good.size(), random() % 10));
      }
    }
    try {
      const ResolvedSplit split = split_from_json(text);
      CHECK(canonical_json(split_from_json(canonical_json(split))) == canonical_json(split));
    } catch (const Error& error) {
      ++refused;
      CHECK(error.kind() == ErrorKind::config);
    }
    CHECK_NOTHROW(first_difference(good, text));
  }
  CHECK(refused > 1000);
}

TEST_CASE("the first difference is named as in the job file") {
  const std::string base = canonical();
  CHECK(first_difference(base, base).empty());
  CHECK(first_difference(base, canonical({"splits.train.batch_size=32"})) ==
        "splits.train.batch_size: 64 here, 32 there");
  CHECK(first_difference(base, canonical({"seed=1"})) == "seed: 7 here, 1 there");
  CHECK(first_difference(base, canonical({"splits.train.dataset.folder=/x"})) ==
        "splits.train.dataset.folder: /j/photos/train here, /x there");
  CHECK(first_difference(base, canonical({"splits.train.pipeline.0.RandomResizedCrop.size=192"})) ==
        "splits.train.pipeline.0.RandomResizedCrop.size: [224] here, [192] there");
  CHECK(first_difference(canonical({"splits.train.pipeline=[RandomVerticalFlip]"}),
                         canonical({"splits.train.pipeline=[RandomVerticalFlip, RandomHorizontalFlip]"})) ==
        R"(splits.train.pipeline.1: absent here, {"RandomHorizontalFlip":{"p":0.5}} there)");
  CHECK(first_difference(base, "nonsense") == "one of the two is not a split description of this version");
  CHECK(difference_since_saved(base, base).empty());
  CHECK(difference_since_saved(base, canonical({"splits.train.batch_size=32"})) ==
        "splits.train.batch_size (saved: 64, now: 32)");
  CHECK(difference_since_saved(canonical({"splits.train.pipeline=[RandomVerticalFlip]"}),
                               canonical({"splits.train.pipeline=[RandomVerticalFlip, RandomHorizontalFlip]"})) ==
        R"(splits.train.pipeline.1 (saved: absent, now: {"RandomHorizontalFlip":{"p":0.5}}))");
}

TEST_CASE("resolve_split names what there is") {
  const Job job = parse_job(good_job, "job.yaml");
  try {
    resolve_split(job, "trian");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()) == "job.yaml has no split 'trian'\n  help: did you mean 'train'?");
  }
  CHECK_THROWS_WITH_AS(resolve_split(job, "zzz"), doctest::Contains("it has train and val"), Error);
}

TEST_CASE("the schema is JSON and describes every key and transform") {
  const Json schema = parse_json(job_schema());
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  CHECK(schema["additionalProperties"] == false);
  CHECK(schema["required"] == Json::array({"splits"}));
  const Json& split = schema["definitions"]["split"];
  int keys = 0;
  const auto check_level = [&](const auto& sections, const Json& level) {
    for (const auto& section : sections) {
      const Json& place = section.name.empty() ? level : level["properties"][section.name];
      CHECK(place["additionalProperties"] == false);
      for (const auto& key : section.keys) {
        INFO(section.name << "." << key.info.name);
        REQUIRE(place["properties"].contains(key.info.name));
        const Json& entry = place["properties"][key.info.name];
        CHECK(entry["description"] == key.info.doc);
        CHECK(entry["description"].get<std::string>().size() > 5);
        CHECK(entry.contains("default") == key.info.default_value.has_value());
        ++keys;
      }
    }
  };
  check_level(job_sections(), schema);
  check_level(split_sections(), split);
  CHECK(keys > 90);  // all of them were looked at
  CHECK(split["required"] == Json::array({"dataset", "pipeline"}));
  CHECK(schema["properties"]["loader"]["properties"]["threads"]["default"] == 2);
  CHECK(schema["properties"]["loader"]["properties"]["threads"]["minimum"] == 1);
  CHECK(schema["properties"]["transport"]["enum"] == Json::array({"auto", "inproc", "shm", "mpi"}));
  const std::string pipeline = json_text(split["properties"]["pipeline"]);
  for (const TransformInfo& info : transform_catalog()) {
    CHECK(pipeline.find("\"" + info.name + "\":") != std::string::npos);
    for (const ParamInfo& param : info.params) CHECK(pipeline.find("\"" + param.name + "\":") != std::string::npos);
  }
}
