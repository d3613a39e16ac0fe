// The component's entries: a session around the progress thread, and the endpoint that the event loop sees; and what it
// was built on.
#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#elif defined(PENSTOCK_MPI_LIBRARY)
#error "PENSTOCK_PORTABLE opens Open MPI's library, and wants its mpi.h; or PENSTOCK_MPI=OFF"
#endif

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/error.h"
#include "transport/mpi/polling_backoff.h"
#include "transport/mpi/progress.h"
#include "transport/mpi_component.h"

namespace penstock::mpi {
namespace {

class MpiEndpoint final : public Endpoint {
 public:
  explicit MpiEndpoint(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

  Capabilities capabilities(PeerId) const override { return {"mpi", false, false, PollingBackoff::kDelay}; }
  void send(PeerId peer, Message message) override { progress_->send(peer, std::move(message)); }
  void send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, size_t bytes) override {
    const auto arena = arenas_.find(chunk_buffer.arena);
    if (arena == arenas_.end()) throw Error(ErrorKind::usage, "send_chunk: the arena was not registered");
    if (!arena->second->holds(chunk_buffer.index, bytes))
      throw Error(ErrorKind::usage, "send_chunk: not a chunk buffer of its arena");
    progress_->send_chunk(peer, std::move(envelope), chunk_buffer, arena->second->chunk_buffer(chunk_buffer.index),
                          bytes);
  }
  void release(PeerId, uint64_t token) override { progress_->release(token); }
  bool peers_map_arenas() const noexcept override { return false; }
  void register_arena(const Arena& arena) override { arenas_[arena.id] = &arena; }
  void forget_arena(uint32_t id) override { arenas_.erase(id); }
  void abandon(PeerId peer) override { progress_->abandon(peer); }
  void give_up(PeerId peer) override { progress_->give_up(peer); }
  bool poll(Incoming& incoming) override { return progress_->poll(incoming); }
  void collect_fds(std::vector<pollfd>& fds) const override { fds.push_back({progress_->wakeup_fd(), POLLIN, 0}); }
  bool flush(Nanoseconds timeout_ns) override { return progress_->flush(timeout_ns); }

 private:
  std::shared_ptr<Progress> progress_;
  std::map<uint32_t, const Arena*> arenas_;
};

class Session final : public MpiSession {
 public:
  explicit Session(const MpiOptions& options) : progress_(Progress::start(options)) {}

  const MpiWorldInfo& world() const override { return progress_->world(); }
  std::vector<std::string> all_gather(const std::string& mine) override { return progress_->all_gather(mine); }
  void barrier() override { progress_->barrier(); }
  int communicator_of(bool in) override { return progress_->communicator_of(in); }
  std::unique_ptr<Endpoint> endpoint() override { return std::make_unique<MpiEndpoint>(progress_); }
  bool finish(bool all_alive, Nanoseconds timeout_ns) override { return progress_->finish(all_alive, timeout_ns); }
  std::string why_unfinished() const override { return progress_->why_unfinished(); }
  bool asked_to_end() const override { return progress_->asked_to_end(); }

 private:
  std::shared_ptr<Progress> progress_;
};

}  // namespace
}  // namespace penstock::mpi

extern "C" __attribute__((visibility("default"))) penstock::MpiSession* penstock_mpi_start_8(
    const penstock::MpiOptions* options, std::optional<penstock::Error>* error) {
  try {
    return new penstock::mpi::Session(*options);
  } catch (const penstock::Error& problem) {
    *error = problem;
  } catch (const std::exception& problem) {
    error->emplace(penstock::ErrorKind::runtime, problem.what(), "run under mpirun; `penstock check` tests MPI");
  }
  return nullptr;
}

extern "C" __attribute__((visibility("default"))) void penstock_mpi_about(penstock::MpiAbout* about) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  // One of the few calls that are allowed before MPI_Init.
  if (MPI_Get_library_version(text, &length) == MPI_SUCCESS) about->library.assign(text, static_cast<size_t>(length));
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  about->cuda = MPIX_CUDA_AWARE_SUPPORT ? penstock::MpiAbout::Cuda::yes : penstock::MpiAbout::Cuda::no;
#endif
}
