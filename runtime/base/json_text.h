// JSON as text, and back. Compiled once: nlohmann's parser costs each file that calls it a second of compiling.
//
//   const nlohmann::json state = parse_json(text);            // nlohmann::json::parse_error
//   const nlohmann::json state = parse_json_or_nothing(text); // state.is_discarded() where it is no JSON
//   json_text(state), json_text(state, 2)                     // one line; indented
//
// Both take text of our own or of moderate size; for what somebody else wrote see datasets/bounded_json.h.
// Failure: json_text() throws nlohmann::json::type_error for strings that are no UTF-8; json_text_replacing() has
//   U+FFFD for such bytes instead, as reports must not fail for a file's name. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace penstock {

nlohmann::json parse_json(std::string_view text);
nlohmann::json parse_json_or_nothing(std::string_view text);
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text_replacing(const nlohmann::json& value);

}  // namespace penstock
