// The training program of the delivery benchmark: touches every batch, measures a window that opens and closes with a
// batch in hand, and reports in JSON lines (bench/delivery/penstock.py says which).
//
//   bench_consumer --job JOB --split train --seconds 5 --warmup 2
//   bench_consumer --job JOB --split train --bursts 10 --take 100   # only takes batches that lie ready, and
//   bench_consumer --job JOB --split train --check 1                # says what it was given: bench/python/overhead.py
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "runtime/client/data_loader.h"

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CPU time does not count what others do on the machine.
double cpu_s(clockid_t whose) {
  timespec t{};
  ::clock_gettime(whose, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// One value of every cache line: what every competitor's consumer does.
double touch(const penstock::Batch& batch) {
  const penstock::TensorView images = batch.image();
  const auto* values = images.as<float>();
  const int64_t count = images.elements();
  float sums[4] = {0, 0, 0, 0};
  for (int64_t i = 0; i + 48 < count; i += 64) {
    for (int k = 0; k < 4; ++k) sums[k] += values[i + 16 * k];
  }
  return double{sums[0]} + sums[1] + sums[2] + sums[3];
}

// Each burst: its first batch, time for the loader to make `take` others, and then the CPU time of taking and
// dropping these.
void take_bursts(penstock::DataLoader& loader, int bursts, int take) {
  double cpu = 0;
  long long batches = 0;
  for (int i = 0; i < bursts; ++i) {
    auto batch = loader.begin();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const double before = cpu_s(CLOCK_THREAD_CPUTIME_ID);
    for (int k = 0; k < take; ++k, ++batches) {
      ++batch;
      if (batch == loader.end()) throw std::runtime_error("the epoch has fewer batches than --take");
    }
    cpu += cpu_s(CLOCK_THREAD_CPUTIME_ID) - before;
  }
  std::printf("{\"batches\": %lld, \"thread_cpu_s\": %.6f}\n", batches, cpu);
}

// One iteration: a number that follows from every byte of every sample's image, its label, and their order.
void check(penstock::DataLoader& loader) {
  uint64_t sum = 0;
  long long images = 0;
  for (const penstock::Batch& batch : loader) {
    const penstock::TensorView pixels = batch.image();
    const auto* bytes = static_cast<const uint8_t*>(pixels.data);
    const auto* labels = batch.label().as<int64_t>();
    const int64_t size = pixels.elements() * static_cast<int64_t>(penstock::size_of(pixels.dtype)) / batch.size();
    for (int64_t i = 0; i < batch.size(); ++i, ++images) {
      uint64_t of_sample = 0;
      for (int64_t k = 0; k < size; ++k) of_sample += bytes[i * size + k];
      sum = (sum * 31 + of_sample) * 31 + static_cast<uint64_t>(labels[i]);
    }
  }
  std::printf("{\"images\": %lld, \"check\": \"%016llx\"}\n", images, static_cast<unsigned long long>(sum));
}

void report(const char* event) {
  std::printf("{\"event\": \"%s\"}\n", event);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::string job = "job.yaml";
  std::string split = "train";
  double seconds = 5;
  double warmup = 2;
  int bursts = 0;
  int take = 100;
  bool only_check = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--job") job = argv[i + 1];
    if (name == "--split") split = argv[i + 1];
    if (name == "--seconds") seconds = std::stod(argv[i + 1]);
    if (name == "--bursts") bursts = std::stoi(argv[i + 1]);
    if (name == "--take") take = std::stoi(argv[i + 1]);
    if (name == "--check") only_check = true;
    if (name == "--warmup") warmup = std::stod(argv[i + 1]);
  }
  try {
    penstock::DataLoader loader(job, split);
    if (only_check) {
      check(loader);
      return 0;
    }
    if (bursts > 0) {
      take_bursts(loader, bursts, take);
      return 0;
    }
    const double begun = now_s();
    double opened = 0;
    double last = 0;
    double slowest = 0;
    double checksum = 0;
    double cpu = 0;
    double thread_cpu = 0;
    double touch_cpu = 0;
    long long images = 0;
    long long batches = 0;
    bool done = false;
    for (int epoch = 0; !done; ++epoch) {
      loader.set_epoch(epoch);
      for (const penstock::Batch& batch : loader) {
        const double touched = cpu_s(CLOCK_THREAD_CPUTIME_ID);
        checksum += touch(batch);
        touch_cpu += cpu_s(CLOCK_THREAD_CPUTIME_ID) - touched;
        if (++batches == 1) report("first");
        const double now = now_s();
        if (opened == 0) {
          if (now - begun >= warmup && batches >= 8) {
            opened = last = now;
            cpu = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
            thread_cpu = cpu_s(CLOCK_THREAD_CPUTIME_ID);
            touch_cpu = 0;
            report("open");
          }
          continue;
        }
        images += batch.size();
        slowest = std::max(slowest, now - last);
        last = now;
        if (now - opened >= seconds) {
          std::printf(
              "{\"images\": %lld, \"seconds\": %.6f, \"slowest_batch_s\": %.6f, \"checksum\": %.6f, "
              "\"process_cpu_s\": %.6f, \"thread_cpu_s\": %.6f, \"touch_cpu_s\": %.6f}\n",
              images, now - opened, slowest, checksum, cpu_s(CLOCK_PROCESS_CPUTIME_ID) - cpu,
              cpu_s(CLOCK_THREAD_CPUTIME_ID) - thread_cpu, touch_cpu);
          std::fflush(stdout);
          done = true;
          break;
        }
      }
    }
    // The driver still reads the CPU time of all ranks.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_consumer: %s\n", error.what());
    return 1;
  }
  return 0;
}
