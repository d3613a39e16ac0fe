// JSON that somebody else wrote: what it becomes in memory is bounded while it is read. A few bytes of text can be a
// value of a hundred bytes, so a limit on the text alone says little.
//
//   const nlohmann::json json = parse_bounded(text, [](const char* why) { refuse(why); });
//
// `refuse` throws; so does json::exception for what is no JSON. A pure function.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace penstock {

inline constexpr int kMaxJsonDepth = 16;
// Ten million values are half a gigabyte at most. An index.json of 100,000 shards with 20 columns has eight million.
inline constexpr int64_t kMaxJsonValues = 10'000'000;

template <class Refuse>
nlohmann::json parse_bounded(std::string_view text, const Refuse& refuse) {
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
