// What was measured, as a file.
#include "runtime/simulate/plan/profile.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/histogram_json.h"

namespace penstock {
namespace {

nlohmann::json report() {
  Histogram samples, sizes, steps;
  for (int i = 1; i <= 100; ++i) samples.add(i * 100'000), sizes.add(i * 1000);
  for (int i = 1; i <= 9; ++i) steps.add(i * 1'000'000);
  const nlohmann::json loader = {{"role", "loader"},
                                 {"images", 100},
                                 {"sent_bytes", 15'052'800},
                                 {"sample_ns", histogram_json(samples)},
                                 {"sample_bytes", histogram_json(sizes)}};
  const nlohmann::json trainer = {{"role", "trainer"},
                                  {"received_bytes", 30'105'600},
                                  {"receiver_busy_s", 0.03},
                                  {"splits", {{"train", {{"step_ns", histogram_json(steps)}}}}}};
  return {{"ranks", {trainer, loader, loader}}};
}

Profile origin() {
  Profile profile;
  profile.made_by = "a test";
  profile.machine = "a machine";
  profile.date = "2026-11-25T00:00:00Z";
  profile.version = "penstock 0";
  profile.job = "job.yaml";
  profile.split = "train";
  profile.dataset = "photos";
  profile.dataset_size = 1000;
  return profile;
}

TEST_CASE("of a run's report: its samples, its steps, and what a receiver takes for a byte") {
  const Profile profile = profile_of_report(report(), origin());
  CHECK(profile.sample_ns.count() == 200);
  CHECK(profile.sample_ns.mean() == doctest::Approx(5'050'000));
  CHECK(profile.step_ns.count() == 9);
  CHECK(profile.payload_bytes == 150'528);
  CHECK(profile.overhead.receiver_ns_per_byte == doctest::Approx(0.03e9 / 30'105'600));
  CHECK_THROWS_AS((void)profile_of_report(nlohmann::json::array(), origin()), Error);
  CHECK_THROWS_WITH_AS((void)profile_of_report({{"ranks", nlohmann::json::array()}}, origin()),
                       doctest::Contains("no sample that a loader made"), Error);
}

TEST_CASE("how much of a sample's time follows from its size") {
  // 40 ns a byte, and 1 ms besides that comes and goes.
  Histogram times, sizes;
  double together = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t bytes = 20'000 + 100 * i;
    const int64_t ns = 40 * bytes + (i % 2) * 1'000'000;
    times.add(ns);
    sizes.add(bytes);
    together += static_cast<double>(ns) * static_cast<double>(bytes);
  }
  nlohmann::json told = report();
  for (nlohmann::json& rank : told["ranks"]) {
    if (rank["role"] != "loader") continue;
    rank["sample_ns"] = histogram_json(times);
    rank["sample_bytes"] = histogram_json(sizes);
    rank["sample_ns_bytes"] = together;
  }
  CHECK(profile_of_report(told, origin()).ns_per_byte == doctest::Approx(40).epsilon(0.01));
  CHECK(profile_of_report(report(), origin()).ns_per_byte == 0);  // of a report that does not say
}

TEST_CASE("it is written down with its hash, and read as it was") {
  const std::string text = to_text(profile_of_report(report(), origin()));
  const Profile read = profile_from_text(text, "p.json");
  CHECK(read.hash.size() == 32);
  CHECK(read.machine == "a machine");
  CHECK(read.sample_ns.quantiles() == profile_of_report(report(), origin()).sample_ns.quantiles());
  CHECK(to_text(read) == text);
}

TEST_CASE("one that was changed, is no profile, or of another version is refused with exit code 1") {
  const std::string good = to_text(profile_of_report(report(), origin()));
  const auto refuses = [](const std::string& text, const char* why) {
    try {
      (void)profile_from_text(text, "p.json");
      CHECK_MESSAGE(false, why);
    } catch (const Error& error) {
      CHECK(error.exit_code() == 1);
      CHECK(error.message().find("cannot read the profile 'p.json'") == 0);
      CHECK_MESSAGE(error.message().find(why) != std::string::npos, error.message());
    }
  };
  auto json = nlohmann::json::parse(good);
  json["payload_bytes"] = 1;
  refuses(json.dump(), "it was changed");
  json = nlohmann::json::parse(good);
  json.erase("machine");
  refuses(json.dump(), "machine is missing");
  json = nlohmann::json::parse(good);
  json["sample_ns"]["buckets"] = {{-1, 2}};
  refuses(json.dump(), "no histogram");
  refuses("{}", "it is no profile");
  refuses("not JSON", "it is no profile");
  refuses(R"({"penstock_profile": 99})", "another version");
  CHECK_THROWS_WITH_AS((void)read_profile("/nowhere/p.json"),
                       doctest::Contains("cannot read the profile '/nowhere/p.json'"), Error);
}

}  // namespace
}  // namespace penstock
