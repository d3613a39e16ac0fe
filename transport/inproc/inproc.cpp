#include "transport/inproc/inproc.h"

#include <deque>
#include <map>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/thread_annotations.h"
#include "transport/chunk_buffer_token.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

struct Mailbox {
  Mutex mutex;
  std::deque<Incoming> queue PENSTOCK_GUARDED_BY(mutex);
  bool closed PENSTOCK_GUARDED_BY(mutex) = false;
  Wakeup wakeup;

  // False when the owner has gone.
  bool post(Incoming incoming) {
    {
      MutexLock lock(mutex);
      if (closed) return false;
      queue.push_back(std::move(incoming));
    }
    wakeup.set();
    return true;
  }
};

}  // namespace

struct InprocWorld::Shared {
  explicit Shared(int peers) : mailboxes(static_cast<size_t>(peers)) {}
  std::vector<Mailbox> mailboxes;
};

namespace {

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(std::shared_ptr<InprocWorld::Shared> shared, PeerId self) : shared_(std::move(shared)), self_(self) {}

  ~InprocEndpoint() override {
    std::deque<Incoming> left;
    Mailbox& mine = mailbox(self_);
    {
      MutexLock lock(mine.mutex);
      mine.closed = true;
      left.swap(mine.queue);
    }
    for (const Incoming& incoming : left) {
      if (const auto* chunk = std::get_if<ChunkArrived>(&incoming)) give_back(chunk->peer, chunk->token);
    }
    for (const auto& [peer, token] : held_) give_back(peer, token);
    for (size_t peer = 0; peer < shared_->mailboxes.size(); ++peer) {
      const auto id = static_cast<PeerId>(peer);
      if (id != self_) mailbox(id).post(PeerLost{self_, "its thread ended"});
    }
  }

  Capabilities capabilities(PeerId) const override { return {"inproc", true, true}; }
  void send(PeerId peer, Message message) override { mailbox(peer).post(MessageArrived{self_, std::move(message)}); }
  void send_with(PeerId peer, Message message, int fd) override {
    mailbox(peer).post(MessageArrived{self_, std::move(message), duplicate(fd)});
  }

  void send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, size_t bytes) override {
    const auto arena = arenas_.find(chunk_buffer.arena);
    if (arena == arenas_.end()) throw Error(ErrorKind::usage, "send_chunk: the arena was not registered");
    if (!arena->second->holds(chunk_buffer.index, bytes))
      throw Error(ErrorKind::usage, "send_chunk: not a chunk buffer of its arena");
    ChunkArrived chunk{
        self_, std::move(envelope), {arena->second->chunk_buffer(chunk_buffer.index), bytes}, token_of(chunk_buffer)};
    if (!mailbox(peer).post(std::move(chunk))) mailbox(self_).post(ChunkBufferReturned{peer, chunk_buffer});
  }

  void release(PeerId peer, uint64_t token) override {
    if (held_.erase({peer, token}) != 0) give_back(peer, token);  // a second release changes nothing
  }
  bool peers_map_arenas() const noexcept override { return false; }
  void register_arena(const Arena& arena) override { arenas_[arena.id] = &arena; }
  void forget_arena(uint32_t id) override { arenas_.erase(id); }

  bool poll(Incoming& incoming) override {
    Mailbox& mine = mailbox(self_);
    {
      MutexLock lock(mine.mutex);
      if (mine.queue.empty()) {
        mine.wakeup.clear();
        return false;
      }
      incoming = std::move(mine.queue.front());
      mine.queue.pop_front();
    }
    if (const auto* chunk = std::get_if<ChunkArrived>(&incoming)) held_.insert({chunk->peer, chunk->token});
    return true;
  }
  void collect_fds(std::vector<pollfd>& fds) const override {
    fds.push_back({shared_->mailboxes[static_cast<size_t>(self_)].wakeup.fd(), POLLIN, 0});
  }
  bool flush(Nanoseconds) override { return true; }

 private:
  Mailbox& mailbox(PeerId peer) {
    if (peer < 0 || peer >= std::ssize(shared_->mailboxes)) {
      throw Error(ErrorKind::usage, "no way to reach rank " + std::to_string(peer));
    }
    return shared_->mailboxes[static_cast<size_t>(peer)];
  }
  void give_back(PeerId peer, uint64_t token) {
    mailbox(peer).post(ChunkBufferReturned{self_, chunk_buffer_of(token)});
  }

  std::shared_ptr<InprocWorld::Shared> shared_;
  PeerId self_;
  std::map<uint32_t, const Arena*> arenas_;
  std::set<std::pair<PeerId, uint64_t>> held_;  // chunks received and not yet released
};

}  // namespace

InprocWorld::InprocWorld(int peers) : shared_(std::make_shared<Shared>(peers)) {}
InprocWorld::~InprocWorld() = default;
std::unique_ptr<Endpoint> InprocWorld::endpoint(PeerId self) {
  return std::make_unique<InprocEndpoint>(shared_, self);
}

}  // namespace penstock
