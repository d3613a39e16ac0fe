// A set of CPUs of any size: glibc's cpu_set_t ends at 1,024, and the kernel refuses to fill one that is too small.
//
//   CpuSet::allowed().count();                                    // that this thread may run on
//   const CpuSet two({0, 1500});
//   pthread_setaffinity_np(pthread_self(), two.bytes(), two.get());
//
// Thread-safety: a value. Failure: std::bad_alloc; allowed() is empty where the kernel does not say.
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

namespace penstock {

class CpuSet {
 public:
  explicit CpuSet(const std::vector<int>& cpus);
  // `room`: CPUs that the first attempt has room for.
  static CpuSet allowed(size_t room = 1024);

  const cpu_set_t* get() const noexcept { return reinterpret_cast<const cpu_set_t*>(words_.data()); }
  size_t bytes() const noexcept { return words_.size() * sizeof(words_[0]); }
  int count() const noexcept { return CPU_COUNT_S(bytes(), get()); }
  bool has(int cpu) const noexcept { return CPU_ISSET_S(static_cast<size_t>(cpu), bytes(), get()); }

 private:
  CpuSet() = default;
  cpu_set_t* get() noexcept { return reinterpret_cast<cpu_set_t*>(words_.data()); }

  std::vector<unsigned long> words_;  // as the kernel has them
};

}  // namespace penstock
