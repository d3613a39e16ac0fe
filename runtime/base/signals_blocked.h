// Threads made in its lifetime get no signals: the program's signals are the program's.
//
//   { const SignalsBlocked blocked; thread = std::thread(...); }
#pragma once

#include <pthread.h>
#include <signal.h>

namespace penstock {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace penstock
