#include "runtime/coordinator/background_work.h"

#include "runtime/base/signals_blocked.h"

namespace penstock {

BackgroundWork::BackgroundWork(std::function<void()> done) : shared_(std::make_shared<Shared>()) {
  MutexLock lock(shared_->mutex);
  shared_->done = std::move(done);
}

BackgroundWork::~BackgroundWork() {
  bool busy = false;
  {
    MutexLock lock(shared_->mutex);
    shared_->ending = true;
    shared_->now.clear();
    shared_->later.clear();
    busy = shared_->busy;
  }
  shared_->changed.notify_one();
  if (!thread_.joinable()) return;
  busy ? thread_.detach() : thread_.join();
}

void BackgroundWork::add(std::function<void()> task, Urgency urgency) {
  {
    MutexLock lock(shared_->mutex);
    (urgency == Urgency::now ? shared_->now : shared_->later).push_back(std::move(task));
  }
  shared_->changed.notify_one();
  if (thread_.joinable()) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([shared = shared_] { work(*shared); });
}

void BackgroundWork::work(Shared& shared) {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(shared.mutex);
      while (shared.now.empty() && shared.later.empty() && !shared.ending) shared.changed.wait(shared.mutex);
      if (shared.ending) return;
      std::deque<std::function<void()>>& tasks = shared.now.empty() ? shared.later : shared.now;
      task = std::move(tasks.front());
      tasks.pop_front();
      shared.busy = true;
    }
    task();
    task = nullptr;  // before it is said to be done: what it owned is its caller's alone again
    MutexLock lock(shared.mutex);
    shared.busy = false;
    if (shared.ending) return;
    shared.done();  // under the lock, so that the owner is still there
  }
}

}  // namespace penstock
