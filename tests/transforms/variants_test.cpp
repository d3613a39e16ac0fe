// Two pipelines of one split: which sample gets which, and what both have to have in common.
#include "runtime/transforms/variants.h"

#include <doctest/doctest.h>

#include <set>

#include "runtime/transforms/catalog.h"

namespace penstock {
namespace {

TransformSpec make(const std::string& name, const ParamMap& given = {}) {
  return {name, complete_params(*find_transform(name), given)};
}
Pipeline cropped_to(double size, std::vector<TransformSpec> more = {}) {
  more.insert(more.begin(), make("CenterCrop", {{"size", std::vector<double>{size}}}));
  return Pipeline(more);
}
TransformSpec to(const std::string& dtype) {
  return make("ToDtype", {{"dtype", dtype}});
}

TEST_CASE("the draw is a function of seed, epoch, index and occurrence, and picks its share") {
  // As a Philox4x32-10 in Python gives it for position 0xFFFE, draw 0: "c" below 0.3.
  std::string first;
  for (uint64_t index = 0; index < 32; ++index) first += name_of(draw_variant({3, 0, index, 0}, 0.3))[0];
  CHECK(first == "ggcgcggggggggggggcgggccgccggcggg");
  constexpr int kDraws = 20'000;
  for (const double share : {0.0, 0.1, 0.3, 0.5, 1.0}) {
    int cpu = 0;
    for (uint64_t index = 0; index < kDraws; ++index) cpu += draw_variant({7, 2, index, 0}, share) == Variant::cpu;
    CHECK(cpu == doctest::Approx(share * kDraws).epsilon(0.05));
  }
  // Another epoch, seed or occurrence: another draw.
  const auto some = [](uint64_t seed, uint32_t epoch, uint16_t occurrence) {
    std::string out;
    for (uint64_t index = 0; index < 64; ++index) {
      out += name_of(draw_variant({seed, epoch, index, occurrence}, 0.5))[0];
    }
    return out;
  };
  CHECK(std::set<std::string>{some(1, 0, 0), some(2, 0, 0), some(1, 1, 0), some(1, 0, 1)}.size() == 4);
  // A larger share keeps what a smaller one chose.
  for (uint64_t index = 0; index < 1000; ++index) {
    if (draw_variant({1, 0, index, 0}, 0.2) == Variant::cpu) CHECK(draw_variant({1, 0, index, 0}, 0.6) == Variant::cpu);
  }
}

TEST_CASE("one pipeline: nothing is drawn, nothing is noted") {
  const Variants one(cropped_to(8));
  Draws draws;
  one.note({1, 2, 3, 0}, draws);
  CHECK(draws.empty());
  CHECK_FALSE(one.several());
  CHECK_FALSE(Variants::noted(draws).has_value());
  CHECK(&one.pipeline_of(DrawKey{1, 2, 3, 0}) == &one.shared());
  CHECK(&one.pipeline_of(draws) == &one.shared());
}

TEST_CASE("two pipelines: the draw stands behind the pipeline's own, and names the list") {
  const Variants two(cropped_to(8), cropped_to(8, {make("RandomInvert")}), 0.5);
  int gpus = 0;
  for (uint64_t index = 0; index < 100; ++index) {
    const DrawKey key{5, 0, index, 0};
    Draws draws = two.pipeline_of(key).draw(key, {ImageFormat::jpeg, 20, 20});
    const size_t own = draws.size();
    two.note(key, draws);
    REQUIRE(draws.size() == own + 1);
    CHECK(Variants::noted(draws) == two.of(key));
    CHECK(&two.pipeline_of(draws) == &two.pipeline_of(key));
    CHECK(own == (two.of(key) == Variant::gpu ? 1 : 0));
    gpus += two.of(key) == Variant::gpu;
  }
  CHECK(gpus > 30);
  CHECK(gpus < 70);
}

TEST_CASE("both end alike, or the difference is named") {
  const auto problem = [](Pipeline cpu, Pipeline gpu) {
    try {
      (void)Variants(std::move(cpu), std::move(gpu), 0.5);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::config);
      return error.message();
    }
    return std::string();
  };
  CHECK(problem(cropped_to(8), cropped_to(9)) == "gpu_pipeline ends in 9 x 9 pixels, and pipeline in 8 x 8 pixels");
  CHECK(problem(cropped_to(8), Pipeline({make("FiveCrop", {{"size", std::vector<double>{8}}})})) ==
        "gpu_pipeline ends in 5 views of 8 x 8 pixels, and pipeline in 8 x 8 pixels");
  CHECK(problem(cropped_to(8, {to("float32")}), cropped_to(8, {to("float16")})) ==
        "gpu_pipeline does not finish its images as pipeline does");
  CHECK(problem(cropped_to(8, {to("float32")}), cropped_to(8, {make("RandomInvert"), to("float32")})).empty());
}

TEST_CASE("functions of both lists are numbered one after the other") {
  const auto python = [](const char* name) { return make("Python", {{"function", std::string(name)}}); };
  const Variants two(cropped_to(8, {python("a:b"), python("c:d")}), cropped_to(8, {python("e:f")}), 0.5);
  CHECK(two.functions() == std::vector<std::string>{"a:b", "c:d", "e:f"});
  CHECK(two.first_function(Variant::cpu) == 0);
  CHECK(two.first_function(Variant::gpu) == 2);
}

}  // namespace
}  // namespace penstock
