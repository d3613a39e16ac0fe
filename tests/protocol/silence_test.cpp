// Who has not been heard of for too long, on a clock of the test's own.
#include "runtime/protocol/silence.h"

#include <doctest/doctest.h>

#include <set>

namespace penstock {
namespace {

TEST_CASE("a peer that says nothing is named once, those that speak never") {
  SilenceWatch silence(kSecond);
  silence.watch(3, 0);
  silence.watch(5, 0);
  std::multiset<PeerId> silent;
  Nanoseconds first = 0;
  for (Nanoseconds now = 0; now < 5 * kSecond; now += 100 * kMillisecond) {
    silence.received(3, now);
    silence.received(4, now);  // nobody asked
    if (const auto peer = silence.tick(now)) {
      silent.insert(*peer);
      first = now;
    }
  }
  CHECK(silent == std::multiset<PeerId>{5});
  CHECK(first == 1100 * kMillisecond);
  CHECK(silence.reason().find("nothing was heard of it for 1 s") != std::string::npos);
}

TEST_CASE("several fall silent at once: each is named") {
  SilenceWatch silence(kSecond);
  for (PeerId peer = 1; peer <= 3; ++peer) silence.watch(peer, 0);
  std::multiset<PeerId> silent;
  for (Nanoseconds now = 0; now < 2 * kSecond; now += 100 * kMillisecond) {
    if (const auto peer = silence.tick(now)) silent.insert(*peer);
  }
  CHECK(silent == std::multiset<PeerId>{1, 2, 3});
}

TEST_CASE("time in which nobody listened is nobody's silence") {
  SilenceWatch silence(kSecond);
  silence.watch(1, 0);
  CHECK_FALSE(silence.tick(0));
  CHECK_FALSE(silence.tick(100 * kMillisecond));
  CHECK_FALSE(silence.tick(60 * kSecond));  // this process was stopped
  bool named = false;
  for (Nanoseconds now = 60 * kSecond; now < 62 * kSecond && !named; now += 100 * kMillisecond) {
    named = silence.tick(now).has_value();
    if (now < 60 * kSecond + 800 * kMillisecond) CHECK_FALSE(named);
  }
  CHECK(named);
}

TEST_CASE("a loop whose turns always take long misses who is silent, and nobody else") {
  SilenceWatch silence(kSecond);
  silence.watch(1, 0);
  silence.watch(2, 0);
  std::multiset<PeerId> silent;
  Nanoseconds at = 0;
  for (Nanoseconds now = 0; now < 12 * kSecond; now += 1100 * kMillisecond) {
    silence.received(1, now);
    if (const auto peer = silence.tick(now)) {
      silent.insert(*peer);
      at = now;
    }
  }
  CHECK(silent == std::multiset<PeerId>{2});
  CHECK(at == 2200 * kMillisecond);
}

TEST_CASE("a loop that is stopped again and again credits each stop to those who spoke between them") {
  SilenceWatch silence(kSecond);
  silence.watch(1, 0);
  for (Nanoseconds now = 0; now < 600 * kSecond; now += 60 * kSecond) {
    CHECK_FALSE(silence.tick(now));  // what waits is not read yet
    silence.received(1, now);
    CHECK_FALSE(silence.tick(now + 100 * kMillisecond));
  }
}

}  // namespace
}  // namespace penstock
