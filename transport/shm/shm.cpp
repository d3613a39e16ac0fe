#include "transport/shm/shm.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/error.h"
#include "runtime/base/wire.h"
#include "transport/chunk_buffer_token.h"

namespace penstock {
namespace {

enum Kind : uint8_t { kHello = 1, kMessage = 2, kArena = 3, kChunk = 4, kRelease = 5, kForget = 6 };

}  // namespace

std::string shm_socket_name(const std::string& job, PeerId rank) {
  return "penstock/" + std::to_string(::geteuid()) + "/" + job + "/r" + std::to_string(rank);
}

struct ShmEndpoint::Peer {
  PeerId id = 0;
  PacketSocket socket;
  bool reported = false;
  std::set<uint32_t> shown;      // our arenas that were announced to it
  std::set<uint64_t> published;  // our chunk buffers that it reads
  struct PeerArena {
    SharedMemory memory;
    size_t chunk_buffer_bytes = 0;
  };
  std::map<uint32_t, PeerArena> arenas;
};

ShmEndpoint::ShmEndpoint(const ShmOptions& options)
    : options_(options), listening_(listen_abstract(shm_socket_name(options.job, options.self))) {}
ShmEndpoint::~ShmEndpoint() = default;

bool ShmEndpoint::try_to_call(PeerId id) {
  UniqueFd fd = try_connect_abstract(shm_socket_name(options_.job, id));
  if (!fd && errno == EPERM) {
    throw Error(ErrorKind::peer_lost, "the socket of rank " + std::to_string(id) + " belongs to another user",
                "another program uses this job's socket name; choose another job name");
  }
  if (!fd) return false;
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  peer->socket = PacketSocket(std::move(fd));
  peer->socket.limit_refusals(PacketSocket::kNoLimit);
  WireWriter hello;
  hello.u8(kHello);
  hello.i32(options_.self);
  hello.text(options_.token);
  peer->socket.send(hello.bytes());
  peers_[id] = std::move(peer);
  return true;
}

std::vector<PeerId> ShmEndpoint::missed() const {
  std::vector<PeerId> missed;
  for (const PeerId id : options_.node_peers) {
    if (id != options_.self && peers_.count(id) == 0) missed.push_back(id);
  }
  return missed;
}

void ShmEndpoint::connect() {
  meet([this](PeerId id) { return id > options_.self; });
}

void ShmEndpoint::wait_for_calls() {
  meet([](PeerId) { return false; });
}

void ShmEndpoint::meet(const std::function<bool(PeerId)>& may_be_missed) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + options_.connect_timeout_ns;
  for (;;) {
    accept_waiting();
    std::vector<PeerId> left = missed();
    // A full backlog is one that will be accepted from; a rank that does not listen yet may be slow to start.
    std::erase_if(left, [&](PeerId id) { return may_be_missed(id) || (id < options_.self && try_to_call(id)); });
    if (left.empty()) return;
    end_if_asked(options_.asked_to_end);
    if (clock.now() > deadline) {
      std::string names;
      for (size_t i = 0; i < left.size() && i < 8; ++i) names += (i == 0 ? "" : ", ") + std::to_string(left[i]);
      if (left.size() > 8) names += " and " + std::to_string(left.size() - 8) + " more";
      throw Error(ErrorKind::peer_lost,
                  "rank " + std::to_string(options_.self) + " waited " +
                      std::to_string(options_.connect_timeout_ns / kSecond) + " s for rank" +
                      (left.size() == 1 ? " " : "s ") + names + " of this node, in vain",
                  "are they still running? see their messages, and `penstock doctor` for limits");
    }
    wait_for_a_call(5);
  }
}

void ShmEndpoint::wait_for_a_call(int timeout_ms) const {
  std::vector<pollfd> fds;
  collect_callers(fds);
  (void)::poll(fds.data(), fds.size(), timeout_ms);
}

ShmEndpoint::Peer* ShmEndpoint::find(PeerId peer) {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? nullptr : it->second.get();
}

void ShmEndpoint::wait_for_peer(PeerId id, Waiting item) {
  const bool expected = std::count(options_.node_peers.begin(), options_.node_peers.end(), id) != 0;
  if (!expected || id == options_.self) throw Error(ErrorKind::usage, "no way to reach rank " + std::to_string(id));
  waiting_[id].push_back(std::move(item));
}

void ShmEndpoint::send_with(PeerId id, Message message, int fd) {
  Peer* peer = find(id);
  if (peer == nullptr) {
    wait_for_peer(id, {std::move(message), {}, 0, false, fd >= 0 ? duplicate(fd) : UniqueFd()});
    return;
  }
  message.insert(message.begin(), std::byte{kMessage});
  peer->socket.send(message, fd);
}

void ShmEndpoint::register_arena(const Arena& arena) {
  arenas_[arena.id] = &arena;
}

void ShmEndpoint::send_chunk(PeerId id, Message envelope, ChunkBufferRef chunk_buffer, size_t bytes) {
  const auto known = arenas_.find(chunk_buffer.arena);
  if (known == arenas_.end()) throw Error(ErrorKind::usage, "send_chunk: the arena was not registered");
  const Arena& arena = *known->second;
  if (!arena.holds(chunk_buffer.index, bytes))
    throw Error(ErrorKind::usage, "send_chunk: not a chunk buffer of its arena");
  Peer* peer = find(id);
  if (peer == nullptr) {
    wait_for_peer(id, {std::move(envelope), chunk_buffer, bytes, true});
    return;
  }
  if (peer->socket.closed()) {
    ready_.push_back(ChunkBufferReturned{id, chunk_buffer});
    return;
  }
  if (peer->shown.insert(chunk_buffer.arena).second) {
    WireWriter out;
    out.u8(kArena);
    out.u32(arena.id);
    out.u64(arena.memory.size());
    out.u64(arena.chunk_buffer_bytes);
    peer->socket.send(out.bytes(), arena.memory.fd());
  }
  WireWriter out;
  out.u8(kChunk);
  out.u32(chunk_buffer.arena);
  out.u32(chunk_buffer.index);
  out.u64(bytes);
  out.raw(envelope.data(), envelope.size());
  peer->published.insert(token_of(chunk_buffer));
  peer->socket.send(out.bytes());
}

void ShmEndpoint::forget_arena(uint32_t id) {
  if (arenas_.erase(id) == 0) return;
  for (auto& [peer_id, peer] : peers_) {
    if (peer->shown.erase(id) == 0 || peer->socket.closed()) continue;
    WireWriter out;
    out.u8(kForget);
    out.u32(id);
    peer->socket.send(out.bytes());
  }
}

void ShmEndpoint::release(PeerId id, uint64_t token) {
  Peer* peer = find(id);
  if (peer == nullptr) return;
  WireWriter out;
  out.u8(kRelease);
  out.u32(chunk_buffer_of(token).arena);
  out.u32(chunk_buffer_of(token).index);
  peer->socket.send(out.bytes());
}

// The rank that says hello; -1 for a process that does not belong to this job, whose messages are no error of ours.
PeerId ShmEndpoint::read_hello(const Packet& packet) const {
  try {
    WireReader in(packet.bytes, "hello");
    if (in.u8() != kHello) return -1;
    const PeerId id = in.i32();
    const std::string token = in.text();
    in.end();
    const bool expected = id > options_.self && std::count(options_.node_peers.begin(), options_.node_peers.end(), id);
    return expected && token == options_.token ? id : -1;
  } catch (const Error&) {
    return -1;
  }
}

void ShmEndpoint::accept_waiting() {
  for (PacketSocket& socket : accept_strangers(listening_.get())) strangers_.push_back(std::move(socket));
  for (size_t i = 0; i < strangers_.size();) {
    Packet packet;
    if (!strangers_[i].receive(packet)) {
      if (strangers_[i].closed()) {
        strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
      continue;
    }
    PacketSocket socket = std::move(strangers_[i]);
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
    const PeerId id = read_hello(packet);
    if (id < 0 || find(id) != nullptr) continue;  // the socket closes
    auto peer = std::make_unique<Peer>();
    peer->id = id;
    peer->socket = std::move(socket);
    peer->socket.limit_messages(PacketSocket::kMaxMessage);
    peer->socket.limit_refusals(PacketSocket::kNoLimit);
    peers_[id] = std::move(peer);
    silent_.erase(id);
    if (const auto it = waiting_.find(id); it != waiting_.end()) {
      for (Waiting& item : it->second) {
        if (item.is_chunk) {
          send_chunk(id, std::move(item.message), item.chunk_buffer, item.bytes);
        } else {
          send_with(id, std::move(item.message), item.fd.get());
        }
      }
      waiting_.erase(id);
    }
  }
  // Ranks that have called and are kept from saying who they are, on a busy machine, are none of the strangers.
  const size_t most = kMostStrangers + options_.node_peers.size();
  while (strangers_.size() > most) strangers_.erase(strangers_.begin());
}

bool ShmEndpoint::handle(PeerId id, Packet packet, Incoming& incoming) {
  Peer& peer = *find(id);
  WireReader in(packet.bytes, "packet of shared memory");
  switch (in.u8()) {
    case kMessage: {
      const auto rest = in.raw(in.left());
      incoming = MessageArrived{id, {rest.begin(), rest.end()}, std::move(packet.fd)};
      return true;
    }
    case kArena: {
      const uint32_t arena = in.u32();
      const uint64_t bytes = in.u64();
      const uint64_t chunk_buffer_bytes = in.u64();
      in.end();
      // A second one of the same number would unmap chunk buffers that are still being read.
      if (chunk_buffer_bytes == 0 || chunk_buffer_bytes > bytes || peer.arenas.count(arena) != 0) {
        throw Error(ErrorKind::peer_lost, "rank " + std::to_string(id) + " announced impossible chunk buffers",
                    "all ranks must run the same version of penstock");
      }
      peer.arenas[arena] = {SharedMemory::open(std::move(packet.fd), bytes, SharedMemory::Access::read),
                            chunk_buffer_bytes};
      return false;
    }
    case kChunk: {
      const ChunkBufferRef chunk_buffer{in.u32(), in.u32()};
      const uint64_t bytes = in.u64();
      const auto envelope = in.raw(in.left());
      const auto arena = peer.arenas.find(chunk_buffer.arena);
      if (arena == peer.arenas.end() || bytes > arena->second.chunk_buffer_bytes ||
          chunk_buffer.index >= arena->second.memory.size() / arena->second.chunk_buffer_bytes) {
        throw Error(ErrorKind::peer_lost, "rank " + std::to_string(id) + " announced a chunk outside its memory",
                    "all ranks must run the same version of penstock");
      }
      const std::byte* data = arena->second.memory.data() + chunk_buffer.index * arena->second.chunk_buffer_bytes;
      incoming = ChunkArrived{id, {envelope.begin(), envelope.end()}, {data, bytes}, token_of(chunk_buffer)};
      return true;
    }
    case kRelease: {
      const ChunkBufferRef chunk_buffer{in.u32(), in.u32()};
      in.end();
      if (peer.published.erase(token_of(chunk_buffer)) == 0) return false;  // a second release changes nothing
      incoming = ChunkBufferReturned{id, chunk_buffer};
      return true;
    }
    case kForget: {
      const uint32_t arena = in.u32();
      in.end();
      peer.arenas.erase(arena);
      return false;
    }
    default:
      throw Error(ErrorKind::peer_lost, "rank " + std::to_string(id) + " sent a packet of an unknown kind",
                  "all ranks must run the same version of penstock");
  }
}

void ShmEndpoint::abandon(PeerId id) {
  if (Peer* peer = find(id)) peer->arenas.clear();
  silent_.insert(id);  // flush() would wait for one that died before it had connected
}

bool ShmEndpoint::poll(Incoming& incoming) {
  accept_waiting();
  if (!ready_.empty()) {
    incoming = std::move(ready_.front());
    ready_.erase(ready_.begin());
    return true;
  }
  // Each peer in its turn, beginning after the one served last: one that always has something to say keeps nobody
  // waiting.
  auto next = peers_.upper_bound(served_);
  for (size_t tried = 0; tried < peers_.size(); ++tried, ++next) {
    if (next == peers_.end()) next = peers_.begin();
    const PeerId id = next->first;
    const auto& peer = next->second;
    if (peer->reported) continue;
    served_ = id;
    peer->socket.write_pending();
    Packet packet;
    while (peer->socket.receive(packet)) {
      silent_.erase(id);
      try {
        if (handle(id, std::move(packet), incoming)) return true;
      } catch (const Error& error) {
        incoming = PeerDamaged{id, error.message()};
        return true;
      }
      packet = {};
    }
    if (peer->socket.closed()) {
      peer->reported = true;
      for (const uint64_t token : peer->published) ready_.push_back(ChunkBufferReturned{id, chunk_buffer_of(token)});
      peer->published.clear();
      incoming = PeerLost{id, "its socket closed: the process ended", true};
      return true;
    }
  }
  return false;
}

void ShmEndpoint::collect_callers(std::vector<pollfd>& fds) const {
  fds.push_back({listening_.get(), POLLIN, 0});
  for (const PacketSocket& socket : strangers_) fds.push_back({socket.fd(), POLLIN, 0});
}

void ShmEndpoint::collect_fds(std::vector<pollfd>& fds) const {
  collect_callers(fds);
  for (const auto& [id, peer] : peers_) {
    if (!peer->reported && !peer->socket.closed()) fds.push_back({peer->socket.fd(), peer->socket.poll_events(), 0});
  }
}

bool ShmEndpoint::flush(Nanoseconds timeout_ns) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + timeout_ns;
  const auto somebody_may_come = [this] {
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [this](const auto& to) { return silent_.count(to.first) == 0; });
  };
  accept_waiting();
  // What is said to a peer that has not connected yet (a slow start, a job that ends at once) is still its to hear.
  while (somebody_may_come()) {
    const Nanoseconds left = deadline - clock.now();
    if (left <= 0) break;
    wait_for_a_call(static_cast<int>(left / kMillisecond + 1));
    accept_waiting();
  }
  bool all = !somebody_may_come();
  for (auto& [id, peer] : peers_) {
    if (peer->socket.closed()) continue;
    if (silent_.count(id) != 0) {  // a stopped process reads nothing, and its socket may be full
      peer->socket.write_pending();
      continue;
    }
    const Nanoseconds left = std::max<Nanoseconds>(deadline - clock.now(), 0);
    all = peer->socket.flush(left) && all;
  }
  return all;
}

}  // namespace penstock
