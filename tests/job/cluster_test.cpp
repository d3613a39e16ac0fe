// cluster.yaml: what it means, and what it complains of, all at once and each with its place.
#include "runtime/job/cluster.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace penstock {
namespace {

constexpr const char* kSmall = R"(
nodes:
  gpu: {count: 2, cores: 32, cores_for_training: 16, trainers: 8, network_gbit: 100, price_per_hour: 20}
  cpu: {count: 4, cores: 32, network_gbit: 25, price_per_hour: 1.5}
storage: {kind: shared, mb_per_s: 4000}
program: {step_ms: 200}
)";

std::string complaint(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    (void)parse_cluster(text, "cluster.yaml", overrides);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    return error.what();
  }
  return "";
}

TEST_CASE("kinds of machines, what is between them, and defaults for what is not said") {
  const Cluster cluster = parse_cluster(kSmall, "cluster.yaml");
  CHECK(cluster.nodes.size() == 2);
  CHECK(cluster.nodes.at("gpu").trainers == 8);
  CHECK(cluster.nodes.at("cpu").loaders == -1);
  CHECK(cluster.nodes.at("cpu").price_per_hour == 1.5);
  CHECK(cluster.trainers() == 16);
  CHECK(cluster.storage.kind == StorageKind::shared);
  CHECK(cluster.network.latency_us == 50);
  CHECK(cluster.currency == "$");
}

TEST_CASE("overrides change any key, and begin no new kind of machine") {
  CHECK(parse_cluster(kSmall, "cluster.yaml", {"nodes.cpu.count=9", "storage.mb_per_s=1"}).nodes.at("cpu").count == 9);
  CHECK(complaint(kSmall, {"nodes.cup.count=9"}).find("there is no kind of machine 'cup'") != std::string::npos);
}

TEST_CASE("every mistake is named, in one go") {
  const std::string text = complaint(R"(
nodes:
  gpu: {count: -1, cores: many, trainer: 8}
network: {latency: 3}
storage: {kind: tape}
)");
  CHECK(text.find("cluster.yaml:3") != std::string::npos);
  for (const char* wanted :
       {"nodes.gpu.count", "'nodes.gpu.cores'", "unknown key 'trainer'", "did you mean 'trainers'?",
        "unknown key 'latency'", "did you mean 'latency_us'?", "storage.kind"}) {
    CHECK_MESSAGE(text.find(wanted) != std::string::npos, wanted << " in " << text);
  }
}

TEST_CASE("what cannot be is refused: no machines, no trainers, GPUs without a speed, storage without one") {
  CHECK(complaint("{}").find("missing required key 'nodes'") != std::string::npos);
  CHECK(complaint("nodes: {}").find("at least one kind of machine") != std::string::npos);
  CHECK(complaint("nodes: {cpu: {cores: 8}}").find("no machine has trainers") != std::string::npos);
  CHECK(complaint("nodes: {a: {cores: 8, trainers: 1, gpus: 2}}").find("gpus and gpu_images_per_s belong together") !=
        std::string::npos);
  CHECK(complaint("nodes: {a: {cores: 8, trainers: 1}}\nstorage: {kind: local}").find("needs mb_per_s") !=
        std::string::npos);
  CHECK(complaint("- a list").find("a cluster file is a mapping") != std::string::npos);
  CHECK(complaint("nodes: {a: {cores: 8, cores_for_training: 8, trainers: 1, loaders: 2}}")
            .find("no core that training leaves") != std::string::npos);
}

TEST_CASE("a file that is not there says what to do") {
  CHECK_THROWS_WITH_AS((void)load_cluster("/nowhere/cluster.yaml"),
                       doctest::Contains("cannot read the cluster file '/nowhere/cluster.yaml'"), Error);
}

TEST_CASE("the schema has every key, with its bounds") {
  const auto schema = nlohmann::json::parse(cluster_schema());
  const auto& node = schema["properties"]["nodes"]["additionalProperties"];
  CHECK(node["properties"]["cores"]["minimum"] == 1);
  CHECK(schema["properties"]["storage"]["properties"]["kind"]["enum"].size() == 3);
  CHECK(schema["properties"].contains("currency"));
}

}  // namespace
}  // namespace penstock
