#include "runtime/serving/collecting_executor.h"

#include <poll.h>
#include <pthread.h>

#include <utility>

namespace penstock {

CollectingExecutor::CollectingExecutor(std::unique_ptr<Executor> executor, Collect collect)
    : executor_(std::move(executor)), collect_(std::move(collect)), thread_([this] { run(); }) {}

CollectingExecutor::~CollectingExecutor() {
  stop_.set();
  thread_.join();
}

void CollectingExecutor::run() {
  ::pthread_setname_np(::pthread_self(), "penstock-done");
  pollfd fds[] = {{executor_->done_fd(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
  for (;;) {
    while (auto work = executor_->next_done()) collect_(std::move(work));
    (void)::poll(fds, 2, -1);  // ends with its owner
    if (fds[1].revents != 0) return;
  }
}

}  // namespace penstock
