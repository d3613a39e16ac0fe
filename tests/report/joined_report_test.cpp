#include "runtime/report/joined_report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace penstock {
namespace {

using nlohmann::json;
using Steps = std::vector<std::tuple<int64_t, int64_t, int64_t>>;  // epoch, first, end

std::string hash_of(int64_t number) {
  Sum128 sum;
  sum.low = static_cast<uint64_t>(number);
  return sum.hex();
}

// Steps have hashes that are their numbers' sums, so that any part has the same sum whoever has it; with `other` data,
// they have others.
json split_of(const Steps& ranges, const char* mode, int64_t epoch_steps, int64_t other = 0) {
  json list = json::array();
  int64_t all = 0, batches = 0;
  for (const auto& [epoch, first, end] : ranges) {
    int64_t sum = 0;
    for (int64_t step = first; step < end; ++step) sum += 1000 * (epoch + 1) + step + other;
    all += sum;
    batches += end - first;
    list.push_back({{"epoch", epoch},
                    {"first_step", first},
                    {"end_step", end},
                    {"order_hash", hash_of(sum)},
                    {"pixel_hash", hash_of(2 * sum)}});
  }
  return {{"ranges", list},     {"order_hash", hash_of(all)}, {"pixel_hash", hash_of(2 * all)},
          {"batches", batches}, {"epoch_steps", epoch_steps}, {"arithmetic", "exact"},
          {"mode", mode}};
}

json trainer(int replica, const Steps& ranges) {
  return {{"role", "trainer"},
          {"replica", replica},
          {"trainer", replica},
          {"splits", {{"train", split_of(ranges, "train", 10)}}}};
}

json report_of(const std::vector<json>& ranks) {
  return {{"splits", {{"train", json::object()}}}, {"ranks", ranks}};
}
json report(const Steps& ranges) {
  return report_of({trainer(0, ranges), trainer(1, ranges)});
}

// The same report, of a program that also evaluates: epochs of four steps.
json with_val(json one, const Steps& ranges, int64_t other = 0) {
  for (json& rank : one["ranks"]) rank["splits"]["val"] = split_of(ranges, "eval", 4, other);
  one["splits"]["train"]["mode"] = "train";
  one["splits"]["val"] = {{"mode", "eval"}};
  return one;
}

json join_all(const std::vector<json>& reports, const std::set<std::string>& splits = {}) {
  std::vector<NamedReport> named;
  for (const json& one : reports) named.emplace_back(std::string(1, static_cast<char>('a' + named.size())), one);
  return join_reports(named, splits);
}
json join(const std::vector<json>& reports) {
  return join_all(reports)["splits"]["train"];
}
json join_val(const std::vector<json>& reports) {
  return join_all(reports, {"val"})["splits"]["val"];
}
std::string complaint(const std::vector<json>& reports, const std::set<std::string>& splits = {}) {
  try {
    return "no complaint: " + join_all(reports, splits).dump();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    return error.message();
  }
}

TEST_CASE("parts have the hashes of the whole, in any order and however they were cut") {
  const json whole = join({report({{0, 0, 10}, {1, 0, 10}, {2, 0, 4}})});
  CHECK(whole["batches"] == 2 * 24);
  const json a = report({{0, 0, 10}, {1, 0, 3}}), b = report({{1, 3, 5}, {1, 5, 10}}), c = report({{2, 0, 4}});
  for (const json& parts : std::vector<json>{join({a, b, c}), join({c, a, b})}) {
    for (const char* key : {"order_hash", "pixel_hash", "batches", "first_epoch", "last_epoch", "end_step"}) {
      CHECK(parts[key] == whole[key]);
    }
  }
  // Another number of replicas: the steps are what counts.
  CHECK(join({a, report_of({trainer(0, {{1, 3, 10}})})})["end_step"] == 10);
}

TEST_CASE("gaps and overlaps are named") {
  const json a = report({{0, 0, 10}, {1, 0, 3}});
  CHECK(complaint({a, report({{1, 2, 10}})}) == "split 'train': step 2 of epoch 1 stands both in 'a' and 'b'");
  CHECK(complaint({a, report({{1, 4, 10}})}).find("step 3 of epoch 1 is in no report ('a' ends with step 2") !=
        std::string::npos);
  CHECK(complaint({a, report({{2, 0, 10}})}) == "split 'train': steps 3 to 9 of epoch 1 are in no report");
  CHECK(complaint({report({{0, 0, 10}}), report({{2, 0, 10}})}).find("epochs 1 to 1") != std::string::npos);
  CHECK(complaint({report({{0, 0, 10}}), report({{1, 2, 10}})}) ==
        "split 'train': steps 0 to 1 of epoch 1 are in no report");
  CHECK(complaint({a, a}).find("stand both in") != std::string::npos);
  CHECK(complaint({report({{0, 0, 5}, {0, 4, 6}})}) == "split 'train': step 4 of epoch 0 stands twice in 'a'");
  CHECK(complaint({report({{0, 0, 5}, {0, 7, 9}})}).find("steps 5 to 6 of epoch 0 are in no report") !=
        std::string::npos);
}

TEST_CASE("within one report a program may break epochs off, and leave some out") {
  CHECK(complaint({report({{0, 0, 5}, {1, 0, 2}, {7, 0, 1}})}).find("no complaint") == 0);
}

TEST_CASE("a split that is evaluated after each epoch does not keep the others from being joined") {
  const json train = join({report({{0, 0, 10}, {1, 0, 10}, {2, 0, 10}})});
  const json whole = with_val(report({{0, 0, 10}, {1, 0, 10}, {2, 0, 10}}), {{0, 0, 4}, {0, 0, 4}, {0, 0, 4}});
  const json a = with_val(report({{0, 0, 10}, {1, 0, 3}}), {{0, 0, 4}});
  const json b = with_val(report({{1, 3, 10}, {2, 0, 10}}), {{0, 0, 4}, {0, 0, 4}});
  for (const std::vector<json>& reports : {std::vector<json>{whole}, {a, b}, {b, a}}) {
    const json joined = join_all(reports);
    CHECK(joined["splits"].size() == 1);
    for (const char* key : {"order_hash", "pixel_hash", "batches", "last_epoch", "end_step"}) {
      CHECK(joined["splits"]["train"][key] == train[key]);
    }
    CHECK(joined["left_out"] == json::array({"val"}));
    CHECK(joined_text(joined).find(
              "left out: val (mode: eval), which may be evaluated again and again; --split val ") != std::string::npos);

    const json named = join_all(reports, {"train", "val"});
    CHECK(named["left_out"].empty());
    CHECK(named["splits"]["train"] == joined["splits"]["train"]);
    const json val = named["splits"]["val"];
    const json once = join_val({with_val(report({{0, 0, 10}}), {{0, 0, 4}})});
    for (const char* key : {"order_hash", "pixel_hash", "batches", "first_epoch", "last_epoch", "end_step"}) {
      CHECK(val[key] == once[key]);
    }
    CHECK(val["batches"] == 2 * 4);
    CHECK(val["evaluations"] == 3);
    CHECK(val["broken_off"] == 0);
    CHECK(joined_text(named).find("val: epoch 0, step 0 to epoch 0, step 3, each once: 8 batches; "
                                  "3 evaluations, and those of one epoch are equal\n") != std::string::npos);
  }
  json before = a;  // reports had no mode
  for (const char* split : {"train", "val"}) before["splits"][split].erase("mode");
  CHECK(complaint({before, b}) == "split 'val': 'b' has mode eval, 'a' train");
}

TEST_CASE("evaluations of a split that is named are compared, broken off or in parts as they may be") {
  const json train = report({{0, 0, 10}});
  const auto of = [&](const Steps& ranges, int64_t other = 0) { return with_val(train, ranges, other); };
  CHECK(complaint({of({{0, 0, 4}}), of({{0, 0, 4}}, 1)}, {"val"}) ==
        "split 'val': the hashes of steps 0 to 3 of epoch 0 differ between evaluations in 'a' and 'b'");
  json changed = of({{0, 0, 4}, {0, 0, 4}});
  for (json& rank : changed["ranks"]) {
    json& val = rank["splits"]["val"];
    const json other = split_of({{0, 0, 4}}, "eval", 4, 1);
    StreamHash sum;
    val["ranges"][1] = other["ranges"][0];
    for (const json& range : val["ranges"]) sum.order += Sum128::from_hex(range["order_hash"].get<std::string>());
    for (const json& range : val["ranges"]) sum.pixel += Sum128::from_hex(range["pixel_hash"].get<std::string>());
    val["order_hash"] = sum.order.hex();
    val["pixel_hash"] = sum.pixel.hex();
  }
  CHECK(complaint({changed}, {"val"}) ==
        "split 'val': the hashes of steps 0 to 3 of epoch 0 differ from one evaluation to another in 'a'");

  const json once = join_val({of({{0, 0, 4}})});
  // A few steps before the training, as some frameworks do, say nothing of the others.
  const json looked_at = join_val({of({{0, 0, 2}, {0, 0, 4}})});
  CHECK(looked_at["evaluations"] == 1);
  CHECK(looked_at["broken_off"] == 1);
  // The first run ended while it evaluated for the second time.
  const json resumed = join_val({of({{0, 0, 4}, {0, 0, 3}}), of({{0, 3, 4}})});
  CHECK(resumed["evaluations"] == 2);
  CHECK(resumed["broken_off"] == 0);
  for (const json& joined : {looked_at, resumed}) {
    for (const char* key : {"order_hash", "pixel_hash", "batches"}) CHECK(joined[key] == once[key]);
  }
  CHECK(complaint({of({{0, 0, 4}}), of({{0, 3, 4}})}, {"val"}) ==
        "split 'val': an evaluation goes on with step 3 of epoch 0 in 'b', and none ends before it");
  CHECK(complaint({of({{0, 0, 4}, {0, 0, 3}}), of({{0, 3, 4}}, 1)}, {"val"}).find("hashes of steps 0 to 3") !=
        std::string::npos);

  // A program that calls set_epoch() before it evaluates.
  const json epochs = join_val({of({{0, 0, 4}, {5, 0, 4}}), of({{9, 0, 4}})});
  CHECK(epochs["evaluations"] == 3);
  CHECK(epochs["batches"] == 3 * 8);
  CHECK(epochs["last_epoch"] == 9);

  json larger = of({{0, 0, 4}});
  for (json& rank : larger["ranks"]) rank["splits"]["val"]["epoch_steps"] = 8;
  CHECK(complaint({of({{0, 0, 4}}), larger}, {"val"}) == "split 'val': an epoch has 4 steps in 'a' and 8 in 'b'");
}

TEST_CASE("a report that does not hold together is refused") {
  CHECK(complaint({report_of({trainer(0, {{0, 0, 5}}), trainer(1, {{0, 0, 4}})})}) ==
        "split 'train': in 'a' replica 0 was given steps 0 to 4 of epoch 0, and replica 1 steps 0 to 3 of epoch 0");
  json changed = report({{0, 0, 5}});
  changed["ranks"][1]["splits"]["train"]["pixel_hash"] = hash_of(1);
  CHECK(complaint({changed}).find("hashes of trainer 1's ranges are not") != std::string::npos);
  json cut = report({{0, 0, 5}});
  cut["ranks"][0]["splits"]["train"]["ranges_left_out"] = 3;
  CHECK(complaint({cut}).find("only its latest ranges") != std::string::npos);
  json fast = report({{1, 0, 5}});
  for (json& rank : fast["ranks"]) rank["splits"]["train"]["arithmetic"] = "fast";
  CHECK(complaint({report({{0, 0, 10}}), fast}) == "split 'train': 'a' has arithmetic exact, 'b' fast");
  CHECK_THROWS_WITH_AS((void)join_reports({{"x", json::array()}}, {}), doctest::Contains("'x' is no report"), Error);
}

}  // namespace
}  // namespace penstock
