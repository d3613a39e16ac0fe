// Plans and predictions, as JSON: penstock/planning.py makes dataclasses of it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/simulate/plan/plan_files.h"
#include "runtime/simulate/plan/plan_json.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// As penstock/planning.py passes them on.
struct Request {
  PlanFiles files;
  int64_t seeds = 10;
  int64_t samples = 0;
  int64_t epochs = 1;
  int64_t steps = 0;
  bool barrier = true;
};

PlanInput input_of(const Request& request) {
  const bool good = request.seeds >= 1 && request.seeds <= 10'000 && request.samples >= 0 && request.epochs >= 1 &&
                    request.steps >= 0;
  if (!good)
    throw Error(ErrorKind::usage, "seeds, samples, epochs and steps are whole numbers above 0",
                "leave out what is not known");
  PlanInput input = read_plan_files(request.files);
  input.samples = request.samples;
  input.epochs = request.epochs;
  input.steps = request.steps;
  input.barrier = request.barrier;
  return input;
}

std::string plan_json(const Request& request, const std::string& target) {
  const Unlocked unlocked;
  PlanOptions options;
  options.seeds = request.seeds;
  options.screening_seeds = std::min<int64_t>(3, request.seeds);
  const PlanInput input = input_of(request);
  nlohmann::json json = to_json(find_plan(input, parse_target(target), options));
  json["entered_by_hand"] = entered_by_hand(input);
  return json_text_replacing(json);
}

std::string simulate_json(const Request& request, const std::vector<std::string>& what_ifs) {
  const Unlocked unlocked;
  std::vector<WhatIf> parsed;
  for (const std::string& text : what_ifs) parsed.push_back(parse_what_if(text));
  const PlanInput input = input_of(request);
  nlohmann::json json = to_json(predict(fleet_of(input, parsed), {.seeds = request.seeds}));
  json["entered_by_hand"] = entered_by_hand(input);
  return json_text_replacing(json);
}

}  // namespace

void register_planning(nb::module_& module) {
  nb::class_<Request>(module, "PlanRequest")
      .def("__init__", [](Request* self, const std::string& job, const std::string& cluster, const std::string& profile,
                          const std::vector<std::string>& overrides, const std::string& split, int64_t seeds,
                          int64_t samples, int64_t epochs, int64_t steps, bool barrier) {
        new (self) Request{{job, cluster, profile, overrides, split}, seeds, samples, epochs, steps, barrier};
      });
  module.def("plan_json", &plan_json);
  module.def("simulate_json", &simulate_json);
}

}  // namespace penstock::python
