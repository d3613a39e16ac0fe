#include "runtime/datasets/bounded_json.h"

#include <nlohmann/json.hpp>

namespace penstock {

nlohmann::json parse_bounded(std::string_view text, const std::function<void(const char* why)>& refuse) {
  int64_t values = 0;
  return nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json&) {
    if (depth > kMaxJsonDepth) refuse("it is nested too deeply");
    using Event = nlohmann::json::parse_event_t;
    const bool end = event == Event::object_end || event == Event::array_end;
    if (!end && ++values > kMaxJsonValues) refuse("it has more than 10 million values");
    return true;
  });
}

}  // namespace penstock
