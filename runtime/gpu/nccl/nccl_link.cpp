#include "runtime/gpu/nccl/nccl_link.h"

#include <chrono>
#include <cstring>

#include "runtime/gpu/gpu.h"

namespace penstock {
namespace {

constexpr std::chrono::microseconds kLook{100'000};     // for errors, while nothing is to be done
constexpr std::chrono::microseconds kPollInterval{50};  // while a call is in progress

GpuError nccl_failed(const std::string& why) {
  return {GpuFault::failed, "a link between GPUs: " + why};
}

}  // namespace

std::string nccl_link_id(const NcclLibrary& nccl) {
  ncclUniqueId id{};
  if (const ncclResult_t result = nccl.GetUniqueId(&id); result != ncclSuccess) {
    throw nccl_failed(std::string("making its id: ") + nccl.GetErrorString(result));
  }
  return {id.internal, sizeof id.internal};
}

NcclLink::NcclLink(const NcclLibrary& nccl, NcclCuda cuda, const std::string& id, LinkEnd end,
                   const LinkTimeouts& timeouts)
    : nccl_(nccl), cuda_(std::move(cuda)), end_(end), timeouts_(timeouts) {
  ncclUniqueId unique{};
  if (id.size() != sizeof unique.internal) {
    throw nccl_failed("an id of " + std::to_string(id.size()) + " bytes is none of NCCL's");
  }
  std::memcpy(unique.internal, id.data(), id.size());
  thread_ = std::thread([this, unique] { run(unique); });
}

NcclLink::~NcclLink() {
  NcclLink::end("it was ended");
  thread_.join();
}

LinkState NcclLink::state() const {
  MutexLock lock(mutex_);
  return state_;
}

std::string NcclLink::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

void NcclLink::send(const std::byte* from, size_t bytes) {
  MutexLock lock(mutex_);
  queue_.emplace_back(from, bytes);
  changed_.notify_all();
}

void NcclLink::receive(std::byte* to, size_t bytes, GpuStream& stream) {
  if (state() == LinkState::joining) throw nccl_failed("receiving: it has not joined yet");
  cuda_.use();
  settle("receiving", timeouts_.move_ns, [&]() PENSTOCK_REQUIRES(mutex_) {
    return nccl_.Recv(to, bytes, ncclUint8, 0, comm_, cuda_.stream_of(stream));
  });
}

void NcclLink::end(const std::string& why) noexcept {
  MutexLock lock(mutex_);
  fail(why);
}

void NcclLink::fail(const std::string& why) {
  if (state_ != LinkState::failed) {
    state_ = LinkState::failed;
    failure_ = why;
  }
  changed_.notify_all();
}

void NcclLink::run(const ncclUniqueId& id) {
  try {
    cuda_.use();
    join(id);
    send_all();
  } catch (const Error& error) {
    MutexLock lock(mutex_);
    fail(error.message());
  }
  abort_all();
}

void NcclLink::join(const ncclUniqueId& id) {
  if (end_ == LinkEnd::sender) stream_ = cuda_.make_stream();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  settle("joining", timeouts_.join_ns, [&]() PENSTOCK_REQUIRES(mutex_) {
    return nccl_.CommInitRankConfig(&comm_, 2, id, end_ == LinkEnd::sender ? 0 : 1, &config);
  });
  MutexLock lock(mutex_);
  if (state_ == LinkState::joining) state_ = LinkState::joined;
}

// Until the link ends.
void NcclLink::send_all() {
  while (const auto next = next_to_send()) {
    settle("sending", timeouts_.move_ns, [&]() PENSTOCK_REQUIRES(mutex_) {
      return nccl_.Send(next->first, next->second, ncclUint8, 1, comm_, stream_);
    });
  }
}

std::optional<NcclLink::Bytes> NcclLink::next_to_send() {
  MutexLock lock(mutex_);
  while (state_ != LinkState::failed && queue_.empty()) {
    if (!changed_.wait_for(mutex_, kLook)) look_for_errors();
  }
  if (state_ == LinkState::failed) return std::nullopt;
  const Bytes next = queue_.front();
  queue_.pop_front();
  return next;
}

// That the other end has gone, say, which some ways between GPUs notice.
void NcclLink::look_for_errors() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.CommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) return fail(text_of("asking for errors", asked));
  if (state != ncclSuccess && state != ncclInProgress) fail(text_of("the other end", state));
}

template <class Call>
void NcclLink::settle(const char* what, Nanoseconds timeout_ns, const Call& call) {
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  MutexLock lock(mutex_);
  ncclResult_t state = state_ == LinkState::failed ? ncclSuccess : call();
  while (state_ != LinkState::failed && state == ncclInProgress) {
    if (clock.now() - begun > timeout_ns) {
      fail(std::string(what) + ": the other end has not answered for " + std::to_string(timeout_ns / kSecond) + " s");
      break;
    }
    changed_.wait_for(mutex_, kPollInterval);
    if (state_ == LinkState::failed) break;
    if (const ncclResult_t asked = nccl_.CommGetAsyncError(comm_, &state); asked != ncclSuccess) state = asked;
  }
  if (state_ != LinkState::failed && state != ncclSuccess) fail(text_of(what, state));
  if (state_ == LinkState::failed) throw nccl_failed(failure_);
}

// The communicator, and with it what CUDA streams were told.
void NcclLink::abort_all() {
  ncclComm_t comm = nullptr;
  {
    MutexLock lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  // Nobody else calls any more: the link has failed, and whoever waited for a call sees that before the next.
  if (comm != nullptr) (void)nccl_.CommAbort(comm);
  if (stream_ != nullptr) cuda_.destroy_stream(stream_);
}

std::string NcclLink::text_of(const char* what, ncclResult_t result) const {
  std::string text = std::string(what) + ": " + nccl_.GetErrorString(result);
  const char* const more = nccl_.GetLastError(comm_);
  if (more != nullptr && *more != 0) text += std::string(" (") + more + ")";
  return text;
}

}  // namespace penstock
