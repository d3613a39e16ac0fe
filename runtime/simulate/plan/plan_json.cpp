#include "runtime/simulate/plan/plan_json.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {

PlanTarget parse_target(const std::string& text) {
  PlanTarget target;
  if (text.empty()) return target;
  double value = 0;
  char unit[16] = {};
  char rest = 0;
  const bool decimal = text.find_first_not_of("0123456789.eE+") > 0 && text.find('x') == std::string::npos;
  const int read = decimal ? std::sscanf(text.c_str(), "%lf%15s %c", &value, unit, &rest) : 0;
  const std::string_view its(unit);
  const bool rate = its.empty() || its == "img/s" || its == "images/s";
  if (read >= 1 && rate && value > 0 && value < 1e12) {
    target.images_per_s = value;
  } else if (read == 2 && its == "%" && value > 0 && value < 100) {
    target.lost = value / 100;
  } else {
    throw Error(ErrorKind::usage, "'" + text.substr(0, 40) + "' is no target",
                "12000img/s; or 1%: the share of the programs' pace that may be lost to loading");
  }
  return target;
}

nlohmann::json to_json(const FleetChoice& choice) {
  return {{"name", choice.name()},
          {"loaders_beside_trainers", choice.beside},
          {"kind", choice.kind},
          {"machines", choice.machines},
          {"loaders", choice.loaders},
          {"threads", choice.threads},
          {"price_per_hour", choice.price_per_hour},
          {"lost", choice.lost},
          {"reaches", choice.reaches},
          {"prediction", to_json(choice.prediction)}};
}

nlohmann::json to_json(const FleetPlan& plan) {
  nlohmann::json json = {{"sentence", plan.sentence},
                         {"reachable", plan.reachable},
                         {"wanted_images_per_s", plan.wanted_images_per_s},
                         {"looked_at", nlohmann::json::array()}};
  const std::pair<const char*, const std::optional<FleetChoice>*> chosen[] = {
      {"smallest", &plan.smallest}, {"cheapest", &plan.cheapest}, {"safe", &plan.safe}, {"largest", &plan.largest}};
  if (!plan.remedy.empty()) json["remedy"] = plan.remedy;
  for (const auto& [key, choice] : chosen) json[key] = *choice ? to_json(**choice) : nlohmann::json(nullptr);
  for (const FleetChoice& choice : plan.looked_at) json["looked_at"].push_back(to_json(choice));
  return json;
}

}  // namespace penstock
