// A link between two GPUs by NCCL (runtime/gpu/gpu_link.h): a communicator of two, which sends one way.
//
//   const std::string id = nccl_link_id(nccl_library());
//   auto way = std::make_unique<NcclLink>(nccl_library(), cuda, id, LinkEnd::sender);
//
// The communicator never blocks (ncclConfig_t::blocking = 0): each call is followed by asking until it is no longer in
//   progress, with a deadline, and given up where it passes or the link has ended meanwhile.
// Threads: the link's own joins, sends, and looks for errors; receive() calls from its caller's. mutex_ is held for
//   each call of NCCL, so that a communicator sees one thread at a time, and never while waiting, so that ending need
//   not wait. The link's thread alone aborts, as its last act: what CUDA streams were told then ends.
// Streams: sends go by a stream of the link's own. On a common one the send to a trainer that is late would keep back
//   those to others; and trainers wait for each other, in collectives of their own, so that nobody would go on.
// One GPU twice: NCCL refuses, when both ends have joined; whoever offers a link compares Gpu::identity() before.
// Ownership: what it was given must outlive it. Failure: as gpu_link.h.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/gpu_link.h"
#include "runtime/gpu/nccl/nccl_library.h"

namespace penstock {

// What a link needs of CUDA.
struct NcclCuda {
  std::function<void()> use;  // makes the GPU current in the calling thread
  std::function<cudaStream_t()> make_stream;
  std::function<void(cudaStream_t)> destroy_stream;
  std::function<cudaStream_t(GpuStream&)> stream_of;
};

std::string nccl_link_id(const NcclLibrary& nccl);

class NcclLink final : public GpuLink {
 public:
  NcclLink(const NcclLibrary& nccl, NcclCuda cuda, const std::string& id, LinkEnd end,
           const LinkTimeouts& timeouts = {});
  ~NcclLink() override;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  LinkState state() const override PENSTOCK_EXCLUDES(mutex_);
  std::string failure() const override PENSTOCK_EXCLUDES(mutex_);
  void send(const std::byte* from, size_t bytes) override PENSTOCK_EXCLUDES(mutex_);
  void receive(std::byte* to, size_t bytes, GpuStream& stream) override PENSTOCK_EXCLUDES(mutex_);
  void end(const std::string& why) noexcept override PENSTOCK_EXCLUDES(mutex_);

 private:
  using Bytes = std::pair<const std::byte*, size_t>;
  void run(const ncclUniqueId& id);
  void join(const ncclUniqueId& id) PENSTOCK_EXCLUDES(mutex_);
  void send_all() PENSTOCK_EXCLUDES(mutex_);
  std::optional<Bytes> next_to_send() PENSTOCK_EXCLUDES(mutex_);
  void look_for_errors() PENSTOCK_REQUIRES(mutex_);
  void abort_all() PENSTOCK_EXCLUDES(mutex_);
  // Makes a call, and waits until it is no longer in progress.
  template <class Call>
  void settle(const char* what, Nanoseconds timeout_ns, const Call& call) PENSTOCK_EXCLUDES(mutex_);
  void fail(const std::string& why) PENSTOCK_REQUIRES(mutex_);
  std::string text_of(const char* what, ncclResult_t result) const PENSTOCK_REQUIRES(mutex_);

  const NcclLibrary& nccl_;
  const NcclCuda cuda_;
  const LinkEnd end_;
  const LinkTimeouts timeouts_;

  mutable Mutex mutex_;
  CondVar changed_;
  LinkState state_ PENSTOCK_GUARDED_BY(mutex_) = LinkState::joining;
  std::string failure_ PENSTOCK_GUARDED_BY(mutex_);
  ncclComm_t comm_ PENSTOCK_GUARDED_BY(mutex_) = nullptr;
  std::deque<Bytes> queue_ PENSTOCK_GUARDED_BY(mutex_);
  cudaStream_t stream_ = nullptr;  // of the thread
  std::thread thread_;
};

}  // namespace penstock
