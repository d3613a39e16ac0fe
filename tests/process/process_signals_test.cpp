#include "runtime/process/signals.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace penstock;

TEST_CASE("a blocked signal arrives at the descriptor") {
  SignalFd signals({SIGUSR1, SIGTERM});
  CHECK_FALSE(signals.next());
  kill(getpid(), SIGUSR1);
  pollfd readable{signals.fd(), POLLIN, 0};
  REQUIRE(poll(&readable, 1, 20'000) == 1);
  CHECK(signals.next() == SIGUSR1);
  CHECK_FALSE(signals.next());
}

TEST_CASE("the old mask comes back, and a pending signal does not kill") {
  sigset_t mask;
  {
    SignalFd signals({SIGTERM});
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    CHECK(sigismember(&mask, SIGTERM) == 1);
    kill(getpid(), SIGTERM);
  }
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  CHECK(sigismember(&mask, SIGTERM) == 0);
}

TEST_CASE("one request for an end comes by several ways; a second one after a while means at once") {
  using Answer = EndRequest::Answer;
  EndRequest request;
  CHECK(request.arrived(SIGINT, 10 * kSecond) == Answer::in_order);
  CHECK(request.arrived(SIGTERM, 10 * kSecond + kMillisecond) == Answer::nothing);
  CHECK(request.arrived(kEndInOrder, 11 * kSecond) == Answer::nothing);
  CHECK(request.arrived(kEndInOrder, 14 * kSecond) == Answer::nothing);  // launch repeats it
  CHECK(request.arrived(SIGINT, 12 * kSecond) == Answer::at_once);
  CHECK(EndRequest().arrived(kEndAtOnce, 0) == Answer::at_once);
  CHECK(EndRequest().arrived(kEndInOrder, 0) == Answer::in_order);
}
