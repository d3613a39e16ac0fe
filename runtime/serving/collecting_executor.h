// An executor for callers without an event loop: a thread of its own collects what is done.
//
//   CollectingExecutor gpus(make_gpu_executor(…), [](std::unique_ptr<ChunkWork> done) { … });
//   gpus.executor().submit(std::move(work));
//
// Thread-safety: executor()'s methods as theirs, but for next_done(), which is the thread's. `collect` is called by
//   that thread alone, and must not throw.
// The destructor waits for samples and batches of GPUs that are under way, and drops works that are not done then.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "runtime/loader/executor.h"
#include "transport/wakeup.h"

namespace penstock {

class CollectingExecutor {
 public:
  using Collect = std::function<void(std::unique_ptr<ChunkWork>)>;
  CollectingExecutor(std::unique_ptr<Executor> executor, Collect collect);
  ~CollectingExecutor();

  Executor& executor() const noexcept { return *executor_; }

 private:
  void run();

  std::unique_ptr<Executor> executor_;
  Collect collect_;
  Wakeup stop_;
  std::thread thread_;
};

}  // namespace penstock
