// Predictions against what was measured.
#include "runtime/simulate/plan/validation.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

Json predicted(const std::string& name, double rate, double stalled, double threads = 1000, double program = 2000) {
  return {{"name", name},
          {"prediction",
           {{"images_per_s", {{"mean", rate}, {"half_width_95", 1}}},
            {"stalled", {{"mean", stalled}, {"half_width_95", 0}}},
            {"naive",
             {{"images_per_s", std::min(threads, program)},
              {"limit", "x"},
              {"parts", {{{"name", "a"}, {"images_per_s", threads}}, {{"name", "b"}, {"images_per_s", program}}}}}}}}};
}

Json measured(const std::string& name, double rate, double stalled) {
  return {{"name", name}, {"images_per_s", rate}, {"stalled", stalled}};
}

TEST_CASE("errors of each point, their mean and their worst, and of the naive formula") {
  const Validation v = validate({predicted("a", 105, 0.10), predicted("b", 190, 0.5)},
                                {measured("a", 99, 0.11), measured("a", 101, 0.13), measured("b", 200, 0.45)});
  REQUIRE(v.points.size() == 2);
  CHECK(v.points[0].error == doctest::Approx(0.05));
  CHECK(v.points[0].repetitions == 2);
  CHECK(v.points[0].stalled_error == doctest::Approx(-0.02));
  CHECK(v.points[1].error == doctest::Approx(-0.05));
  CHECK(v.mean_error == doctest::Approx(0.05));
  CHECK(v.worst_stalled_error == doctest::Approx(0.05));
  CHECK(v.naive_worst_error == doctest::Approx(9));
  CHECK(v.wrong_order.empty());
}

TEST_CASE("bounds that are not kept are said, each") {
  const Validation v =
      validate({predicted("a", 130, 0.1), predicted("b", 120, 0.2)},
               {measured("a", 100, 0.2), measured("a", 100, 0.2), measured("b", 118, 0.2), measured("b", 118, 0.2)});
  CHECK(v.pairs == 1);
  CHECK(v.wrong_order == std::vector<std::string>{"a and b"});
  const auto broken = broken_limits(v, {});
  REQUIRE(broken.size() == 4);
  CHECK(broken[0].find("the mean error is 15.8 %, more than 5.0 %") == 0);
  CHECK(broken[1].find("the worst error is 30.0 %") == 0);
  CHECK(broken[2].find("stalled is 10.0 %") != std::string::npos);
  CHECK(broken[3].find("1 of 1 pairs are in the wrong order: a and b") == 0);
  CHECK(broken_limits(v, {0.2, 0.5, 0.2}).size() == 1);
}

TEST_CASE("points at a knee are counted apart") {
  const Validation v = validate({predicted("a", 100, 0.1), predicted("knee", 150, 0.3, 1000, 1040)},
                                {measured("a", 100, 0.1), measured("knee", 100, 0.1)});
  CHECK(v.points[1].at_knee);
  CHECK(v.mean_error == 0);
  CHECK(v.knee_worst_error == doctest::Approx(0.5));
  CHECK(broken_limits(v, {}).empty());
  const Validation knees = validate({predicted("knee", 150, 0.3, 1000, 1040)}, {measured("knee", 100, 0.1)});
  CHECK(broken_limits(knees, {}).size() == 1);
}

TEST_CASE("a whole report is taken as it is printed, and names must meet") {
  const Json report = {{"splits", {{"train", {{"images_per_s", 100.0}, {"wait_fraction", 0.25}}}}}};
  Json one = predicted("", 90, 0.2);
  one.erase("name");
  const Validation v = validate({one}, {report, report});
  CHECK(v.points[0].repetitions == 2);
  CHECK(v.points[0].error == doctest::Approx(-0.1));
  CHECK_THROWS_WITH_AS((void)validate({predicted("a", 1, 0)}, {measured("b", 1, 0)}),
                       doctest::Contains("no report is of it"), Error);
  CHECK_THROWS_WITH_AS((void)validate({predicted("a", 1, 0)}, {measured("a", 1, 0), measured("b", 1, 0)}),
                       doctest::Contains("nothing predicts it"), Error);
  CHECK_THROWS_WITH_AS((void)validate({predicted("a", 1, 0)}, {{{"name", "a"}}}),
                       doctest::Contains("no report of a run"), Error);
  CHECK_THROWS_WITH_AS((void)validate({{{"name", "a"}}}, {measured("a", 1, 0)}),
                       doctest::Contains("holds no prediction"), Error);
}

TEST_CASE("files hold one object, or one in each line") {
  CHECK(json_lines("{\"a\": 1,\n \"b\": 2}\n", "f").size() == 1);
  CHECK(json_lines("{\"a\": 1}\n\n{\"a\": 2}\n", "f").size() == 2);
  CHECK_THROWS_WITH_AS((void)json_lines("{}\nnot\n", "f"), doctest::Contains("'f', line 2"), Error);
  CHECK_THROWS_AS((void)json_lines("\n", "f"), Error);
}

}  // namespace
}  // namespace penstock
