#include "runtime/base/cpu_set.h"

#include <algorithm>
#include <cerrno>

namespace penstock {
namespace {

constexpr size_t kMostCpus = size_t{1} << 20;  // far beyond what kernels can be built for

std::vector<unsigned long> words_for(size_t cpus) {
  return std::vector<unsigned long>(CPU_ALLOC_SIZE(cpus) / sizeof(unsigned long));
}

}  // namespace

CpuSet::CpuSet(const std::vector<int>& cpus) {
  if (!cpus.empty()) words_ = words_for(static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes(), get());
}

CpuSet CpuSet::allowed(size_t room) {
  for (; room <= kMostCpus; room = 2 * room + 64) {
    CpuSet found;
    found.words_ = words_for(room);
    if (::sched_getaffinity(0, found.bytes(), found.get()) == 0) return found;
    if (errno != EINVAL) break;
  }
  return {};
}

}  // namespace penstock
