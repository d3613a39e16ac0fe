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

TEST_CASE("who knows what localhost is") {
  const std::string debian = "passwd: files\nhosts:          files dns\n";
  CHECK(knows_localhost("127.0.0.1\tlocalhost\n", debian));
  CHECK(knows_localhost("127.0.0.1 vm localhost # us\n", debian));
  CHECK(knows_localhost("::1 ip6-localhost localhost\n", debian));
  CHECK(knows_localhost("127.0.0.1 localhost\n", ""));
  CHECK_FALSE(knows_localhost("", debian));
  CHECK_FALSE(knows_localhost("", ""));
  CHECK_FALSE(knows_localhost("127.0.0.1 vm\n", debian));
  CHECK_FALSE(knows_localhost("# 127.0.0.1 localhost\n", debian));
  CHECK_FALSE(knows_localhost("127.0.0.1 localhost.localdomain\n", debian));
  CHECK_FALSE(knows_localhost("localhost\n", debian));
  CHECK_FALSE(knows_localhost("127.0.0.1 localhost\n", "hosts: dns"));
  CHECK(knows_localhost("", "hosts: files myhostname dns\n"));
  CHECK(knows_localhost("", "#hosts: files\nhosts: mymachines resolve [!UNAVAIL=return] files\n"));
}

}  // namespace
}  // namespace penstock
