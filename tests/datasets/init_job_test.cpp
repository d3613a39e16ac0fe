#include "launch/init_job.h"

#include <doctest/doctest.h>
#include <yaml-cpp/yaml.h>

#include <vector>

#include "runtime/base/error.h"

using namespace penstock;

TEST_CASE("the job is YAML that says what the folders and the recipe are") {
  const std::string text = init_job({"photos/train"}, {"photos/val"});
  CHECK(text.starts_with("# yaml-language-server: $schema="));
  const YAML::Node job = YAML::Load(text);
  CHECK(job["seed"].as<int>() == 0);
  CHECK(job["on_error"].as<std::string>() == "fail");
  CHECK(job["roles"]["trainers"].as<int>() == 2);
  for (const char* key : {"threads", "prefetch", "memory_gb"}) CHECK(job["loader"][key].as<int>() == 2);
  CHECK(job["transport"].as<std::string>() == "auto");

  const YAML::Node train = job["splits"]["train"];
  CHECK(train["mode"].as<std::string>() == "train");
  CHECK(train["dataset"]["folder"].as<std::string>() == "photos/train");
  REQUIRE(train["pipeline"].size() == 4);
  CHECK(train["pipeline"][0]["RandomResizedCrop"]["size"].as<int>() == 224);
  CHECK(train["pipeline"][1]["RandomHorizontalFlip"].size() == 0);
  CHECK(train["pipeline"][2]["ToDtype"]["dtype"].as<std::string>() == "float32");
  CHECK(train["pipeline"][2]["ToDtype"]["scale"].as<bool>());
  CHECK(train["pipeline"][3]["Normalize"]["mean"].as<std::vector<double>>() ==
        std::vector<double>{0.485, 0.456, 0.406});
  CHECK(train["sampler"]["shuffle"].as<bool>());
  CHECK(train["batch_size"].as<int>() == 64);
  CHECK(train["tail"].as<std::string>() == "torch");

  const YAML::Node val = job["splits"]["val"];
  CHECK(val["mode"].as<std::string>() == "eval");
  CHECK(val["dataset"]["folder"].as<std::string>() == "photos/val");
  CHECK(val["pipeline"][0]["Resize"]["size"].as<int>() == 256);
  CHECK(val["pipeline"][1]["CenterCrop"]["size"].as<int>() == 224);
  CHECK_FALSE(val["sampler"]["shuffle"].as<bool>());
  CHECK(val["tail"].as<std::string>() == "pad");
}

TEST_CASE("without a validation folder there is no validation split") {
  const YAML::Node job = YAML::Load(init_job({"t"}));
  CHECK_FALSE(job["splits"]["val"]);
  CHECK(job["splits"].size() == 1);
}

TEST_CASE("of one folder a share is held out") {
  const YAML::Node splits = YAML::Load(init_job({"photos"}, {}, 0.2))["splits"];
  for (const char* split : {"train", "val"}) {
    CHECK(splits[split]["dataset"]["folder"].as<std::string>() == "photos");
    CHECK(splits[split]["dataset"]["val_share"].as<double>() == 0.2);
    CHECK(splits[split]["dataset"]["val_seed"].as<int>() == 0);
  }
  CHECK_FALSE(splits["train"]["dataset"]["train"]);
  CHECK_FALSE(splits["val"]["dataset"]["train"].as<bool>());
}

TEST_CASE("a pack is named as one") {
  const YAML::Node job = YAML::Load(init_job({"train.pack", true}, {"val"}));
  CHECK(job["splits"]["train"]["dataset"]["pack"].as<std::string>() == "train.pack");
  CHECK_FALSE(job["splits"]["train"]["dataset"]["folder"]);
  CHECK(job["splits"]["val"]["dataset"]["folder"].as<std::string>() == "val");
}

TEST_CASE("any folder name survives") {
  for (const std::string& name : std::vector<std::string>{"plain",
                                                          "with space",
                                                          "#no comment",
                                                          "key: value",
                                                          "quote\"d",
                                                          "it's",
                                                          "back\\slash",
                                                          "tab\tnew\nline",
                                                          "日本/写真",
                                                          "~/home",
                                                          "{a}",
                                                          "[b]",
                                                          "*star",
                                                          "&and",
                                                          "!tag",
                                                          "- dash",
                                                          "null",
                                                          "012",
                                                          "%percent",
                                                          "\x7f\x01",
                                                          "\xc2\x85next line",
                                                          "\xe2\x80\xa8separator",
                                                          "\xef\xbb\xbfmark",
                                                          "\xf0\x9f\x98\x80",
                                                          "trailing "}) {
    CAPTURE(name);
    const YAML::Node job = YAML::Load(init_job({name}, {name + "/val"}));
    CHECK(job["splits"]["train"]["dataset"]["folder"].as<std::string>() == name);
    CHECK(job["splits"]["val"]["dataset"]["folder"].as<std::string>() == name + "/val");
  }
}

TEST_CASE("names that YAML cannot hold are refused") {
  for (const std::string& name :
       std::vector<std::string>{"", "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"}) {
    CAPTURE(name);
    CHECK_THROWS_AS(init_job({name}), Error);
  }
}
