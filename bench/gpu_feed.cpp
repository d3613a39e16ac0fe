// What GPUs take off the CPU: CPU seconds of whole samples, and of what is left to the threads when a GPU makes the
// pixels. The GPU here does nothing in no time, so the second is the most that one core can feed to any GPU.
//
//   bench_gpu_feed JOB SPLIT [ROUNDS=4]           # one line of JSON; uint8 chunks of 16, one thread, in turns
//
// `fed`: with all entropy decoding that a GPU can do left to it, `read`: with that of files without an index kept, as
// loader.gpu_entropy: auto and index say.
//
// Pixels are not looked at, as the GPU makes none: tests/gpu and tests/loader show that they are right.
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
#include "runtime/gpu/played/host_gpu.h"
#include "runtime/job/job.h"
#include "runtime/loader/executor.h"

namespace penstock {
namespace {

class IdleStream final : public GpuStream {
 public:
  void upload(std::byte*, const std::byte*, size_t) override {}
  void launch(std::byte*, const StageLaunch&) override {}
  void download(std::byte*, const std::byte*, size_t) override {}
  void copy(std::byte*, const std::byte*, size_t) override {}
  void wait(Nanoseconds) override {}
  GpuTimes take_times() override { return {}; }
};

class IdleGpu final : public Gpu {
 public:
  const GpuInfo& info() const noexcept override { return memory_->info(); }
  std::byte* allocate(size_t bytes, GpuMemory where) override { return memory_->allocate(bytes, where); }
  void release(std::byte* memory, GpuMemory where) noexcept override { memory_->release(memory, where); }
  std::unique_ptr<GpuStream> stream() override { return std::make_unique<IdleStream>(); }
  std::unique_ptr<ExportedMemory> export_memory(size_t bytes) override { return memory_->export_memory(bytes); }
  std::unique_ptr<ExportedMemory> open_exported(UniqueFd fd, size_t bytes) override {
    return memory_->open_exported(std::move(fd), bytes);
  }

 private:
  std::unique_ptr<Gpu> memory_ = open_host_gpu(0, size_t{2} << 30);
};

// The time of all threads: the in-flight batches' copies into the chunk count too.
double cpu_s() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

constexpr int64_t kChunk = 16;

int64_t make_all(Executor& executor, const std::shared_ptr<const SplitContext>& split, int64_t epoch,
                 std::vector<std::byte>& chunk_buffer) {
  const int64_t chunks = split->source().size() / kChunk;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    auto work = std::make_unique<ChunkWork>();
    for (int64_t i = chunk * kChunk; i < (chunk + 1) * kChunk; ++i) work->lease.samples.push_back({i, i, 0, true});
    work->lease.epoch = epoch;
    work->split = split;
    work->memory = chunk_buffer.data();
    executor.submit(std::move(work));
    for (std::unique_ptr<ChunkWork> done; !(done = executor.next_done());) {
      pollfd fd{executor.done_fd(), POLLIN, 0};
      ::poll(&fd, 1, 1000);
    }
  }
  return chunks * kChunk;
}

int run(int argc, char** argv) {
  if (argc < 3) throw Error(ErrorKind::usage, "which job and split?", "bench_gpu_feed JOB SPLIT [ROUNDS]");
  const auto split = SplitContext::open(resolve_split(load_job(argv[1], {}), argv[2]));
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 4;
  const auto feeder = [](const GpuEntropy& entropy) {
    std::vector<std::unique_ptr<Gpu>> gpus;
    gpus.push_back(std::make_unique<IdleGpu>());
    return make_gpu_executor(1, {}, std::move(gpus), {.memory_bytes = int64_t{1} << 30, .entropy = entropy}, {});
  };
  const std::unique_ptr<Executor> executors[3] = {make_cpu_executor(1, {}), feeder({}), feeder({.by_search = false})};
  std::vector<std::byte> chunk_buffer(chunk_layout(split->fields(), kChunk).total_bytes);
  (void)make_all(*executors[0], split, 0, chunk_buffer);  // files into memory
  double seconds[3] = {};
  int64_t images = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int which = 0; which < 3; ++which) {
      const double begun = cpu_s();
      const int64_t made = make_all(*executors[which], split, round, chunk_buffer);
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
    line[std::string(name) + "_for_gpus"] = static_cast<double>(figures.gpus[0].images) / count;
    line[std::string(name) + "_upload_kb"] = static_cast<double>(figures.gpus[0].uploaded_bytes) / count / 1e3;
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
