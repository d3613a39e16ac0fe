// A link between GPUs that are this CPU: what GPUs' links promise (gpu_link.h), by a socket.
#include "runtime/gpu/played/host_link.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/gpu/played/host_gpu.h"
#include "tests/support/link_states.h"

namespace penstock {
namespace {

constexpr Nanoseconds kSoon = 30 * kMillisecond;

using penstock_test::after_joining;
using penstock_test::fails;

struct Ends {
  explicit Ends(const LinkTimeouts& timeouts = {}) {
    const std::string id = new_host_link_id();
    here = open_host_link(id, LinkEnd::sender, timeouts);
    there = open_host_link(id, LinkEnd::receiver, timeouts);
    REQUIRE(after_joining(*here) == LinkState::joined);
    REQUIRE(there->state() == LinkState::joined);
  }
  std::unique_ptr<Gpu> gpu = open_host_gpu(0, size_t{1} << 20);
  std::unique_ptr<GpuLink> here;
  std::unique_ptr<GpuLink> there;
  std::unique_ptr<GpuStream> stream = gpu->stream();
};

TEST_CASE("what one end sends the other receives in its stream, in order, of whatever size") {
  Ends ends;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> got;
  for (size_t i = 0; i < 12; ++i) {
    sent.emplace_back(1 + 77'777 * (i % 5), static_cast<std::byte>(i + 1));
    got.emplace_back(sent.back().size());
  }
  for (auto& bytes : got) ends.there->receive(bytes.data(), bytes.size(), *ends.stream);
  for (const auto& bytes : sent) ends.here->send(bytes.data(), bytes.size());
  CHECK(got != sent);  // nothing happens before the stream is waited for
  ends.stream->wait(kSecond);
  CHECK(got == sent);
  CHECK(ends.stream->take_times().copy_ns > 0);
  ends.here.reset();  // what it sends from goes next
}

TEST_CASE("a link without another end") {
  const std::string id = new_host_link_id();
  SUBCASE("nobody comes") {
    const auto here = open_host_link(id, LinkEnd::sender, {.join_ns = kSoon});
    CHECK(fails(*here, "did not come"));
    here->send(nullptr, 5);  // to nobody
  }
  SUBCASE("nobody is there") {
    const auto there = open_host_link(id, LinkEnd::receiver);
    CHECK(fails(*there, "refused"));
  }
  SUBCASE("ended, or destroyed, while it waits") {
    const auto here = open_host_link(id, LinkEnd::sender);
    here->end("not wanted");
    CHECK(here->failure() == "not wanted");
    here->end("nor now");
    CHECK(here->failure() == "not wanted");
  }
}

TEST_CASE("a stream that receives ends when nothing is sent") {
  Ends ends({.move_ns = kSoon});
  std::vector<std::byte> bytes(100);
  ends.there->receive(bytes.data(), bytes.size(), *ends.stream);
  ends.stream->wait(20 * kSecond);
  CHECK(fails(*ends.there, "moves nothing"));
  CHECK_THROWS_AS(ends.there->receive(bytes.data(), 1, *ends.stream), GpuError);
}

TEST_CASE("a stream that receives ends whatever becomes of the link, and the link says what did") {
  Ends ends;
  std::vector<std::byte> bytes(100);
  ends.there->receive(bytes.data(), bytes.size(), *ends.stream);
  SUBCASE("a part, and then the sender is gone") {
    const std::byte some[10] = {};
    ends.here->send(some, sizeof some);
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ends.here.reset();
    });
    ends.stream->wait(20 * kSecond);
    later.join();
    CHECK(fails(*ends.there, "the other end"));
  }
  SUBCASE("ended from elsewhere") {
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ends.there->end("nobody wants it");
    });
    ends.stream->wait(20 * kSecond);
    later.join();
    CHECK(fails(*ends.there, "nobody wants it"));
  }
  CHECK_THROWS_AS(ends.there->receive(bytes.data(), 1, *ends.stream), GpuError);
}

TEST_CASE("a sender hears that its receiver is gone") {
  std::vector<std::byte> bytes(size_t{4} << 20);  // more than a socket takes
  Ends ends;
  ends.here->send(bytes.data(), bytes.size());
  ends.there.reset();
  CHECK(fails(*ends.here, "the other end"));
}

}  // namespace
}  // namespace penstock
