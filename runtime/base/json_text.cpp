#include "runtime/base/json_text.h"

#include <nlohmann/json.hpp>

namespace penstock {

nlohmann::json parse_json(std::string_view text) {
  return nlohmann::json::parse(text);
}

nlohmann::json parse_json_or_nothing(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, false);
}

std::string json_text(const nlohmann::json& value, int indent) {
  return value.dump(indent);
}

std::string json_text_replacing(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace penstock
