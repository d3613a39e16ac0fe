#include "runtime/datasets/python_worker.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/descriptor_message.h"
#include "runtime/base/error.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {

constexpr size_t kHeadBytes = 9;
constexpr uint8_t kInMemory = 0x80;
constexpr size_t kMaxReasonBytes = 4096;
constexpr size_t kTailBytes = 4096;
constexpr size_t kTailLines = 12;
constexpr Nanoseconds kDrain_ns = 50 * kMillisecond;

class Exchange {
 public:
  Exchange(PythonWorker& worker, double limit_s, const std::stop_token& stop)
      : worker_(worker),
        limit_s_(limit_s),
        stop_(stop),
        deadline_(clock_.now() + static_cast<Nanoseconds>(limit_s * 1e9)) {}

  void send(std::span<const std::byte> bytes, bool more, const WorkerEnds* ends = nullptr) {
    while (!bytes.empty()) {
      const ssize_t sent = send_some(bytes, more, ends);
      if (sent > 0) {
        ends = nullptr;
        bytes = bytes.subspan(static_cast<size_t>(sent));
      } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        wait(POLLOUT);
      } else if (sent >= 0 || errno != EINTR) {
        throw WorkerFault{};
      }
    }
  }

  void receive(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t got = receive_some(bytes);
      if (got > 0) {
        bytes = bytes.subspan(static_cast<size_t>(got));
      } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        wait(POLLIN);
      } else if (got == 0 || errno != EINTR) {
        throw WorkerFault{};
      }
    }
  }

 private:
  ssize_t send_some(std::span<const std::byte> bytes, bool more, const WorkerEnds* ends) {
    std::array<int, 4> descriptors{};
    if (ends != nullptr)
      descriptors = {ends->socket.get(), ends->output.get(), ends->lifeline.get(), ends->status.get()};
    DescriptorMessage message(bytes, std::span(descriptors).first(ends != nullptr ? descriptors.size() : 0));
    return ::sendmsg(worker_.process.socket(), message.header(), MSG_NOSIGNAL | (more ? MSG_MORE : 0));
  }

  // A descriptor that comes along is the worker's memory for large answers, from now on.
  ssize_t receive_some(std::span<std::byte> bytes) {
    DescriptorMessage message(bytes);
    const ssize_t got = ::recvmsg(worker_.process.socket(), message.header(), MSG_CMSG_CLOEXEC);
    if (got < 0) return got;
    if (UniqueFd memory = message.take_last()) take_memory(std::move(memory));
    return got;
  }

  void take_memory(UniqueFd memory) {
    worker_.memory = {};
    struct stat status {};
    if (::fstat(memory.get(), &status) != 0) throw WorkerFault{"gave no memory for its answers"};
    try {
      worker_.memory =
          SharedMemory::open(std::move(memory), static_cast<size_t>(status.st_size), SharedMemory::Access::read);
    } catch (const Error& error) {
      throw WorkerFault{std::string("gave memory for its answers that is none: ") + error.what()};
    }
  }

  void wait(short events) {
    if (stop_.stop_requested())
      throw Error(ErrorKind::runtime, "the job, or its split, ended before a Python worker answered");
    const Nanoseconds left = deadline_ - clock_.now();
    if (left <= 0) {
      char text[64];
      std::snprintf(text, sizeof text, "did not answer within %g s", limit_s_);
      throw WorkerFault{text};
    }
    pollfd fds[] = {{worker_.process.socket(), events, 0}, {worker_.process.output(), POLLIN, 0}};
    // A closed output (a worker may close its own) would be readable for ever.
    const nfds_t count = output_open_ ? 2 : 1;
    (void)::poll(fds, count, static_cast<int>(std::min(left / kMillisecond + 1, kStopCheck_ms)));
    if (count == 2 && fds[1].revents != 0) drain(worker_);
    if (count == 2 && (fds[1].revents & POLLHUP) != 0) output_open_ = false;
  }

  PythonWorker& worker_;
  MonotonicClock clock_;
  double limit_s_;
  const std::stop_token& stop_;
  Nanoseconds deadline_;
  bool output_open_ = true;
};

}  // namespace

std::string last_lines(const std::string& tail) {
  size_t begin = tail.size();
  for (size_t lines = 0; begin > 0; --begin) {
    if (tail[begin - 1] == '\n' && begin != tail.size() && ++lines == kTailLines) break;
  }
  std::string text = tail.substr(begin);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void drain(PythonWorker& worker) {
  char buffer[4096];  // no more than a pipe takes at once: a write after POLLOUT does not block
  static_assert(sizeof buffer <= PIPE_BUF);
  ssize_t got = 0;
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + kDrain_ns;
  while (clock.now() < deadline && (got = ::read(worker.process.output(), buffer, sizeof buffer)) > 0) {
    pollfd out{STDERR_FILENO, POLLOUT, 0};
    const auto left = static_cast<int>(std::max<Nanoseconds>(deadline - clock.now(), 0) / kMillisecond);
    if (::poll(&out, 1, left) == 1 && (out.revents & POLLOUT) != 0) {
      for (ssize_t done = 0; done < got;) {
        const ssize_t written = ::write(STDERR_FILENO, buffer + done, static_cast<size_t>(got - done));
        if (written <= 0) break;  // nobody reads our stderr any more
        done += written;
      }
    }
    worker.tail.append(buffer, static_cast<size_t>(got));
    if (worker.tail.size() > 2 * kTailBytes) worker.tail.erase(0, worker.tail.size() - kTailBytes);
  }
}

uint8_t exchange(PythonWorker& worker, const PythonRequest& request, size_t max_answer_bytes, double limit_s,
                 const std::stop_token& stop, std::vector<std::byte>& answer, const WorkerEnds* ends) {
  Exchange io(worker, limit_s, stop);
  WireWriter head;
  head.u64(request.body.size() + request.payload.size());
  head.u8(request.kind);
  io.send(head.bytes(), true, ends);
  io.send(request.body, !request.payload.empty());
  io.send(request.payload, false);
  std::byte reply[kHeadBytes];
  io.receive(reply);
  WireReader in(reply);
  const uint64_t size = in.u64();
  const uint8_t said = in.u8();
  const bool in_memory = (said & kInMemory) != 0;
  const auto status = static_cast<uint8_t>(said & ~kInMemory);
  if (size > (status == kWorkerGood ? max_answer_bytes : kMaxReasonBytes)) {
    throw WorkerFault{"answered with " + std::to_string(size) + " bytes, more than was asked for"};
  }
  answer.resize(static_cast<size_t>(size) + kAnswerPadding);
  if (!in_memory) {
    io.receive(std::span(answer).first(static_cast<size_t>(size)));
  } else if (size <= worker.memory.size()) {
    // The worker does not write there again before the next request.
    std::copy_n(worker.memory.data(), static_cast<size_t>(size), answer.data());
  } else {
    throw WorkerFault{"has no memory for what it answered"};
  }
  answer.resize(static_cast<size_t>(size));  // the padding stays readable: nothing is given back
  return status;
}

}  // namespace penstock
