#include "runtime/base/field_list.h"

#include <doctest/doctest.h>

using namespace penstock;

TEST_CASE("names between commas, without blanks and empty ones") {
  CHECK(names_in("").empty());
  CHECK(names_in(" , ,").empty());
  CHECK(names_in("a") == std::vector<std::string>{"a"});
  CHECK(names_in(" a b ,c:d,") == std::vector<std::string>{"a b", "c:d"});
}

TEST_CASE("fields with and without a kind, and what is wrong with one") {
  const std::vector<FieldRequest> asked = field_requests("depth, caption : text,x:y:bytes,,mask:word,:text, a: ");
  REQUIRE(asked.size() == 7);
  CHECK(asked[0].name == "depth");
  CHECK_FALSE(asked[0].has_kind);
  CHECK(asked[1].no_kind == " text");  // no blanks around the colon
  CHECK(asked[2].name == "x:y");
  CHECK(asked[2].kind == FieldKind::bytes);
  CHECK(asked[3].name.empty());
  CHECK_FALSE(asked[3].no_kind);
  CHECK(asked[4].name == "mask:word");  // whole, so that nothing of that name is found
  CHECK(asked[4].no_kind == "word");
  CHECK_FALSE(asked[4].has_kind);
  CHECK(asked[5].name.empty());
  CHECK(asked[5].kind == FieldKind::text);
  CHECK(asked[6].no_kind == "");
  CHECK(field_requests("").size() == 1);
}
