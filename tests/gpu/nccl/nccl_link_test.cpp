// A link by NCCL, without GPUs: a library of the test's own (fake_nccl.c) that moves bytes and checks what it is told.
// What is not shown here is what NCCL makes of it, and CUDA's calls, which NcclCuda gives it.
#include "runtime/gpu/nccl/nccl_link.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/gpu/gpu.h"
#include "tests/gpu/nccl/fake_nccl.h"
#include "tests/support/link_states.h"

namespace penstock {
namespace {

const std::string kFake = std::string(FAKE_NCCL_FOLDER) + "/fake_nccl.so";
const std::string kOld = std::string(FAKE_NCCL_FOLDER) + "/old_nccl.so";
constexpr Nanoseconds kSoon = 30 * kMillisecond;
using penstock_test::after_joining;
using penstock_test::fails;

class NoStream final : public GpuStream {
 public:
  void upload(std::byte*, const std::byte*, size_t) override {}
  void launch(std::byte*, const StageLaunch&) override {}
  void download(std::byte*, const std::byte*, size_t) override {}
  void copy(std::byte*, const std::byte*, size_t) override {}
  void wait(Nanoseconds) override {}
  GpuTimes take_times() override { return {}; }
};

// The library, with nothing told, and CUDA streams that are numbers.
struct Bench {
  Bench() {
    std::string why;
    REQUIRE_MESSAGE(load_nccl(kFake, library, why), why);
    void* const handle = ::dlopen(kFake.c_str(), RTLD_NOW);
    REQUIRE(handle != nullptr);
    fake = reinterpret_cast<FakeNccl* (*)()>(::dlsym(handle, "fake_nccl"))();
    *fake = {};
    id = nccl_link_id(library);
  }
  ~Bench() {
    CHECK(fake->live == 0);
    CHECK(fake->wrong == 0);
    CHECK(streams == 0);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  std::unique_ptr<NcclLink> open(LinkEnd end, const LinkTimeouts& timeouts = {}) {
    NcclCuda cuda;
    cuda.use = [] {};
    cuda.make_stream = [this] {
      ++streams;
      return reinterpret_cast<cudaStream_t>(uintptr_t{8});
    };
    cuda.destroy_stream = [this](cudaStream_t) { --streams; };
    cuda.stream_of = [](GpuStream&) { return reinterpret_cast<cudaStream_t>(uintptr_t{16}); };
    return std::make_unique<NcclLink>(library, cuda, id, end, timeouts);
  }
  NcclLibrary library;
  FakeNccl* fake = nullptr;
  std::string id;
  std::atomic<int> streams = 0;
  NoStream stream;
};

TEST_CASE("what one end sends the other receives, in order, of whatever size") {
  Bench bench;
  const auto there = bench.open(LinkEnd::receiver);  // whoever comes first waits
  const auto here = bench.open(LinkEnd::sender);
  REQUIRE(after_joining(*here) == LinkState::joined);
  REQUIRE(after_joining(*there) == LinkState::joined);
  std::vector<std::vector<std::byte>> sent;
  for (size_t i = 0; i < 20; ++i) sent.emplace_back(1 + 77'777 * (i % 7), static_cast<std::byte>(i + 1));
  for (const auto& bytes : sent) here->send(bytes.data(), bytes.size());  // none of them waits for a receiver
  for (const auto& bytes : sent) {
    std::vector<std::byte> got(bytes.size());
    there->receive(got.data(), got.size(), bench.stream);
    CHECK(got == bytes);
  }
  CHECK(here->failure().empty());
}

TEST_CASE("an end that nobody joins, or that is stuck, gives up in time; one that is ended, at once") {
  Bench bench;
  SUBCASE("nobody comes") {
    const auto here = bench.open(LinkEnd::sender, {.join_ns = kSoon});
    CHECK(fails(*here, "joining: the other end has not answered"));
    here->send(nullptr, 5);  // to nobody
  }
  SUBCASE("ended while it joins") {
    const auto here = bench.open(LinkEnd::receiver);
    CHECK_THROWS_WITH_AS(here->receive(nullptr, 5, bench.stream), doctest::Contains("has not joined"), GpuError);
    here->end("it was not wanted");
    CHECK(fails(*here, "it was not wanted"));
  }
  SUBCASE("destroyed while it joins") {
    bench.open(LinkEnd::receiver);
  }
  SUBCASE("nothing is sent") {
    const auto here = bench.open(LinkEnd::sender);
    const auto there = bench.open(LinkEnd::receiver, {.move_ns = kSoon});
    REQUIRE(after_joining(*there) == LinkState::joined);
    std::vector<std::byte> bytes(10);
    CHECK_THROWS_WITH_AS(there->receive(bytes.data(), bytes.size(), bench.stream),
                         doctest::Contains("receiving: the other end has not answered"), GpuError);
    CHECK(there->state() == LinkState::failed);
    CHECK_THROWS_AS(there->receive(bytes.data(), bytes.size(), bench.stream), GpuError);  // as it stays
  }
}

TEST_CASE("the other end's death is heard of, receiving, sending or idle") {
  Bench bench;
  auto here = bench.open(LinkEnd::sender);
  auto there = bench.open(LinkEnd::receiver);
  REQUIRE(after_joining(*here) == LinkState::joined);
  REQUIRE(after_joining(*there) == LinkState::joined);
  std::vector<std::byte> bytes(4 << 20);
  SUBCASE("receiving") {
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      here.reset();
    });
    CHECK_THROWS_WITH_AS(there->receive(bytes.data(), bytes.size(), bench.stream),
                         doctest::Contains("remote process exited"), GpuError);
    later.join();
  }
  SUBCASE("sending") {
    here->send(bytes.data(), bytes.size());
    there.reset();
    CHECK(fails(*here, "remote process exited"));
  }
  SUBCASE("idle") {
    there.reset();
    CHECK(fails(*here, "the other end: remote process exited"));
  }
}

TEST_CASE("a receiver that waits is freed by end() from another thread") {
  Bench bench;
  const auto here = bench.open(LinkEnd::sender);
  const auto there = bench.open(LinkEnd::receiver);
  REQUIRE(after_joining(*there) == LinkState::joined);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    there->end("nobody wants it any more");
  });
  std::vector<std::byte> bytes(10);
  CHECK_THROWS_WITH_AS(there->receive(bytes.data(), bytes.size(), bench.stream),
                       doctest::Contains("nobody wants it any more"), GpuError);
  later.join();
}

TEST_CASE("what the library refuses is said in its words") {
  Bench bench;
  bench.fake->last_error = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000";
  SUBCASE("joining: a GPU twice, say") {
    bench.fake->init = ncclInvalidUsage;
    const auto here = bench.open(LinkEnd::sender);
    CHECK(fails(*here, "joining: an error of the library (Duplicate GPU detected"));
  }
  SUBCASE("sending") {
    const auto here = bench.open(LinkEnd::sender);
    const auto there = bench.open(LinkEnd::receiver);
    REQUIRE(after_joining(*here) == LinkState::joined);
    bench.fake->move = ncclInternalError;
    std::byte byte{};
    here->send(&byte, 1);
    CHECK(fails(*here, "sending: an error of the library"));
  }
}

TEST_CASE("ids that are none, and libraries that are none or too old") {
  Bench bench;
  bench.id = "short";
  CHECK_THROWS_WITH_AS(bench.open(LinkEnd::sender), doctest::Contains("none of NCCL's"), GpuError);
  NcclLibrary library;
  std::string why;
  CHECK_FALSE(load_nccl("/nowhere/libnccl.so.2", library, why));
  CHECK(why.find("/nowhere/libnccl.so.2") != std::string::npos);
  CHECK_FALSE(load_nccl(kOld, library, why));
  CHECK(why.find("NCCL 2.13.0: it is too old") != std::string::npos);
  ::setenv("PENSTOCK_NCCL", "/nowhere/libnccl.so.2", 1);
  CHECK_THROWS_WITH_AS(nccl_library(), doctest::Contains("NCCL cannot be loaded"), Error);
  ::setenv("PENSTOCK_NCCL", kFake.c_str(), 1);
  CHECK(nccl_library().name() == "NCCL 2.28.9");
}

}  // namespace
}  // namespace penstock
