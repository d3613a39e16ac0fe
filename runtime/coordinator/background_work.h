// One thread for what would keep the coordinator's event loop busy: reading a sampler's file, shuffling a billion samples.
//
//   BackgroundWork background([this] { wakeup_.set(); });      // called by the thread, after each task
//   std::shared_future<Plan> plan = background.run<Plan>([=] { return ...; });            // before all that waits
//   std::shared_future<Plan> next = background.run<Plan>([=] { return ...; }, Urgency::later);
//   if (is_ready(plan)) use(plan.get());                       // throws what the task threw
//
// Purpose: a loop that stands still is silent, and silent ranks are given up.
// Thread-safety: of one owner; tasks run one after the other, and must own what they use.
// Ownership: the destructor drops what has not begun (its future then throws std::future_error) and waits for the rest.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "runtime/base/thread_annotations.h"

namespace penstock {

template <class T>
bool is_ready(const std::shared_future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

class BackgroundWork {
 public:
  enum class Urgency : uint8_t { now, later };

  explicit BackgroundWork(std::function<void()> done) : done_(std::move(done)) {}
  ~BackgroundWork();

  template <class T>
  std::shared_future<T> run(std::function<T()> task, Urgency urgency = Urgency::now) {
    auto packed = std::make_shared<std::packaged_task<T()>>(std::move(task));
    std::shared_future<T> result = packed->get_future().share();
    add([packed = std::move(packed)] { (*packed)(); }, urgency);
    return result;
  }

 private:
  void add(std::function<void()> task, Urgency urgency);
  void work();

  const std::function<void()> done_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ PENSTOCK_GUARDED_BY(mutex_);
  bool ending_ PENSTOCK_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // from the first task on
};

}  // namespace penstock
