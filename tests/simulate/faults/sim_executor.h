// An executor in virtual time: chunks take as long as the world says, and samples are a pure function of what was
// planned, as real ones are.
//
//   LoaderOptions options{.threads = 2, .seams = {.executor = [&] { return make_sim_executor(loop, spec); }}};
//
// Thread-safety: none. Failure: what `fails` says becomes the work's failure.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/loader/executor.h"
#include "runtime/simulate/event_loop.h"

namespace penstock {

struct SimExecutorSpec {
  int threads = 1;
  std::function<Nanoseconds(const ChunkWork&)> takes;  // one thread
  std::function<std::string(const ChunkWork&)> fails;  // the environment's fault; empty: it does not
  std::function<bool(const ChunkWork&)> spoil;         // its first image gets a wrong pixel; none: never
  std::function<void()> done;                          // something is: the loader wants a turn
};
std::unique_ptr<Executor> make_sim_executor(EventLoop& loop, SimExecutorSpec spec);

// What a sample's image and label are made of.
void fill_sim_image(int64_t index, uint16_t occurrence, int64_t epoch, std::span<std::byte> image);
int64_t sim_label(int64_t index);

}  // namespace penstock
