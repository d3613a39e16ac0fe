#include "tests/transforms/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

static std::atomic<long> count{0};

// In a file of its own, so that no compiler inlines one half of a new and delete pair.
void* operator new(size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace penstock_test {

long allocations() noexcept {
  return count.load(std::memory_order_relaxed);
}

}  // namespace penstock_test
