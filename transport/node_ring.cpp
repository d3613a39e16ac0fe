#include "transport/node_ring.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {

constexpr Nanoseconds kConnectTimeout = 30 * kSecond;

// What neighbours say to each other after the hello.
constexpr std::byte kLeaving{0};
constexpr std::byte kWelcome{1};

void send_word(PacketSocket& socket, std::byte word) {
  if (!socket.closed()) socket.send({&word, 1});
}

}  // namespace

NodeRing::NodeRing(std::string job, std::string token, PeerId self, std::vector<PeerId> node_peers)
    : job_(std::move(job)), token_(std::move(token)), self_(self), ranks_(std::move(node_peers)) {
  std::sort(ranks_.begin(), ranks_.end());
  listening_ = listen_abstract(name_of(self));
}

NodeRing::~NodeRing() {
  leave();
}

void NodeRing::leave() {
  if (std::exchange(over_, true)) return;
  listening_.reset();  // who looks for a neighbour is not to find this rank
  next_.socket.write_pending();
  send_word(next_.socket, kLeaving);
  for (Neighbour& neighbour : before_) send_word(neighbour.socket, kLeaving);
}

void NodeRing::hang_up() {
  over_ = true;
  listening_.reset();
  next_.socket.close();
  before_.clear();
}

std::string NodeRing::name_of(PeerId rank) const {
  return "penstock/" + std::to_string(::geteuid()) + "/" + job_ + "/n" + std::to_string(rank);
}

PeerId NodeRing::after(PeerId rank) const {
  auto at = std::upper_bound(ranks_.begin(), ranks_.end(), rank);
  for (size_t tried = 0; tried < ranks_.size(); ++tried, ++at) {
    if (at == ranks_.end()) at = ranks_.begin();
    if (dead_.count(*at) == 0) return *at;
  }
  return self_;
}

void NodeRing::connect(const AskedToEnd& asked_to_end) {
  next_.rank = after(self_);
  if (next_.rank == self_) return;
  next_.socket = PacketSocket(connect_abstract(name_of(next_.rank), kConnectTimeout, asked_to_end));
  send_hello();
}

void NodeRing::send_hello() {
  next_.socket.limit_refusals(PacketSocket::kNoLimit);  // a hang-up would say that this rank has died
  WireWriter hello;
  hello.i32(self_);
  hello.text(token_);
  next_.socket.send(hello.bytes());
}

// The rank that says hello; -1 for a process that does not belong to this job.
PeerId NodeRing::read_hello(const Packet& packet) const {
  try {
    WireReader in(packet.bytes, "hello");
    const PeerId rank = in.i32();
    const std::string token = in.text();
    in.end();
    const bool ours = token == token_ && std::binary_search(ranks_.begin(), ranks_.end(), rank);
    return ours && rank != self_ ? rank : -1;
  } catch (const Error&) {
    return -1;
  }
}

void NodeRing::died(PeerId rank) {
  if (dead_.insert(rank).second) news_.push_back(rank);
}

void NodeRing::left(PeerId rank) {
  somebody_left_ = true;
  dead_.insert(rank);
}

// The next one is gone: its successor takes its place. One that does not listen is gone as well; where the kernel refuses
// for another reason (a full backlog, no descriptor) the next call tries again.
void NodeRing::close_gap() {
  while (next_.socket.closed()) {
    next_ = {after(self_), {}};
    if (next_.rank == self_) return;
    try {
      if (UniqueFd fd = try_connect_abstract(name_of(next_.rank))) {
        next_.socket = PacketSocket(std::move(fd));
        send_hello();
        return;
      }
    } catch (const Error&) {
      return;  // no descriptor is left
    }
    if (errno != ECONNREFUSED) return;
    somebody_left_ ? left(next_.rank) : died(next_.rank);
  }
}

void NodeRing::accept_waiting() {
  for (PacketSocket& socket : accept_strangers(listening_.get())) before_.push_back({-1, std::move(socket)});
  for (auto it = before_.begin(); it != before_.end();) it = receive_all(*it) ? std::next(it) : before_.erase(it);
  auto strangers = static_cast<size_t>(
      std::count_if(before_.begin(), before_.end(), [this](const Neighbour& one) { return !believed(one); }));
  for (auto it = before_.begin(); strangers > kMostStrangers && it != before_.end();) {
    if (believed(*it)) {
      ++it;
    } else {
      it = before_.erase(it);
      --strangers;
    }
  }
}

// False: nothing more will come.
bool NodeRing::receive_all(Neighbour& neighbour) {
  Packet packet;
  while (neighbour.socket.receive(packet)) {
    if (neighbour.rank >= 0) {
      if (believed(neighbour)) left(neighbour.rank);
      return false;
    }
    neighbour.rank = read_hello(packet);
    if (neighbour.rank < 0) return false;
    send_word(neighbour.socket, kWelcome);
  }
  if (!neighbour.socket.closed()) return true;
  if (believed(neighbour)) died(neighbour.rank);
  return false;
}

// How far that rank stands before this one.
size_t NodeRing::steps_from(PeerId rank) const {
  const auto place = [this](PeerId one) {
    return static_cast<size_t>(std::lower_bound(ranks_.begin(), ranks_.end(), one) - ranks_.begin());
  };
  return (place(self_) + ranks_.size() - place(rank)) % ranks_.size();
}

// A rank connects to this one when all between them are dead. It may be a moment before the last of these is seen to be,
// so the others are kept, and only what they say waits to be believed.
bool NodeRing::believed(const Neighbour& neighbour) const {
  if (neighbour.rank < 0) return false;
  bool earlier = true;
  for (const Neighbour& other : before_) {
    if (&other == &neighbour) {
      earlier = false;
    } else if (other.rank >= 0 && !other.socket.closed()) {
      const size_t steps = steps_from(other.rank);
      const size_t own = steps_from(neighbour.rank);
      if (steps < own || (steps == own && earlier)) return false;
    }
  }
  return true;
}

std::optional<PeerId> NodeRing::next_dead() {
  if (over_) return std::nullopt;
  accept_waiting();
  if (next_.rank >= 0 && next_.rank != self_ && !next_.socket.closed()) {
    next_.socket.write_pending();
    Packet word;
    while (next_.socket.receive(word)) {
      if (word.bytes.size() == 1 && word.bytes[0] == kWelcome) {
        next_.welcomed = true;
        continue;
      }
      left(next_.rank);
      next_.socket.close();
    }
    if (next_.socket.closed()) next_.welcomed || !somebody_left_ ? died(next_.rank) : left(next_.rank);
  }
  if (next_.rank >= 0 && next_.rank != self_ && next_.socket.closed()) close_gap();
  if (news_.empty()) return std::nullopt;
  const PeerId dead = news_.front();
  news_.pop_front();
  return dead;
}

void NodeRing::collect_fds(std::vector<pollfd>& fds) const {
  if (over_) return;
  fds.push_back({listening_.get(), POLLIN, 0});
  for (const Neighbour& neighbour : before_) fds.push_back({neighbour.socket.fd(), POLLIN, 0});
  if (next_.rank != self_ && !next_.socket.closed()) {
    fds.push_back({next_.socket.fd(), next_.socket.poll_events(), 0});
  }
}

}  // namespace penstock
