#include "runtime/report/joined_report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
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

// A trainer whose steps have hashes that are their numbers' sums, so that any part has the same sum whoever has it.
json trainer(int replica, const Steps& ranges) {
  json list = json::array();
  int64_t all = 0, batches = 0;
  for (const auto& [epoch, first, end] : ranges) {
    int64_t sum = 0;
    for (int64_t step = first; step < end; ++step) sum += 1000 * (epoch + 1) + step;
    all += sum;
    batches += end - first;
    list.push_back({{"epoch", epoch},
                    {"first_step", first},
                    {"end_step", end},
                    {"order_hash", hash_of(sum)},
                    {"pixel_hash", hash_of(2 * sum)}});
  }
  return {{"role", "trainer"},
          {"replica", replica},
          {"trainer", replica},
          {"splits",
           {{"train",
             {{"ranges", list},
              {"order_hash", hash_of(all)},
              {"pixel_hash", hash_of(2 * all)},
              {"batches", batches},
              {"epoch_steps", 10},
              {"arithmetic", "exact"}}}}}};
}

json report_of(const std::vector<json>& ranks) {
  return {{"splits", {{"train", json::object()}}}, {"ranks", ranks}};
}
json report(const Steps& ranges) {
  return report_of({trainer(0, ranges), trainer(1, ranges)});
}

json join(const std::vector<json>& reports) {
  std::vector<NamedReport> named;
  for (const json& one : reports) named.emplace_back(std::string(1, static_cast<char>('a' + named.size())), one);
  return join_reports(named, {})["splits"]["train"];
}
std::string complaint(const std::vector<json>& reports) {
  try {
    return "no complaint: " + join(reports).dump();
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
