// The training program of the delivery benchmark: touches every batch, measures a window that opens and closes with a
// batch in hand, and reports in JSON lines (bench/delivery/penstock.py says which).
//
//   bench_consumer --job JOB --split train --seconds 5 --warmup 2
//   bench_consumer --job JOB --split train --bursts 10      # only takes batches that lie ready: bench/python/overhead.py
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "runtime/trainer/data_loader.h"

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

// Each pass: its first batch, time for the loader to make all others, and then the CPU time of taking and dropping them.
void take_bursts(penstock::DataLoader& loader, int bursts) {
  double cpu = 0;
  long long batches = 0;
  for (int i = 0; i < bursts; ++i) {
    auto batch = loader.begin();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const double before = cpu_s(CLOCK_THREAD_CPUTIME_ID);
    for (++batch; batch != loader.end(); ++batch) ++batches;
    cpu += cpu_s(CLOCK_THREAD_CPUTIME_ID) - before;
  }
  std::printf("{\"batches\": %lld, \"thread_cpu_s\": %.6f}\n", batches, cpu);
}

void say(const char* event) {
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
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--job") job = argv[i + 1];
    if (name == "--split") split = argv[i + 1];
    if (name == "--seconds") seconds = std::stod(argv[i + 1]);
    if (name == "--bursts") bursts = std::stoi(argv[i + 1]);
    if (name == "--warmup") warmup = std::stod(argv[i + 1]);
  }
  try {
    penstock::DataLoader loader(job, split);
    if (bursts > 0) {
      take_bursts(loader, bursts);
      return 0;
    }
    const double begun = now_s();
    double opened = 0;
    double last = 0;
    double slowest = 0;
    double checksum = 0;
    double cpu = 0;
    long long images = 0;
    long long batches = 0;
    bool done = false;
    for (int epoch = 0; !done; ++epoch) {
      loader.set_epoch(epoch);
      for (const penstock::Batch& batch : loader) {
        checksum += touch(batch);
        if (++batches == 1) say("first");
        const double now = now_s();
        if (opened == 0) {
          if (now - begun >= warmup && batches >= 8) {
            opened = last = now;
            cpu = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
            say("open");
          }
          continue;
        }
        images += batch.size();
        slowest = std::max(slowest, now - last);
        last = now;
        if (now - opened >= seconds) {
          std::printf("{\"images\": %lld, \"seconds\": %.6f, \"slowest_batch_s\": %.6f, \"checksum\": %.6f, "
                      "\"process_cpu_s\": %.6f}\n",
                      images, now - opened, slowest, checksum, cpu_s(CLOCK_PROCESS_CPUTIME_ID) - cpu);
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
