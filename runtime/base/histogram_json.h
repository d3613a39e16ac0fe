// A histogram in reports and profiles: {"count": 3, "sum": 24e6, "most": 9000000, "buckets": [[145, 2], [147, 1]]}.
//
//   report["sample_ns"] = histogram_json(histogram);
//   const std::optional<Histogram> read = histogram_from(report["sample_ns"]);   // nullopt: it is none
//
// Thread-safety: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/histogram.h"

namespace penstock {

inline nlohmann::json histogram_json(const Histogram& histogram) {
  nlohmann::json buckets = nlohmann::json::array();
  for (const auto& [number, count] : histogram.buckets()) buckets.push_back({number, count});
  return {{"count", histogram.count()}, {"sum", histogram.sum()}, {"most", histogram.most()}, {"buckets", buckets}};
}

inline std::optional<Histogram> histogram_from(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("buckets") || !json["buckets"].is_array()) return std::nullopt;
  const auto number = [&](const char* key) { return json.contains(key) && json[key].is_number(); };
  if (!number("sum") || !number("most")) return std::nullopt;
  std::vector<Histogram::Bucket> buckets;
  for (const nlohmann::json& bucket : json["buckets"]) {
    const bool two =
        bucket.is_array() && bucket.size() == 2 && bucket[0].is_number_integer() && bucket[1].is_number_integer();
    if (!two) return std::nullopt;
    buckets.push_back({bucket[0].get<int64_t>(), bucket[1].get<int64_t>()});
  }
  return Histogram::from(buckets, json["sum"].get<double>(), json["most"].get<int64_t>());
}

}  // namespace penstock
