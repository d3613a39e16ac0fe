// What cards take off the CPU: CPU seconds of whole samples, and of what is left to the threads when a card makes the
// pixels. The card here does nothing in no time, so the second is the most that one core can feed to any card.
//
//   bench_card_feed JOB SPLIT [ROUNDS=4]          # one line of JSON; uint8 chunks of 16, one thread, in turns
//
// `fed`: with all entropy decoding that a card can do left to it, `read`: with that of files without an index kept, as
// loader.card_entropy: auto and index say.
//
// Pixels are not looked at, as the card makes none: tests/gpu and tests/loader show that they are right.
#include <poll.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json_text.h"
#include "runtime/gpu/played/host_card.h"
#include "runtime/job/job.h"
#include "runtime/loader/executor.h"

namespace penstock {
namespace {

class IdleStream final : public CardStream {
 public:
  void upload(std::byte*, const std::byte*, size_t) override {}
  void launch(std::byte*, const StageLaunch&) override {}
  void download(std::byte*, const std::byte*, size_t) override {}
  void copy(std::byte*, const std::byte*, size_t) override {}
  void wait(Nanoseconds) override {}
  CardTimes take_times() override { return {}; }
};

class IdleCard final : public Card {
 public:
  const CardInfo& info() const noexcept override { return memory_->info(); }
  std::byte* allocate(size_t bytes, CardMemory where) override { return memory_->allocate(bytes, where); }
  void release(std::byte* memory, CardMemory where) noexcept override { memory_->release(memory, where); }
  std::unique_ptr<CardStream> stream() override { return std::make_unique<IdleStream>(); }
  std::unique_ptr<CardShare> share(size_t bytes) override { return memory_->share(bytes); }
  std::unique_ptr<CardShare> open_share(UniqueFd fd, size_t bytes) override {
    return memory_->open_share(std::move(fd), bytes);
  }

 private:
  std::unique_ptr<Card> memory_ = open_host_card(0, size_t{2} << 30);
};

// Of all threads: the lanes' copies into the chunk count too.
double cpu_s() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

constexpr int64_t kChunk = 16;

int64_t make_all(Executor& executor, const std::shared_ptr<const SplitContext>& split, int64_t epoch,
                 std::vector<std::byte>& cell) {
  const int64_t chunks = split->source().size() / kChunk;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    auto work = std::make_unique<ChunkWork>();
    for (int64_t i = chunk * kChunk; i < (chunk + 1) * kChunk; ++i) work->lease.samples.push_back({i, i, 0, true});
    work->lease.epoch = epoch;
    work->split = split;
    work->memory = cell.data();
    executor.submit(std::move(work));
    for (std::unique_ptr<ChunkWork> done; !(done = executor.next_done());) {
      pollfd fd{executor.done_fd(), POLLIN, 0};
      ::poll(&fd, 1, 1000);
    }
  }
  return chunks * kChunk;
}

int run(int argc, char** argv) {
  if (argc < 3) throw Error(ErrorKind::usage, "which job and split?", "bench_card_feed JOB SPLIT [ROUNDS]");
  const auto split = SplitContext::open(resolve_split(load_job(argv[1], {}), argv[2]));
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 4;
  const auto feeder = [](const CardEntropy& entropy) {
    std::vector<std::unique_ptr<Card>> cards;
    cards.push_back(std::make_unique<IdleCard>());
    return make_card_executor(1, {}, std::move(cards), {.memory_bytes = int64_t{1} << 30, .entropy = entropy}, {});
  };
  const std::unique_ptr<Executor> executors[3] = {make_cpu_executor(1, {}), feeder({}), feeder({.by_search = false})};
  std::vector<std::byte> cell(chunk_layout(split->fields(), kChunk).total_bytes);
  (void)make_all(*executors[0], split, 0, cell);  // files into memory
  double seconds[3] = {};
  int64_t images = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int which = 0; which < 3; ++which) {
      const double begun = cpu_s();
      const int64_t made = make_all(*executors[which], split, round, cell);
      seconds[which] += cpu_s() - begun;
      if (which == 0) images += made;
    }
  }
  if (images == 0) throw Error(ErrorKind::usage, "the split has fewer than " + std::to_string(kChunk) + " samples");
  const auto count = static_cast<double>(images);
  nlohmann::json line{{"images", images},
                      {"cpu_ms", seconds[0] / count * 1e3},
                      {"fed_ms", seconds[1] / count * 1e3},
                      {"read_ms", seconds[2] / count * 1e3},
                      {"ratio", seconds[0] / seconds[1]}};
  for (const auto& [name, executor] : {std::pair{"fed", 1}, std::pair{"read", 2}}) {
    const ExecutorFigures figures = executors[executor]->figures();
    line[std::string(name) + "_for_cards"] = static_cast<double>(figures.cards[0].images) / count;
    line[std::string(name) + "_upload_kb"] = static_cast<double>(figures.cards[0].uploaded_bytes) / count / 1e3;
  }
  std::printf("%s\n", json_text(line).c_str());
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    return penstock::run(argc, argv);
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
