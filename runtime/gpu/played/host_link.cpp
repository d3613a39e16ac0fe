#include "runtime/gpu/played/host_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/random_hex.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/gpu.h"
#include "runtime/gpu/played/host_stream.h"

namespace penstock {
namespace {

GpuError host_link_failed(const std::string& why) {
  return {GpuFault::failed, "a link between GPUs: " + why};
}

class HostLink final : public GpuLink {
 public:
  HostLink(const std::string& id, LinkEnd end, const LinkTimeouts& timeouts)
      : end_(end), timeouts_(timeouts), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (!socket || !stop_ || id.empty() || id.size() > sizeof address.sun_path - 1)
      throw host_link_failed("no socket for it");
    std::memcpy(address.sun_path + 1, id.data(), id.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + id.size());
    const auto* const place = reinterpret_cast<const sockaddr*>(&address);
    if (end == LinkEnd::sender) {
      if (::bind(socket.get(), place, length) != 0 || ::listen(socket.get(), 1) != 0) {
        throw host_link_failed(std::strerror(errno));
      }
      thread_ = std::thread([this, listening = std::move(socket)]() mutable { run(std::move(listening)); });
      return;
    }
    if (::connect(socket.get(), place, length) != 0) {
      fail(std::string("the other end: ") + std::strerror(errno));
      return;
    }
    socket_ = std::move(socket);
    const MutexLock lock(mutex_);
    state_ = LinkState::joined;
  }
  ~HostLink() override {
    HostLink::end("it was ended");
    if (thread_.joinable()) thread_.join();
  }
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  LinkState state() const override {
    MutexLock lock(mutex_);
    return state_;
  }
  std::string failure() const override {
    MutexLock lock(mutex_);
    return failure_;
  }
  void send(const std::byte* from, size_t bytes) override {
    MutexLock lock(mutex_);
    queue_.emplace_back(from, bytes);
    changed_.notify_all();
  }
  void receive(std::byte* to, size_t bytes, GpuStream& stream) override {
    if (state() == LinkState::failed) throw host_link_failed(failure());
    auto* const ours = dynamic_cast<HostStream*>(&stream);
    if (ours == nullptr) {
      throw Error(ErrorKind::usage, "a link between GPUs that are this CPU receives in their streams alone");
    }
    ours->later(
        [this, to, bytes] {
          if (state() == LinkState::failed) return;
          move(bytes, [&](size_t at) { return ::read(socket_.get(), to + at, bytes - at); });
        },
        &GpuTimes::copy_ns);
  }
  void end(const std::string& why) noexcept override {
    fail(why);
    ::eventfd_write(stop_.get(), 1);
    MutexLock lock(mutex_);
    changed_.notify_all();
  }

 private:
  void fail(const std::string& why) {
    MutexLock lock(mutex_);
    if (state_ == LinkState::failed) return;
    state_ = LinkState::failed;
    failure_ = why;
  }

  // False: aborted, or the time has passed.
  bool ready(int fd, short events, Nanoseconds timeout_ns) const {
    pollfd fds[] = {{fd, events, 0}, {stop_.get(), POLLIN, 0}};
    return ::poll(fds, 2, static_cast<int>(timeout_ns / kMillisecond)) > 0 && fds[1].revents == 0;
  }

  void run(UniqueFd listening) {
    if (!ready(listening.get(), POLLIN, timeouts_.join_ns)) return fail("the other end did not come");
    socket_ = UniqueFd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    listening.reset();
    if (!socket_) return fail(std::strerror(errno));
    {
      MutexLock lock(mutex_);
      if (state_ == LinkState::joining) state_ = LinkState::joined;
    }
    while (const auto next = next_to_send()) {
      move(next->second,
           [&](size_t at) { return ::send(socket_.get(), next->first + at, next->second - at, MSG_NOSIGNAL); });
    }
  }

  // Waits for it; nothing: the link has failed.
  std::optional<std::pair<const std::byte*, size_t>> next_to_send() {
    MutexLock lock(mutex_);
    while (queue_.empty() && state_ != LinkState::failed) changed_.wait(mutex_);
    if (state_ == LinkState::failed) return std::nullopt;
    const auto next = queue_.front();
    queue_.pop_front();
    return next;
  }

  template <class Call>
  void move(size_t bytes, const Call& call) {
    const short events = end_ == LinkEnd::sender ? POLLOUT : POLLIN;
    for (size_t at = 0; at < bytes;) {
      const ssize_t moved = call(at);
      if (moved > 0) {
        at += static_cast<size_t>(moved);
      } else if (moved == 0) {
        return fail("the other end has ended it");
      } else if (errno != EAGAIN && errno != EINTR) {
        return fail(std::string("the other end: ") + std::strerror(errno));
      } else if (!ready(socket_.get(), events, timeouts_.move_ns)) {
        return fail("the other end moves nothing");
      }
    }
  }

  const LinkEnd end_;
  const LinkTimeouts timeouts_;
  UniqueFd stop_;
  UniqueFd socket_;  // of the sender's thread, or of whoever waits for the receiving end's streams

  mutable Mutex mutex_;
  CondVar changed_;
  LinkState state_ PENSTOCK_GUARDED_BY(mutex_) = LinkState::joining;
  std::string failure_ PENSTOCK_GUARDED_BY(mutex_);
  std::deque<std::pair<const std::byte*, size_t>> queue_ PENSTOCK_GUARDED_BY(mutex_);
  std::thread thread_;  // sends
};

}  // namespace

std::string new_host_link_id() {
  return "penstock-link-" + random_hex(12);
}

std::unique_ptr<GpuLink> open_host_link(const std::string& id, LinkEnd end, const LinkTimeouts& timeouts) {
  return std::make_unique<HostLink>(id, end, timeouts);
}

}  // namespace penstock
