// Threads share a limit on memory for large pictures: they wait for each other in order, and never for ever.
#include "runtime/base/large_memory.h"

#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/aligned_bytes.h"
#include "runtime/base/error.h"

namespace penstock {
namespace {

constexpr size_t kPicture = size_t{100} << 20;
constexpr auto kSoon = std::chrono::milliseconds(20);

// A picture in a thread of its own: takes what is asked of it, then keeps it until it is told to go.
class Picture {
 public:
  Picture(LargeMemory& memory, std::vector<size_t> needs)
      : thread_([this, &memory, needs = std::move(needs)] {
          try {
            const LargeMemory::Use use(&memory);
            for (const size_t need : needs) {
              take_large(need);
              ++taken_;
            }
            while (!done_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          } catch (const Error& error) {
            failure_ = error.what();
            failed_ = true;
          }
        }) {}
  ~Picture() { end(); }

  int taken() const { return taken_; }
  bool waits_at(int count) const {
    std::this_thread::sleep_for(kSoon);
    return taken_ == count;
  }
  void until_taken(int count) const {
    while (taken_ < count && !failed_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(taken_ >= count);
  }
  std::string until_failed() const {
    while (!failed_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return failure_;
  }
  void end() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<int> taken_ = 0;
  std::atomic<bool> done_ = false;
  std::atomic<bool> failed_ = false;
  std::string failure_;
  std::thread thread_;
};

TEST_CASE("what fits is taken at once, what does not waits until others are done") {
  LargeMemory memory(2 * kPicture);
  Picture first(memory, {kPicture});
  Picture second(memory, {kPicture});
  first.until_taken(1);
  second.until_taken(1);
  Picture third(memory, {kPicture});
  CHECK(third.waits_at(0));
  first.end();
  third.until_taken(1);
  CHECK(memory.figures().most == static_cast<int64_t>(2 * kPicture));
  CHECK(memory.figures().waited_ns > 0);
  second.end();
  third.end();
  CHECK(memory.figures().taken == 0);
  CHECK(memory.figures().pictures == 3);
}

TEST_CASE("a picture that needs more than the limit is made alone") {
  LargeMemory memory(kPicture);
  Picture small(memory, {kPicture / 2});
  small.until_taken(1);
  Picture large(memory, {3 * kPicture});
  CHECK(large.waits_at(0));
  small.end();
  large.until_taken(1);
  Picture other(memory, {kPicture / 2});
  CHECK(other.waits_at(0));
  large.end();
  other.until_taken(1);
}

TEST_CASE("small pictures do not pass a large one by in the line, and need no place in it below kLargeMemory") {
  LargeMemory memory(2 * kPicture);
  Picture holder(memory, {kPicture});
  holder.until_taken(1);
  Picture large(memory, {2 * kPicture});
  CHECK(large.waits_at(0));
  Picture would_fit(memory, {kLargeMemory});
  CHECK(would_fit.waits_at(0));
  Picture tiny(memory, {kLargeMemory - 1});
  tiny.until_taken(1);
  holder.end();
  large.until_taken(1);
  large.end();
  would_fit.until_taken(1);
  CHECK(memory.figures().pictures == 3);  // `tiny` took no part
}

TEST_CASE("two pictures that both want more: the eldest goes on, the other waits for it") {
  LargeMemory memory(2 * kPicture);
  Picture eldest(memory, {kPicture});
  eldest.until_taken(1);
  Picture other(memory, {kPicture, kPicture});
  other.until_taken(1);
  CHECK(other.waits_at(1));
  eldest.end();
  other.until_taken(2);  // it is the eldest now
  Picture third(memory, {kPicture});
  CHECK(third.waits_at(0));
  other.end();
  third.until_taken(1);
}

TEST_CASE("with no limit left pictures are made one at a time") {
  LargeMemory memory(0);
  Picture first(memory, {kPicture, kPicture});
  first.until_taken(2);
  Picture second(memory, {kLargeMemory});
  CHECK(second.waits_at(0));
  memory.set_limit(3 * kPicture);  // a split was closed: its chunk buffers leave room
  second.until_taken(1);
}

TEST_CASE("a wait in which nobody gives anything back is given up, by name") {
  LargeMemory memory(kPicture, 30 * kMillisecond);
  Picture holder(memory, {kPicture});
  holder.until_taken(1);
  Picture waiting(memory, {kPicture});
  const std::string why = waiting.until_failed();
  CHECK(why.find("104 MB") != std::string::npos);
  CHECK(why.find("other pictures hold 104 MB of 104 MB") != std::string::npos);
  CHECK(why.find("loader.memory_gb") != std::string::npos);
}

TEST_CASE("close() ends those who wait, and those who come later") {
  LargeMemory memory(kPicture);
  Picture holder(memory, {kPicture});
  holder.until_taken(1);
  Picture waiting(memory, {kPicture});
  CHECK(waiting.waits_at(0));
  memory.close();
  CHECK(waiting.until_failed().find("the loader ends") != std::string::npos);
}

TEST_CASE("AlignedBytes asks before it grows, and lets large memory go alone") {
  LargeMemory memory(kPicture);
  AlignedBytes small;
  AlignedBytes large;
  {
    const LargeMemory::Use use(&memory);
    small.get(1000);
    CHECK_FALSE(use.any());
    large.get(kLargeMemory);
    CHECK(use.any());
    CHECK(memory.figures().taken == static_cast<int64_t>(kLargeMemory));
    small.let_large_go();
    large.let_large_go();
  }
  CHECK(memory.figures().taken == 0);
  CHECK(small.capacity() >= 1000);
  CHECK(large.capacity() == 0);
  large.get(kLargeMemory);  // without a Use nothing is counted
  CHECK(memory.figures().taken == 0);
}

TEST_CASE(
    "property: many threads with random needs all come through, and one picture's need at most is above the limit") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  constexpr int64_t limit = 64 << 20;
  LargeMemory memory(limit);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&memory, seed, t] {
      std::mt19937 random(seed + t);
      for (int picture = 0; picture < 300; ++picture) {
        const LargeMemory::Use use(&memory);
        for (unsigned parts = random() % 4; parts > 0; --parts) take_large((random() % 60) << 20);
        if (random() % 8 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const LargeMemory::Figures figures = memory.figures();
  CHECK(figures.taken == 0);
  CHECK(figures.most <= limit + 3 * (int64_t{59} << 20));
}

}  // namespace
}  // namespace penstock
