#include "runtime/coordinator/background_work.h"

#include "runtime/base/signals_blocked.h"

namespace penstock {

BackgroundWork::~BackgroundWork() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    tasks_.clear();
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void BackgroundWork::add(std::function<void()> task, Urgency urgency) {
  {
    MutexLock lock(mutex_);
    if (urgency == Urgency::now) {
      tasks_.push_front(std::move(task));
    } else {
      tasks_.push_back(std::move(task));
    }
  }
  changed_.notify_one();
  if (thread_.joinable()) return;
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { work(); });
}

void BackgroundWork::work() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !ending_) changed_.wait(mutex_);
      if (ending_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    task = nullptr;  // before it is said to be done: what it owned is its caller's alone again
    done_();
  }
}

}  // namespace penstock
