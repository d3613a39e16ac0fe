// Which rank of this node has died: a socket from each to the next one, in a ring.
//
//   NodeRing ring(job_id, token, self, {4, 5, 6, 7});   // listens; every rank of the node makes one
//   ring.connect();                                     // once all of them listen
//   while (const auto dead = ring.next_dead()) ...      // never waits; poll what collect_fds() gives
//
//     4 ──▶ 5 ──▶ 6 ──▶ 7 ──▶ 4        5 dies:  4 sees it on the socket that it opened, 6 on the one that it accepted;
//                                              4 then connects to 6
//
// Purpose: where ranks of a node are joined by MPI alone, nobody is told of a death, and silence takes seconds to mean
//   something. The kernel closes a dead process's sockets at once, whatever killed it. (A pid would mean nothing in
//   another container of the node.) Two sockets a rank, however many there are; who sees a death tells the coordinator.
// Who says to be a rank is believed where nobody stands between that rank and this one: while the rank before this one
//   lives, another that says to be it, or one before it, and hangs up or takes its leave, is no news.
// A rank that leaves in good order says so, by leave() or the destructor: that is not reported as a death, and the ring
//   closes behind it. Where one has left, the next one may have left, too, if it does not listen or hangs up before it
//   has accepted; that is not reported either.
// One that ends by an error of its own, while the job goes on, hangs up without that word: to the others it is dead.
// Trust: as for shm/: the same user, who knows the job's token. Thread-safety: one thread. Ownership: its sockets.
// Failure: Error(runtime) from the constructor where the socket's name is taken, Error(peer_lost) from connect() where the
//   next rank does not listen.
#pragma once

#include <poll.h>

#include <deque>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"
#include "transport/unix_socket.h"

namespace penstock {

class NodeRing {
 public:
  NodeRing(std::string job, std::string token, PeerId self, std::vector<PeerId> node_peers);
  ~NodeRing();
  NodeRing(const NodeRing&) = delete;
  NodeRing& operator=(const NodeRing&) = delete;

  void connect(const AskedToEnd& asked_to_end = {});
  void leave();                       // in good order; nothing is told to this rank any more
  void hang_up();                     // without a word, as a process that dies; nor is this rank told anything
  std::optional<PeerId> next_dead();  // each once
  void collect_fds(std::vector<pollfd>& fds) const;

 private:
  struct Neighbour {
    PeerId rank = -1;  // of an accepted one: -1 until it has said who it is
    PacketSocket socket;
    bool welcomed = false;  // by the one that was called: it has accepted
  };
  std::string name_of(PeerId rank) const;
  PeerId after(PeerId rank) const;  // the next one that is not known to be dead
  void send_hello();
  void close_gap();
  void left(PeerId rank);
  void accept_waiting();
  bool receive_all(Neighbour& neighbour);
  bool believed(const Neighbour& neighbour) const;
  size_t steps_from(PeerId rank) const;
  void died(PeerId rank);
  PeerId read_hello(const Packet& packet) const;

  const std::string job_;
  const std::string token_;
  const PeerId self_;
  std::vector<PeerId> ranks_;  // sorted
  UniqueFd listening_;
  Neighbour next_;
  std::list<Neighbour> before_;  // as they came: one, more while a gap is being closed; and strangers
  std::set<PeerId> dead_;
  bool somebody_left_ = false;  // in good order
  bool over_ = false;           // this rank has
  std::deque<PeerId> news_;
};

}  // namespace penstock
