// How large a fleet a job needs.
#include "runtime/simulate/plan/plan.h"

#include <doctest/doctest.h>

#include "runtime/base/error.h"
#include "runtime/simulate/plan/plan_json.h"
#include "tests/simulate/plan/small_plan.h"

namespace penstock {
namespace {

const PlanOptions kQuick{.seeds = 3, .screening_seeds = 2};

// The programs take 8 x 32 images in 200 ms: 1,280 a second, which is 12.8 threads of 10 ms.
TEST_CASE("cores beside the trainers that are enough are used, and no machine is added") {
  const FleetPlan plan = find_plan(small_plan({"nodes.gpu.cores=24"}), {}, kQuick);
  REQUIRE(plan.reachable);
  CHECK(plan.sentence.find("No machine has to be added, as ") == 0);
  CHECK(plan.cheapest->kind.empty());
  CHECK(plan.cheapest->price_per_hour == 0);
  CHECK(plan.cheapest->threads >= 16);
  CHECK(plan.cheapest->threads <= 24);
}

TEST_CASE("where they are not, machines are added: the cheapest that is enough, and one more to be safe") {
  const FleetPlan plan = find_plan(small_plan({"nodes.gpu.cores=9"}), {}, kQuick);
  REQUIRE(plan.reachable);
  CHECK(plan.cheapest->kind == "cpu");
  CHECK(plan.cheapest->machines == 1);  // of 16 threads
  CHECK(plan.cheapest->price_per_hour == 1);
  REQUIRE(plan.safe);
  CHECK(plan.safe->machines == 2);
  CHECK(plan.cheapest->prediction.images_per_s.mean >= plan.wanted_images_per_s);
}

TEST_CASE("a rate is asked for, and the fewest loaders are found that reach it") {
  const FleetPlan plan = find_plan(small_plan({"program.step_ms=1", "nodes.gpu.loaders=0", "nodes.gpu.cores=8"}),
                                   {.images_per_s = 3000}, kQuick);
  REQUIRE(plan.reachable);
  CHECK(plan.cheapest->kind == "cpu");
  CHECK(plan.cheapest->machines == 2);  // 32 threads: 3,200 a second
  CHECK(plan.smallest->threads == 32);
  for (const FleetChoice& choice : plan.looked_at) {
    if (choice.kind == "cpu" && choice.machines == 1 && choice.beside == 0) CHECK(!choice.reaches);
  }
}

TEST_CASE("a target out of reach says by what") {
  const FleetPlan program = find_plan(small_plan(), {.images_per_s = 5000}, kQuick);
  CHECK(!program.reachable);
  CHECK(program.sentence.find("No fleet of this cluster reaches 5000 images/s; the bound is 1") == 0);
  CHECK(program.sentence.find("because the training program takes no more") != std::string::npos);
  CHECK(program.remedy.find("shorten program.step_ms, or give the job more trainers, or ask for less: --target 1") ==
        0);
  CHECK(program.looked_at.size() == 1);  // nothing is searched for: the one that comes closest
  const FleetPlan threads = find_plan(small_plan({"program.step_ms=1", "nodes.cpu.count=1", "nodes.big.count=0"}),
                                      {.images_per_s = 9000}, kQuick);
  CHECK(!threads.reachable);
  CHECK(threads.sentence.find("because of the loaders' threads") != std::string::npos);
  CHECK(threads.remedy.find("raise count or cores of a kind of machine under nodes, or ask for less: --target ") == 0);
  REQUIRE(threads.largest);
  CHECK(threads.largest->machines == 1);
  CHECK(threads.looked_at.size() == 1);
  CHECK(threads.largest->prediction.seeds == kQuick.screening_seeds);
  const FleetPlan links =
      find_plan(small_plan({"program.step_ms=1", "nodes.gpu.loaders=0", "nodes.gpu.network_gbit=1"}),
                {.images_per_s = 5000}, kQuick);
  CHECK(!links.reachable);
  CHECK(links.sentence.find("because of the NICs of machines that train") != std::string::npos);
  CHECK(links.remedy.find("raise network_gbit of the machines under nodes, or ask for less: --target 1") == 0);
  CHECK(links.looked_at.size() == 1);
  const FleetPlan none =
      find_plan(small_plan({"nodes.gpu.cores=8", "nodes.cpu.count=0", "nodes.big.count=0"}), {}, kQuick);
  CHECK(!none.reachable);
  CHECK(none.sentence.find("no core that a loader could use") != std::string::npos);
  CHECK(none.remedy.find("raise cores of the machines that train, or lower cores_for_training or loader.threads") == 0);
}

TEST_CASE("a small data set is planned by the steps that it has") {
  PlanInput input = small_plan({"nodes.gpu.cores=9"});
  input.samples = 256 * 5;
  input.steps = 0;
  const FleetPlan plan = find_plan(input, {}, kQuick);
  REQUIRE(plan.reachable);
  CHECK(plan.wanted_images_per_s > 500);
}

TEST_CASE("each kind of machine that trains has the loaders that its own cores have room for") {
  PlanInput input = small_plan({"nodes.gpu.cores=12", "nodes.big.trainers=2", "nodes.big.cores_for_training=4"});
  const FleetChoice choice{.beside = 15, .kind = "", .machines = 0};
  const FleetSpec spec = fleet_of(with_choice(input, choice));
  CHECK(spec.loaders.size() == 2 * 1 + 2 * 15);
}

TEST_CASE("targets are written as people write them") {
  CHECK(parse_target("12000img/s").images_per_s == 12000);
  CHECK(parse_target("1.5e3").images_per_s == 1500);
  CHECK(parse_target("1%").lost == 0.01);
  CHECK(parse_target("").images_per_s == 0);
  for (const char* bad : {"fast", "12000MB/s", "-5", "100%", "0", "img/s"})
    CHECK_THROWS_AS((void)parse_target(bad), Error);
}

}  // namespace
}  // namespace penstock
