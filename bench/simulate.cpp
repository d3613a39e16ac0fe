// How fast virtual time passes: events a second of the bare loop, with so many pending.
//
//   build/release/bench_simulate [pending=100000] [events=10000000]
//
// Each event adds another one, at a time that is drawn, and checks the order.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "runtime/simulate/event_loop.h"
#include "runtime/simulate/seeded_random.h"

namespace {

using penstock::EventLoop;
using penstock::Nanoseconds;
using penstock::SeededRandom;

struct Source {
  EventLoop loop;
  SeededRandom random{1};
  int64_t happened = 0;
  Nanoseconds last = 0;
  bool ordered = true;

  void add() {
    loop.after(random.below(1'000'000), [this] {
      ordered = ordered && loop.now() >= last;
      last = loop.now();
      ++happened;
      add();
    });
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t pending = argc > 1 ? std::atoll(argv[1]) : 100'000;
  const int64_t events = argc > 2 ? std::atoll(argv[2]) : 10'000'000;
  if (pending < 1 || events < 1) {
    std::fprintf(stderr, "bench_simulate: numbers above 0: events that are pending, events to time\n");
    return 2;
  }
  Source source;
  for (int64_t i = 0; i < pending; ++i) source.add();
  while (source.happened < events / 10) source.loop.step();
  const auto begun = std::chrono::steady_clock::now();
  const int64_t before = source.happened;
  while (source.happened < before + events) source.loop.step();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  if (!source.ordered || source.loop.pending() != static_cast<size_t>(pending)) {
    std::fprintf(stderr, "bench_simulate: the loop is not in order\n");
    return 1;
  }
  std::printf("%.2f million events/s of the bare loop, %lld pending\n",
              static_cast<double>(events) / took.count() / 1e6, static_cast<long long>(pending));
  return 0;
}
