// What links cost, as learned from chunks that arrive. Times are in milliseconds, sizes in megabytes.
#include "runtime/balancer/link_costs.h"

#include <doctest/doctest.h>

namespace penstock::link_costs_test {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kMb = 1'000'000;
constexpr Link kLink{1, 0};

// `count` chunks of 1 MB, all made at once, over a link that takes `each_ms` for one and `latency_ms` before the first.
int64_t send(LinkCosts& links, int64_t count, int64_t each_ms, int64_t latency_ms, int64_t now_ms) {
  for (int64_t i = 0; i < count; ++i) links.granted(kLink, kMb);
  for (int64_t i = 1; i <= count; ++i) {
    links.arrived(kLink, kMb, now_ms * kMs, (now_ms + latency_ms + i * each_ms) * kMs);
  }
  return now_ms + latency_ms + count * each_ms;
}

TEST_CASE("within a node nothing travels; an unknown link is one of 100 Mbit/s, and twice as fast every second") {
  LinkCosts links;
  links.begin(0);
  CHECK(links.expected_ns({3, 3}, kMb, 0) == 0);
  CHECK(links.expected_ns(kLink, kMb, 0) == 80 * kMs);
  links.granted(kLink, kMb);
  CHECK(links.expected_ns(kLink, kMb, 0) == 160 * kMs);
  links.dropped(kLink, kMb);
  CHECK(links.expected_ns(kLink, kMb, 0) == 80 * kMs);
  CHECK(links.expected_ns(kLink, kMb, 3'500 * kMs) == 10 * kMs);
  CHECK(links.figures().empty());
}

TEST_CASE("rate and latency are told apart, and what is on its way comes first") {
  for (const int64_t latency_ms : {0, 100}) {
    CAPTURE(latency_ms);
    LinkCosts links;
    int64_t now_ms = 0;
    for (int round = 0; round < 50; ++round) now_ms = send(links, 10, 80, latency_ms, now_ms);
    const int64_t one = links.expected_ns(kLink, kMb, now_ms * kMs);
    CHECK(static_cast<double>(one) == doctest::Approx(static_cast<double>((80 + latency_ms) * kMs)).epsilon(0.05));
    links.granted(kLink, 3 * kMb);
    const int64_t fourth = links.expected_ns(kLink, kMb, now_ms * kMs);
    CHECK(static_cast<double>(fourth - one) == doctest::Approx(240.0 * kMs).epsilon(0.01));
    CHECK(links.figures().at(kLink).chunks == 500);
    CHECK(links.figures().at(kLink).bytes == 500 * kMb);
  }
}

TEST_CASE("a first chunk alone says what one takes") {
  LinkCosts links;
  send(links, 1, 80, 0, 1000);
  CHECK(links.expected_ns(kLink, kMb, 1080 * kMs) == 80 * kMs);
}

TEST_CASE("what was learned of a slow link fades while nothing travels, so that it is tried again") {
  LinkCosts links;
  const int64_t now_ms = send(links, 10, 80, 0, 0);
  CHECK(links.expected_ns(kLink, kMb, (now_ms + 9'999) * kMs) > 70 * kMs);
  CHECK(links.expected_ns(kLink, kMb, (now_ms + 10'000) * kMs) < 41 * kMs);
  CHECK(links.expected_ns(kLink, kMb, (now_ms + 60'000) * kMs) < 2 * kMs);
  links.granted(kLink, kMb);  // something is on its way, and does not arrive
  CHECK(links.expected_ns(kLink, kMb, (now_ms + 60'000) * kMs) > 150 * kMs);
}

TEST_CASE("a link is full when what travels takes a second, or while nothing has arrived and four chunks travel") {
  LinkCosts links;
  CHECK_FALSE(links.is_full(kLink, kMb));
  for (int i = 0; i < 3; ++i) links.granted(kLink, kMb);
  CHECK_FALSE(links.is_full(kLink, kMb));
  links.granted(kLink, kMb);
  CHECK(links.is_full(kLink, kMb));
  links.arrived(kLink, kMb, 0, 300 * kMs);  // three that travel take 0.9 s, if it is its bytes that took so long
  CHECK_FALSE(links.is_full(kLink, kMb));
  links.granted(kLink, kMb);
  CHECK(links.is_full(kLink, kMb));
  links.arrived(kLink, kMb, 0, 310 * kMs);  // it was latency
  links.granted(kLink, 10 * kMb);
  CHECK_FALSE(links.is_full(kLink, kMb));
  CHECK_FALSE(links.is_full({1, 1}, kMb));
}

TEST_CASE("what a link carries at its best is that of sixteen arrivals after another one, and unknown of fewer") {
  LinkCosts links;
  const auto arrive = [&](int chunks, int64_t every_ms, int64_t now_ms) {
    for (int i = 0; i < chunks; ++i) links.arrived(kLink, kMb, 0, (now_ms += every_ms) * kMs);
    return now_ms;
  };
  const double mb = static_cast<double>(kMb);
  int64_t now_ms = arrive(16, 10, 1000);
  CHECK(links.figures().at(kLink).peak_bytes_per_s == 0);
  now_ms = arrive(10, 10, now_ms);
  CHECK(links.figures().at(kLink).peak_bytes_per_s == doctest::Approx(100 * mb));
  now_ms = arrive(100, 20, now_ms);
  CHECK(links.figures().at(kLink).peak_bytes_per_s == doctest::Approx(100 * mb));
  now_ms = arrive(4, 0, now_ms);  // at once, as of a receiver that was late
  CHECK(links.figures().at(kLink).peak_bytes_per_s == doctest::Approx(100 * mb));
  arrive(40, 5, now_ms);
  CHECK(links.figures().at(kLink).peak_bytes_per_s == doctest::Approx(16 * mb / (12 * 0.005)));
}

TEST_CASE("a link that becomes faster is known to be within some tens of chunks") {
  LinkCosts links;
  int64_t now_ms = send(links, 100, 80, 0, 0);
  for (int round = 0; round < 6; ++round) now_ms = send(links, 10, 1, 0, now_ms);
  CHECK(links.expected_ns(kLink, kMb, now_ms * kMs) < 4 * kMs);
}

}  // namespace
}  // namespace penstock::link_costs_test
