// How `penstock doctor` writes what it finds.
#include "launch/findings.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/json_text.h"

namespace penstock {
namespace {

const Findings kFindings = {{"cpu", "two"}, {"io_uring", "refused", FindingLevel::note, "threads read instead"}};

TEST_CASE("columns, with remedies below what they are for") {
  CHECK(findings_text(kFindings) ==
        "cpu       two\n"
        "io_uring  note: refused\n"
        "          threads read instead\n");
}

TEST_CASE("JSON has the same") {
  const auto list = parse_json(findings_json(kFindings));
  REQUIRE(list.size() == 2);
  CHECK(list[0]["level"] == "fine");
  CHECK(list[1]["topic"] == "io_uring");
  CHECK(list[1]["level"] == "note");
  CHECK(list[1]["remedy"] == "threads read instead");
}

TEST_CASE("the least limit of all control groups counts") {
  CHECK(least_limit({}) == -1);
  CHECK(least_limit({"max", ""}) == -1);
  CHECK(least_limit({"max", "8000000000", "4294967296", "max"}) == 4294967296);
}

}  // namespace
}  // namespace penstock
