// JSON as text: what happens to bytes that are no UTF-8, and to text that is no JSON.
#include "runtime/base/json_text.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace penstock {
namespace {

TEST_CASE("one line, or indented, and back") {
  const nlohmann::json value = {{"name", "cat\n"}, {"steps", {1, 2}}};
  CHECK(json_text(value) == R"({"name":"cat\n","steps":[1,2]})");
  CHECK(json_text(value["steps"], 1) == "[\n 1,\n 2\n]");
  CHECK(parse_json(json_text(value, 2)) == value);
}

TEST_CASE("a file's name that is no UTF-8 fails nothing but what has to be exact") {
  const nlohmann::json value = "caf\xe9.jpg";
  CHECK_THROWS_AS(json_text(value), nlohmann::json::type_error);
  CHECK(json_text_replacing(value) == "\"caf\xef\xbf\xbd.jpg\"");
}

TEST_CASE("text that is no JSON is an exception, or nothing") {
  CHECK_THROWS_AS(parse_json("{"), nlohmann::json::parse_error);
  CHECK(parse_json_or_nothing("{").is_discarded());
  CHECK(parse_json_or_nothing("[]").is_array());
}

}  // namespace
}  // namespace penstock
