// JSON that somebody else wrote: what it becomes in memory is bounded while it is read. A few bytes of text can be a
// value of a hundred bytes, so a limit on the text alone says little.
//
//   const nlohmann::json json = parse_bounded(text, [](const char* why) { refuse(why); });
//
// `refuse` throws; so does json::exception for what is no JSON. A pure function.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace penstock {

inline constexpr int kMaxJsonDepth = 16;
// Ten million values are half a gigabyte at most. An index.json of 100,000 shards with 20 columns has eight million.
inline constexpr int64_t kMaxJsonValues = 10'000'000;

nlohmann::json parse_bounded(std::string_view text, const std::function<void(const char* why)>& refuse);

}  // namespace penstock
