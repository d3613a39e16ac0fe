// Buffer ranges of a GPU's memory that are exported to other processes: who may write when.
// tests/gpu/cuda/exported_memory_processes_test has the processes.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "runtime/gpu/buffer_ranges.h"
#include "runtime/gpu/gpu_finisher.h"
#include "runtime/gpu/played/host_gpu.h"
#include "tests/support/faulty_gpu.h"

namespace {

using namespace penstock;

constexpr size_t kGpuBytes = size_t{64} << 20;

}  // namespace

TEST_CASE("a buffer range that was exported is free again when the one that it was exported to says so, once") {
  const auto gpu = open_host_gpu(0, kGpuBytes);
  BufferRanges buffer_ranges(*gpu, 4096);
  const auto first = buffer_ranges.take(3000);
  REQUIRE(first);
  CHECK_FALSE(buffer_ranges.take(3000));  // no room
  CHECK(buffer_ranges.export_range(first->id, 1));
  CHECK_FALSE(buffer_ranges.export_range(first->id, 2));  // another one has it
  SUBCASE("not at somebody else's word, nor at its filler's") {
    buffer_ranges.give_back(first->id, 2);
    buffer_ranges.drop(first->id);
    CHECK_FALSE(buffer_ranges.take(3000));
  }
  SUBCASE("nor at the word on a buffer range that lay in the same place before") {
    buffer_ranges.give_back(first->id, 1);
    const auto second = buffer_ranges.take(3000);
    REQUIRE(second);
    CHECK(second->at == first->at);
    CHECK(buffer_ranges.export_range(second->id, 1));
    buffer_ranges.give_back(first->id, 1);
    CHECK_FALSE(buffer_ranges.take(3000));
    buffer_ranges.give_back(second->id, 1);
    CHECK(buffer_ranges.take(3000));
  }
  CHECK(buffer_ranges.figures().refused >= 2);
}

TEST_CASE("one consumer cannot have it all, however slowly it reads") {
  const auto gpu = open_host_gpu(0, kGpuBytes);
  BufferRanges buffer_ranges(*gpu, 64 * 1024);
  const size_t all = buffer_ranges.bytes() / 1024;
  const auto most = [&](BufferRanges::Consumer whose) {
    size_t taken = 0;
    while (const auto buffer_range = buffer_ranges.take(1024, whose)) {
      // filled or exported: it counts as its
      if (taken++ % 2 == 0) CHECK(buffer_ranges.export_range(buffer_range->id, whose));
    }
    return taken;
  };
  // Four times what is left: 4/5 of it, then of the rest as much as leaves a quarter of that.
  const size_t first = most(1);
  CHECK(first == all * 4 / 5);
  CHECK_FALSE(buffer_ranges.take(1024, 1));
  const size_t second = most(2);
  CHECK((second >= 1 && 4 * (all - first - second) + 4 > second));
  // With both at it from the beginning, each has as much.
  for (const BufferRanges::Consumer one : {1, 2}) buffer_ranges.forget(one);
  BufferRanges fair(*gpu, 64 * 1024);
  size_t taken[2] = {0, 0};
  for (bool any = true; any;) {
    any = false;
    for (const int one : {0, 1}) {
      if (!fair.take(1024, one)) continue;
      ++taken[one];
      any = true;
    }
  }
  CHECK(taken[0] + taken[1] >= all * 8 / 10);
  CHECK((taken[0] <= taken[1] + 1 && taken[1] <= taken[0] + 1));
}

TEST_CASE("a consumer that dies gives back what it had, and nothing that is still being written") {
  const auto gpu = open_host_gpu(0, kGpuBytes);
  BufferRanges buffer_ranges(*gpu, 4096);
  const auto read = buffer_ranges.take(1024);
  const auto others = buffer_ranges.take(1024);
  const auto filled = buffer_ranges.take(2048);
  REQUIRE((read && others && filled));
  CHECK(buffer_ranges.export_range(read->id, 1));
  CHECK(buffer_ranges.export_range(others->id, 2));
  buffer_ranges.forget(1);
  const auto again = buffer_ranges.take(1024);
  REQUIRE(again);
  CHECK(again->at == read->at);
  CHECK_FALSE(buffer_ranges.take(1));                      // the other two are not free
  CHECK_FALSE(buffer_ranges.export_range(filled->id, 1));  // it was for the dead one: free, as it is written now
  CHECK(buffer_ranges.take(2048));
  CHECK(buffer_ranges.figures().out == 3);
}

TEST_CASE("a consumer that is left keeps what it had, and gets no more") {
  const auto gpu = open_host_gpu(0, kGpuBytes);
  BufferRanges buffer_ranges(*gpu, 4096);
  const auto read = buffer_ranges.take(1024);
  const auto filled = buffer_ranges.take(2048);
  REQUIRE((read && filled));
  CHECK(buffer_ranges.export_range(read->id, 1));
  buffer_ranges.leave(1);
  CHECK_FALSE(buffer_ranges.export_range(filled->id, 1));
  CHECK(buffer_ranges.figures().out == 1);
  const auto next = buffer_ranges.take(1024);
  REQUIRE(next);
  CHECK(next->at != read->at);
  buffer_ranges.give_back(read->id, 1);  // it says so all the same
  CHECK(buffer_ranges.figures().out == 1);
}

TEST_CASE("a GPU that exports no memory says so, and one that is short of it") {
  const auto faults = std::make_shared<GpuFaults>();
  FaultyGpu gpu(open_host_gpu(0, 1 << 20), faults);
  CHECK_THROWS_WITH_AS(BufferRanges(gpu, 2 << 20), doctest::Contains("out of memory"), GpuError);
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(BufferRanges(gpu, 1 << 20));  // and all of it goes back
  faults->most_exported_bytes = 0;
  CHECK_THROWS_WITH_AS(BufferRanges(gpu, 1000), doctest::Contains("exports no memory"), Error);
}

TEST_CASE("images outside of the shared memory are not looked at") {
  const auto gpu = open_host_gpu(0, kGpuBytes);
  const auto exported = gpu->export_memory(1000);
  CHECK(images_in(*exported, 0, 1000) == reinterpret_cast<const uint8_t*>(exported->data()));
  CHECK(images_in(*exported, 1000, 0) == reinterpret_cast<const uint8_t*>(exported->data()) + 1000);
  for (const auto& [at, bytes] : {std::pair<uint64_t, uint64_t>{1, 1000}, {1001, 0}, {~0ULL, 2}, {2, ~0ULL}}) {
    CHECK_THROWS_WITH_AS(images_in(*exported, at, bytes), doctest::Contains("outside the memory"), Error);
  }
  // Nor is a descriptor of less than was said.
  CHECK_THROWS_AS(gpu->open_exported(UniqueFd(::dup(exported->fd())), 100'000), Error);
}

TEST_CASE("whatever is taken, exported and given back, no two buffer ranges meet, and in the end all is free") {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto gpu = open_host_gpu(0, kGpuBytes);
  constexpr size_t kBytes = 1 << 16;
  BufferRanges buffer_ranges(*gpu, kBytes);
  struct Known {
    BufferRange buffer_range;
    int32_t exported_to = -1;
  };
  std::vector<Known> known;
  int32_t dead = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto any = [&] { return random() % known.size(); };
    switch (random() % 4) {
      case 0:
        if (const auto buffer_range = buffer_ranges.take(1 + random() % (kBytes / 8))) known.push_back({*buffer_range});
        break;
      case 1:
        if (known.empty()) break;
        if (Known& one = known[any()]; one.exported_to < 0) {
          one.exported_to = dead + static_cast<int32_t>(random() % 3);
          CHECK(buffer_ranges.export_range(one.buffer_range.id, one.exported_to));
        }
        break;
      case 2: {
        if (known.empty()) break;
        const size_t at = any();
        const auto from = dead + static_cast<int32_t>(random() % 3);
        buffer_ranges.give_back(known[at].buffer_range.id, from);
        if (known[at].exported_to == from) known.erase(known.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      default:
        if (random() % 100 != 0) break;
        buffer_ranges.forget(dead);
        std::erase_if(known, [&](const Known& one) { return one.exported_to == dead; });
        ++dead;
    }
    std::map<uint64_t, uint64_t> places;
    for (const Known& one : known) places[one.buffer_range.at] = one.buffer_range.at + one.buffer_range.bytes;
    REQUIRE(places.size() == known.size());
    uint64_t end = 0;
    for (const auto& [from, to] : places) {
      REQUIRE(from >= end);
      end = to;
    }
    REQUIRE(end <= buffer_ranges.bytes());
  }
  for (const Known& one : known) {
    buffer_ranges.drop(one.buffer_range.id);
    if (one.exported_to >= 0) buffer_ranges.give_back(one.buffer_range.id, one.exported_to);
  }
  CHECK(buffer_ranges.figures().out == 0);
  CHECK(buffer_ranges.take(kBytes));
}
