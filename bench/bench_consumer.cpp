// The training program of the delivery benchmark: touches every batch, measures a window that opens and closes with a
// batch in hand, and reports in JSON lines (bench/delivery/penstock.py says which).
//
//   bench_consumer --job JOB --split train --seconds 5 --warmup 2
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
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--job") job = argv[i + 1];
    if (name == "--split") split = argv[i + 1];
    if (name == "--seconds") seconds = std::stod(argv[i + 1]);
    if (name == "--warmup") warmup = std::stod(argv[i + 1]);
  }
  try {
    penstock::DataLoader loader(job, split);
    const double begun = now_s();
    double opened = 0;
    double last = 0;
    double slowest = 0;
    double checksum = 0;
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
            say("open");
          }
          continue;
        }
        images += batch.size();
        slowest = std::max(slowest, now - last);
        last = now;
        if (now - opened >= seconds) {
          std::printf("{\"images\": %lld, \"seconds\": %.6f, \"slowest_batch_s\": %.6f, \"checksum\": %.6f}\n", images,
                      now - opened, slowest, checksum);
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
