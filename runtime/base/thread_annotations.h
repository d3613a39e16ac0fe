// Clang's thread-safety annotations, and a mutex that carries them.
//
//   Mutex mutex_;
//   int pending_ PENSTOCK_GUARDED_BY(mutex_) = 0;
//   { MutexLock lock(mutex_); ++pending_; }
//
// std::mutex carries no annotations under libstdc++, so the analysis would see nothing: use these everywhere a member
// is guarded. Under gcc the macros vanish; CI compiles once with clang -Wthread-safety -Werror.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define PENSTOCK_ATTRIBUTE(x) __attribute__((x))
#else
#define PENSTOCK_ATTRIBUTE(x)
#endif

#define PENSTOCK_CAPABILITY(x) PENSTOCK_ATTRIBUTE(capability(x))
#define PENSTOCK_SCOPED_CAPABILITY PENSTOCK_ATTRIBUTE(scoped_lockable)
#define PENSTOCK_GUARDED_BY(x) PENSTOCK_ATTRIBUTE(guarded_by(x))
#define PENSTOCK_REQUIRES(...) PENSTOCK_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define PENSTOCK_EXCLUDES(...) PENSTOCK_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define PENSTOCK_ACQUIRE(...) PENSTOCK_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define PENSTOCK_TRY_ACQUIRE(...) PENSTOCK_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define PENSTOCK_RELEASE(...) PENSTOCK_ATTRIBUTE(release_capability(__VA_ARGS__))

namespace penstock {

class PENSTOCK_CAPABILITY("mutex") Mutex {
 public:
  void lock() PENSTOCK_ACQUIRE() { mutex_.lock(); }
  void unlock() PENSTOCK_RELEASE() { mutex_.unlock(); }
  bool try_lock() PENSTOCK_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class PENSTOCK_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PENSTOCK_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() PENSTOCK_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits are re-checked by the caller in a loop, as the analysis cannot look into a predicate.
class CondVar {
 public:
  void wait(Mutex& mutex) PENSTOCK_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when the time passed first.
  bool wait_for(Mutex& mutex, std::chrono::microseconds timeout) PENSTOCK_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const auto status = condition_.wait_for(lock, timeout);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace penstock
