#include "runtime/process/output_relay.h"

#include <fcntl.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <utility>

namespace penstock {
namespace {

// Both ends of a pty, ours first; -1 where there is none to be had.
std::array<int, 2> open_terminal() {
  std::array<int, 2> ends{-1, -1};
  ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  const char* name = ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0 ? ptsname(ends[0]) : nullptr;
  if (name != nullptr) ends[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  termios mode{};
  if (ends[1] >= 0 && tcgetattr(ends[1], &mode) == 0) {
    mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // our own terminal does that
    mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(ends[1], TCSANOW, &mode);
  }
  if (ends[1] < 0 && ends[0] >= 0) close(std::exchange(ends[0], -1));
  return ends;
}

}  // namespace

int OutputRelay::open_for(int to) {
  to_ = to;
  std::array<int, 2> ends{-1, -1};
  if (isatty(to) != 0) ends = open_terminal();
  if (ends[1] < 0 && pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  from_ = ends[0];
  return ends[1];
}

void OutputRelay::close_now() {
  if (from_ >= 0) close(std::exchange(from_, -1));
  pending_.clear();
}

pollfd OutputRelay::wanted() const {
  if (from_ < 0) return {-1, 0, 0};
  return pending_.empty() ? pollfd{from_, POLLIN, 0} : pollfd{to_, POLLOUT, 0};
}

void OutputRelay::move() {
  if (from_ < 0) return;
  if (pending_.empty()) {
    std::array<char, PIPE_BUF> buffer;
    const ssize_t got = read(from_, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {  // end of file; a pty says EIO
      close(std::exchange(from_, -1));
    } else if (!reader_gone_) {
      pending_.assign(buffer.data(), static_cast<size_t>(got));
    }
    return;
  }
  const ssize_t put = write(to_, pending_.data(), pending_.size());
  if (put < 0 && (errno == EINTR || errno == EAGAIN)) return;
  reader_gone_ = put < 0;
  pending_.erase(0, put < 0 ? pending_.size() : static_cast<size_t>(put));
}

}  // namespace penstock
