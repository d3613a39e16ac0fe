// Two DataLoaders of one program share an embedded world exactly where no setting of it differs.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/embedded/embedded.h"
#include "runtime/job/key_table.h"

namespace penstock {
namespace {

// Another value that the key may have.
ParamValue another(const ParamValue& value, const ParamInfo& info) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (info.choices.empty()) return *text + "other";
    return *text == info.choices.front() ? info.choices.back() : info.choices.front();
  }
  if (const auto* truth = std::get_if<bool>(&value)) return !*truth;
  if (const auto* whole = std::get_if<int64_t>(&value)) return *whole + 1;
  if (const auto* number = std::get_if<double>(&value)) return *number / 2 + 0.125;
  return 0.5;  // nothing so far: a share, where there is such a key
}

TEST_CASE("every key that a loader or a receiver reads makes another world, and no other key does") {
  const Job plain;
  const std::string settings = world_settings(plain, {});
  int different = 0;
  for (const Section<Job>& section : job_sections()) {
    for (const Key<Job>& key : section.keys) {
      CAPTURE(section.name);
      CAPTURE(key.info.name);
      const bool single = key.info.choices.size() == 1 && key.info.kind == ParamKind::text;
      if (single || key.info.kind == ParamKind::mapping) continue;
      Job job;
      key.set(job, another(key.get(plain), key.info));
      const bool of_world = section.name == "loader" || section.name == "balancer" || section.name == "python" ||
                            (section.name == "trainer" && key.info.name == "hold");
      CHECK((world_settings(job, {}) != settings) == of_world);
      different += of_world ? 1 : 0;
    }
  }
  CHECK(different > 35);
  CHECK(world_settings(plain, {.replicas = 2}) != settings);
  CHECK(world_settings(plain, {.replicas = 1, .replica = 0, .cpus = {3}}) == settings);
}

TEST_CASE("a data set that stays in the program has a world to itself") {
  Job job;
  job.splits["train"].dataset.pickle = "here:0:Photos";
  Job other = job;
  CHECK(world_settings(job, {}) == world_settings(other, {}));
  other.splits["train"].dataset.pickle = "here:1:Photos";
  CHECK(world_settings(job, {}) != world_settings(other, {}));
  Job pickled;
  pickled.splits["train"].dataset.pickle = "gASV";
  CHECK(world_settings(pickled, {}) == world_settings(Job{}, {}));
}

}  // namespace
}  // namespace penstock
