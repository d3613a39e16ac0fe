// How a link between GPUs (runtime/gpu/gpu_link.h) came out, for tests that wait for it: seconds, and mostly none.
//
//   REQUIRE(after_joining(*link) == LinkState::joined);
//   CHECK(fails(*link, "the other end"));
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>

#include "runtime/gpu/gpu_link.h"

namespace penstock_test {

template <class Done>
void wait_until(const Done& done) {
  for (int i = 0; i < 5000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline penstock::LinkState after_joining(const penstock::GpuLink& link) {
  wait_until([&] { return link.state() != penstock::LinkState::joining; });
  return link.state();
}

// It does, and says `text` among other things.
inline bool fails(const penstock::GpuLink& link, const std::string& text) {
  wait_until([&] { return link.state() == penstock::LinkState::failed; });
  INFO(link.failure());
  CHECK(link.failure().find(text) != std::string::npos);
  return link.state() == penstock::LinkState::failed;
}

}  // namespace penstock_test
