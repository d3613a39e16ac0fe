// One thread for what would keep the coordinator's event loop busy: reading a sampler's file, shuffling a billion samples.
//
//   BackgroundWork background([this] { wakeup_.set(); });      // called by the thread, after each task
//   std::shared_future<Plan> plan = background.run<Plan>([=] { return ...; });            // before all that waits
//   std::shared_future<Plan> next = background.run<Plan>([=] { return ...; }, Urgency::later);
//   if (is_ready(plan)) use(plan.get());                       // throws what the task threw
//
// Purpose: a loop that stands still is silent, and silent ranks are given up.
// Order: what is wanted now before what is wanted later, and each in the order in which it was asked for.
// Thread-safety: of one owner; tasks run one after the other, and must own all that they use.
// Ownership: the destructor drops what has not begun (its future then throws std::future_error). A task under way, which
//   may wait for a disk for ever, is not waited for: its thread ends behind it, and tells nobody.
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

  explicit BackgroundWork(std::function<void()> done);
  ~BackgroundWork();
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  template <class T>
  std::shared_future<T> run(std::function<T()> task, Urgency urgency = Urgency::now) {
    auto packed = std::make_shared<std::packaged_task<T()>>(std::move(task));
    std::shared_future<T> result = packed->get_future().share();
    add([packed = std::move(packed)] { (*packed)(); }, urgency);
    return result;
  }

 private:
  // The thread's and the owner's: whoever goes last takes it along.
  struct Shared {
    Mutex mutex;
    CondVar changed;
    std::deque<std::function<void()>> now PENSTOCK_GUARDED_BY(mutex);
    std::deque<std::function<void()>> later PENSTOCK_GUARDED_BY(mutex);
    std::function<void()> done PENSTOCK_GUARDED_BY(mutex);
    bool busy PENSTOCK_GUARDED_BY(mutex) = false;
    bool ending PENSTOCK_GUARDED_BY(mutex) = false;
  };
  void add(std::function<void()> task, Urgency urgency);
  static void work(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;  // from the first task on
};

}  // namespace penstock
