// A descriptor that becomes readable when another thread says so (eventfd): joins queues and sockets in one poll().
// Thread-safety: set() from any thread; clear() from the waiting one.
#pragma once

#include "runtime/base/memory.h"

namespace penstock {

class Wakeup {
 public:
  Wakeup();
  void set() noexcept;
  void clear() noexcept;
  int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace penstock
