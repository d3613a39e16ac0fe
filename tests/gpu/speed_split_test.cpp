// Threads and GPUs share images by learned speeds: near the best share there is, wherever the bottleneck is and moves
// to.
#include "runtime/gpu/speed_split.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <queue>
#include <random>
#include <vector>

namespace penstock {
namespace {

constexpr double kSecond = 1e9;

struct SimulatedGpu {
  double images_per_s = 1000;
  double batch_ns = 200'000;  // of a batch, however many its images
  bool lost = false;
};

struct Machine {
  int threads = 4;
  double make_ns = 1e6;
  double feed_ns = 0.6e6;
  double other_ns = 0.5e6;
  double other_share = 0;  // of the images: no GPU takes them
  double noise = 0.3;
  std::vector<SimulatedGpu> gpus{SimulatedGpu{}};
  int chunk = 32;
  size_t chunks_ahead = 8;
};

// Threads that take samples of the oldest chunk, in-flight batches that are filled and closed, a GPU that makes one
// batch after the other: loader/gpu_feeder.cpp in simulated time.
class Simulation {
 public:
  Simulation(const Machine& machine, std::function<int64_t(int64_t)> for_gpus, SpeedSplit* split)
      : machine_(machine),
        for_gpus_(std::move(for_gpus)),
        split_(split),
        free_at_(machine.gpus.size()),
        in_flight_(machine.gpus.size(), 3),
        back_(machine.gpus.size()) {
    for (int i = 0; i < machine.threads; ++i) events_.push({0, Event::idle});
  }

  Machine& machine() { return machine_; }
  int64_t by_gpus() const { return by_gpus_; }
  const std::vector<int64_t>& images_of() const { return images_of_; }

  // Images a second.
  double run(int64_t images) {
    const double begun = now_;
    by_gpus_ = 0;
    images_of_.assign(machine_.gpus.size(), 0);
    int64_t done = 0;
    while (done < images) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      if (event.kind == Event::idle) {
        take();
      } else if (event.kind == Event::made) {
        count(event.chunk, 1, done);
        events_.push({now_, Event::idle});
      } else {
        ++in_flight_[event.gpu];
        const SimulatedGpu& gpu = machine_.gpus[event.gpu];
        const int64_t good = gpu.lost ? 0 : event.images;
        if (split_ != nullptr) {
          const double since = std::max(back_[event.gpu], event.begun);
          split_->done(event.gpu, event.images, good, static_cast<int64_t>(now_ - since));
          if (gpu.lost) split_->lost(event.gpu);
        }
        back_[event.gpu] = now_;
        by_gpus_ += good;
        images_of_[event.gpu] += good;
        count(event.chunk, event.images, done);  // a failed one is made by threads: a little too cheap here
      }
      for (; waiting_ > 0 && has_work(); --waiting_) events_.push({now_, Event::idle});
    }
    return static_cast<double>(images) / (now_ - begun) * kSecond;
  }

 private:
  struct Event {
    enum Kind { idle, made, batch };
    double at = 0;
    Kind kind = idle;
    size_t chunk = 0;
    size_t gpu = 0;
    int64_t images = 0;
    double begun = 0;
    bool operator<(const Event& other) const { return at > other.at; }
  };
  struct Chunk {
    int64_t next = 0;
    int64_t left = 0;
    int64_t wanted = 0;
    int64_t gathered = 0;
    int in_flight = -1;
  };

  bool has_work() {
    while (chunks_.size() - finished_ < machine_.chunks_ahead) chunks_.push_back({0, machine_.chunk});
    while (oldest_ < chunks_.size() && chunks_[oldest_].next == machine_.chunk) ++oldest_;
    return oldest_ < chunks_.size();
  }
  double about(double ns) {
    return ns * std::uniform_real_distribution(1 - machine_.noise, 1 + machine_.noise)(random_);
  }

  void take() {
    if (!has_work()) {
      ++waiting_;
      return;
    }
    const size_t number = oldest_;
    Chunk& chunk = chunks_[number];
    if (chunk.next++ == 0) chunk.wanted = for_gpus_(machine_.chunk);
    const bool last = chunk.next == machine_.chunk;
    double ns = 0;
    bool fed = false;
    if (std::uniform_real_distribution()(random_) < machine_.other_share) {
      ns = about(machine_.other_ns);
      if (split_ != nullptr) split_->other(static_cast<int64_t>(ns));
    } else if (chunk.wanted > 0 && batch_for(chunk)) {
      ns = about(machine_.feed_ns);
      fed = true;
      --chunk.wanted;
      ++chunk.gathered;
      if (split_ != nullptr) split_->fed(static_cast<int64_t>(ns));
    } else {
      ns = about(machine_.make_ns);
      if (split_ != nullptr) split_->made(static_cast<int64_t>(ns));
    }
    if (fed) {
      events_.push({now_ + ns, Event::idle});
    } else {
      events_.push({now_ + ns, Event::made, number});
    }
    if (chunk.in_flight >= 0 && (chunk.wanted == 0 || last)) submit(number, now_ + ns);
  }
  bool batch_for(Chunk& chunk) {
    if (chunk.in_flight >= 0) return true;
    double best = 0;
    for (size_t gpu = 0; gpu < machine_.gpus.size(); ++gpu) {
      if (machine_.gpus[gpu].lost || in_flight_[gpu] == 0) continue;
      const double wait = split_ != nullptr ? split_->wait_s(gpu, chunk.wanted) : 0;
      if (chunk.in_flight >= 0 && wait >= best) continue;
      best = wait;
      chunk.in_flight = static_cast<int>(gpu);
    }
    if (chunk.in_flight < 0) return false;
    --in_flight_[static_cast<size_t>(chunk.in_flight)];
    return true;
  }
  void submit(size_t number, double at) {
    Chunk& chunk = chunks_[number];
    const auto gpu = static_cast<size_t>(chunk.in_flight);
    const SimulatedGpu& speed = machine_.gpus[gpu];
    if (split_ != nullptr) split_->begun(gpu, chunk.gathered);
    const double begun = std::max(at, free_at_[gpu]);
    const double images = static_cast<double>(chunk.gathered);
    free_at_[gpu] = begun + speed.batch_ns + images / speed.images_per_s * kSecond;
    events_.push({free_at_[gpu], Event::batch, number, gpu, chunk.gathered, at});
    chunk.gathered = 0;
    chunk.in_flight = -1;
  }
  void count(size_t number, int64_t images, int64_t& done) {
    done += images;
    if ((chunks_[number].left -= images) == 0) ++finished_;
  }

  Machine machine_;
  std::function<int64_t(int64_t)> for_gpus_;
  SpeedSplit* split_;
  std::mt19937_64 random_{7};
  std::priority_queue<Event> events_;
  std::vector<Chunk> chunks_;
  std::vector<double> free_at_;
  std::vector<int> in_flight_;
  std::vector<double> back_;
  std::vector<int64_t> images_of_;
  size_t oldest_ = 0;
  size_t finished_ = 0;
  int waiting_ = 0;
  int64_t by_gpus_ = 0;
  double now_ = 0;
};

// The best of all shares that stay as they are.
double best_fixed(const Machine& machine) {
  double best = 0;
  for (int percent = 0; percent <= 100; percent += 2) {
    double credit = 0;
    Simulation simulation(
        machine,
        [&](int64_t images) {
          credit += static_cast<double>(images) * percent / 100 * (1 - machine.other_share);
          const auto now = static_cast<int64_t>(credit);
          credit -= static_cast<double>(now);
          return now;
        },
        nullptr);
    simulation.run(2'000);
    best = std::max(best, simulation.run(20'000));
  }
  return best;
}

struct Learned {
  SpeedSplit split;
  Simulation simulation;
  explicit Learned(const Machine& machine)
      : split(machine.threads, machine.gpus.size()),
        simulation(
            machine, [this](int64_t images) { return split.for_gpus(images); }, &split) {}
};

TEST_CASE("wherever the bottleneck is, the share is near the best there is") {
  struct Case {
    const char* name;
    Machine machine;
  };
  std::vector<Case> cases = {
      {"the GPU is the bottleneck", {}},
      {"a GPU that keeps up", {.gpus = {{.images_per_s = 50'000}}}},
      {"a GPU of a tenth of the threads", {.gpus = {{.images_per_s = 400}}}},
      {"feeding costs next to nothing", {.feed_ns = 0.05e6, .gpus = {{.images_per_s = 8'000}}}},
      {"feeding costs more than making", {.feed_ns = 1.5e6}},
      {"feeding costs the same", {.feed_ns = 1e6}},
      {"many threads", {.threads = 16, .gpus = {{.images_per_s = 9'000}}}},
      {"one thread", {.threads = 1, .gpus = {{.images_per_s = 300}}}},
      {"a third of the images is not for GPUs", {.other_share = 0.33, .gpus = {{.images_per_s = 2'000}}}},
      {"chunks of four", {.gpus = {{.images_per_s = 2'000}}, .chunk = 4, .chunks_ahead = 32}},
      {"two GPUs, one ten times as fast", {.threads = 8, .gpus = {{.images_per_s = 300}, {.images_per_s = 3'000}}}},
      {"the CPU is fifty times as slow", {.make_ns = 25e6, .feed_ns = 0.5e6, .gpus = {{.images_per_s = 50'000}}}},
  };
  for (const Case& one : cases) {
    INFO(one.name);
    Learned learned(one.machine);
    learned.simulation.run(6'000);
    const double reached = learned.simulation.run(20'000);
    const double best = best_fixed(one.machine);
    std::printf("%-40s %6.0f images/s of %6.0f, share of GPUs %.3f\n", one.name, reached, best,
                learned.split.gpu_share());
    CHECK(reached >= 0.95 * best);
    const std::vector<int64_t>& images = learned.simulation.images_of();
    if (images.size() == 2) {
      CHECK(images[0] > 0);
      CHECK(images[1] > 5 * images[0]);  // a tenth of the speed
    }
  }
}

TEST_CASE("the share is the one that the speeds give") {
  // 4 threads, 1 ms and 0.6 ms, 2000 images/s: s * 0.6 + (1 - s) = 4 * s / 2, so s = 1 / 2.4.
  SpeedSplit split(4, 1);
  CHECK(split.gpu_share() == 0.5);
  for (int i = 0; i < 200; ++i) {
    split.made(1'000'000);
    split.fed(600'000);
    split.done(0, 20, 20, 10'000'000);
  }
  CHECK(split.gpu_images_per_s(0) == doctest::Approx(2000));
  CHECK(split.gpu_share() == doctest::Approx(1 / 2.4));
  int64_t given = 0;
  for (int i = 0; i < 1000; ++i) given += split.for_gpus(10);
  CHECK(given == doctest::Approx(10'000 / 2.4).epsilon(0.01));
  // One image of four is for no GPU, and costs 2 ms: each of the others drags 2/3 ms along.
  for (int i = 0; i < 1000; ++i) {
    split.other(2'000'000);
    split.fed(600'000);
    split.made(1'000'000);
    split.fed(600'000);
  }
  CHECK(split.gpu_share() == doctest::Approx(2.0 * (1 + 2.0 / 3) / (4 + 2 * 0.4)).epsilon(0.03));
}

TEST_CASE("it follows a GPU and threads that become slower and faster") {
  Learned learned({.gpus = {{.images_per_s = 2'000}}});
  Simulation& simulation = learned.simulation;
  simulation.run(6'000);
  for (const double speed : {200.0, 10'000.0, 500.0, 2'000.0}) {
    simulation.machine().gpus[0].images_per_s = speed;
    simulation.run(8'000);
    CHECK(simulation.run(10'000) >= 0.95 * best_fixed(simulation.machine()));
  }
  for (const double make : {8e6, 0.7e6, 1e6}) {
    simulation.machine().make_ns = make;
    simulation.run(20'000);
    CHECK(simulation.run(10'000) >= 0.95 * best_fixed(simulation.machine()));
  }
  // Feeding that is dearer than making, for a while.
  simulation.machine().feed_ns = 2e6;
  simulation.run(8'000);
  CHECK(learned.split.gpu_share() < 0.02);
  simulation.machine().feed_ns = 0.6e6;
  simulation.run(40'000);
  CHECK(simulation.run(10'000) >= 0.95 * best_fixed(simulation.machine()));
}

TEST_CASE("threads make all when every GPU is lost, and the rest where one is") {
  Learned learned({.gpus = {{.images_per_s = 900}, {.images_per_s = 900}}});
  learned.simulation.run(4'000);
  CHECK(learned.split.gpu_share() > 0.3);
  learned.simulation.machine().gpus[0].lost = true;
  learned.simulation.run(4'000);
  CHECK(learned.split.gpu_images_per_s(0) == 0);
  CHECK(learned.split.gpu_share() > 0.15);
  CHECK(learned.split.gpu_share() < 0.35);
  learned.simulation.machine().gpus[1].lost = true;
  learned.simulation.run(4'000);
  CHECK(learned.split.gpu_share() == 0);
  CHECK(learned.split.for_gpus(1'000) == 0);
  learned.simulation.run(4'000);
  CHECK(learned.simulation.by_gpus() == 0);
}

TEST_CASE("a GPU whose batches fail for want of memory is not all of it") {
  SpeedSplit split(4, 2);
  for (int i = 0; i < 200; ++i) {
    split.made(1'000'000);
    split.fed(600'000);
    split.done(0, 20, 0, 10'000'000);
    split.done(1, 20, 20, 20'000'000);
  }
  CHECK(split.gpu_images_per_s(0) < 1);
  CHECK(split.wait_s(1, 20) < split.wait_s(0, 20));
  CHECK(split.gpu_share() == doctest::Approx(1.0 / (4 + 0.4)).epsilon(0.02));
}

TEST_CASE("neither starves, and noticing costs little") {
  // GPUs of no use still get an image now and then, and so do threads beside a GPU that does all.
  for (const double feed : {0.01, 0.5, 1.0, 2.0, 50.0}) {
    for (const double speed : {1.0, 100.0, 1e6}) {
      SpeedSplit split(4, 1);
      int64_t given = 0;
      for (int i = 0; i < 4'000; ++i) {
        split.made(1'000'000);
        split.fed(static_cast<int64_t>(feed * 1e6));
        split.done(0, 16, 16, static_cast<int64_t>(16 / speed * kSecond));
        given += split.for_gpus(16);
      }
      INFO("feed ", feed, " ms, ", speed, " images/s");
      CHECK(given >= 4'000 * 16 / 1'100);
      CHECK(given <= 4'000 * 16 * 1'100 / 1'101);
      // In threads' time: within two per cent, and what the model wants.
      const double share = split.gpu_share();
      if (feed >= 1) CHECK(share * (feed - 1) <= std::max(0.021, feed / 1'000));
      if (feed < 1 && speed == 1e6) CHECK((1 - share) * (1 - feed) <= 0.021 * feed + 1.0 / 64);
    }
  }
}

TEST_CASE("one that was held up says little, and images for a slow GPU come one by one") {
  SpeedSplit split(4, 1);
  for (int i = 0; i < 200; ++i) {
    split.made(1'000'000);
    split.fed(600'000);
    split.done(0, 20, 20, 10'000'000);
  }
  const double before = split.gpu_share();
  split.made(3'000'000'000);
  split.fed(3'000'000'000);
  split.done(0, 20, 20, 3'000'000'000);
  CHECK(split.gpu_share() > 0.6 * before);
  CHECK(split.gpu_share() < 1.6 * before);

  SpeedSplit slow(4, 1);
  for (int i = 0; i < 200; ++i) {
    slow.made(1'000'000);
    slow.fed(600'000);
    slow.done(0, 1, 1, 500'000'000);
  }
  int64_t most = 0;
  for (int i = 0; i < 200; ++i) most = std::max(most, slow.for_gpus(64));
  CHECK(most == 1);
}

TEST_CASE("of two GPUs the one is chosen that is done first") {
  SpeedSplit split(4, 2);
  CHECK(split.wait_s(0, 8) == split.wait_s(1, 8));  // nobody knows
  split.begun(0, 8);
  CHECK(split.wait_s(1, 8) < split.wait_s(0, 8));
  split.done(0, 8, 8, 1'000'000);
  for (int i = 0; i < 9; ++i) {
    split.done(0, 8, 8, 8'000'000);   // 1000 a second
    split.done(1, 8, 8, 80'000'000);  // 100
  }
  CHECK(split.wait_s(0, 8) == doctest::Approx(0.008));
  split.begun(0, 56);
  CHECK(split.wait_s(0, 8) < split.wait_s(1, 8));
  split.begun(0, 32);
  CHECK(split.wait_s(1, 8) < split.wait_s(0, 8));
}

}  // namespace
}  // namespace penstock
