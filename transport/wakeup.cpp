#include "transport/wakeup.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "runtime/base/error.h"

namespace penstock {

Wakeup::Wakeup() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw Error(ErrorKind::runtime, system_error_text("cannot create an eventfd"), "raise ulimit -n");
}

void Wakeup::set() noexcept {
  const uint64_t one = 1;
  // A full counter (EAGAIN) is readable already, which is all that is wanted.
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
}

void Wakeup::clear() noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof count);
}

}  // namespace penstock
