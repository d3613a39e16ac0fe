// Virtual time: what is to happen, in the order of its time, in one thread.
//
//   EventLoop loop;
//   loop.after(5 * kMillisecond, [&] { ... });    // events of one time happen in the order in which they were added
//   while (loop.now() < limit && loop.step()) {}
//   Loader loader({.seams = {.clock = &loop.clock()}}, ...);
//
// Purpose: production code under simulated faults, and plans of jobs that would take hours. Times are integers in
//   nanoseconds, so a run is the same on every machine.
// Cost: a heap of four children a node over (time, number); the events apart, and in place where their captures have at
//   most 48 bytes, so that events of a large world allocate nothing (bench/simulate.cpp measures it).
// Thread-safety: none. Ownership: the events. Failure: what an event throws comes out of step().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"

namespace penstock {

class EventLoop {
 public:
  EventLoop() = default;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop() {
    for (const Entry& entry : heap_) events_[entry.place].destroy();
  }

  Nanoseconds now() const noexcept { return clock_.now(); }
  const Clock& clock() const noexcept { return clock_; }
  size_t pending() const noexcept { return heap_.size(); }

  // A time that is over means now.
  template <class Event>
  void at(Nanoseconds when, Event&& event) {
    if (free_.empty()) {
      events_.emplace_back();
      free_.push_back(static_cast<uint32_t>(events_.size() - 1));
      if (free_.capacity() < events_.size()) free_.reserve(2 * events_.size());  // giving a place back never allocates
    }
    if (heap_.size() == heap_.capacity()) heap_.reserve(2 * heap_.size() + 1);
    const uint32_t place = free_.back();
    events_[place].hold(std::forward<Event>(event));  // may throw, and nothing has changed
    free_.pop_back();
    heap_.push_back({});
    rise(heap_.size() - 1, {std::max(when, now()), next_++, place});
  }
  template <class Event>
  void after(Nanoseconds delay, Event&& event) {
    at(now() + delay, std::forward<Event>(event));
  }

  // False: nothing is left to happen.
  bool step() {
    if (heap_.empty()) return false;
    const Entry first = heap_.front();
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    clock_.advance(first.when - now());
    const Release release{*this, first.place};  // an event may throw
    events_[first.place].run();
    return true;
  }

 private:
  struct Entry {
    Nanoseconds when = 0;
    uint64_t number = 0;
    uint32_t place = 0;  // in events_

    bool before(const Entry& other) const { return when != other.when ? when < other.when : number < other.number; }
  };

  // A callable, in place where it fits.
  class Held {
   public:
    template <class Event>
    void hold(Event&& event) {
      using Callable = std::decay_t<Event>;
      if constexpr (sizeof(Callable) <= kBytes && alignof(Callable) <= alignof(std::max_align_t)) {
        new (bytes_.data()) Callable(std::forward<Event>(event));
        run_ = [](void* it) { (*static_cast<Callable*>(it))(); };
        destroy_ = [](void* it) { static_cast<Callable*>(it)->~Callable(); };
      } else {
        hold([owned = std::make_unique<Callable>(std::forward<Event>(event))] { (*owned)(); });
      }
    }
    void run() { run_(bytes_.data()); }
    void destroy() { destroy_(bytes_.data()); }

   private:
    static constexpr size_t kBytes = 48;
    alignas(std::max_align_t) std::array<std::byte, kBytes> bytes_;
    void (*run_)(void*) = nullptr;
    void (*destroy_)(void*) = nullptr;
  };

  struct Release {
    EventLoop& loop;
    uint32_t place;
    ~Release() {
      loop.events_[place].destroy();
      loop.free_.push_back(place);
    }
  };

  static constexpr size_t kChildren = 4;

  void rise(size_t at, const Entry& entry) {
    while (at > 0) {
      const size_t parent = (at - 1) / kChildren;
      if (!entry.before(heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = entry;
  }
  void sink(const Entry& entry) {
    size_t at = 0;
    for (;;) {
      const size_t first = at * kChildren + 1;
      if (first >= heap_.size()) break;
      size_t least = first;
      const size_t end = std::min(first + kChildren, heap_.size());
      for (size_t child = first + 1; child < end; ++child) {
        if (heap_[child].before(heap_[least])) least = child;
      }
      if (!heap_[least].before(entry)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = entry;
  }

  ManualClock clock_;
  uint64_t next_ = 0;
  std::vector<Entry> heap_;
  std::deque<Held> events_;  // addresses stay while an event that runs adds others
  std::vector<uint32_t> free_;
};

}  // namespace penstock
