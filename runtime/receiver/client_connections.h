// The sockets of a receiver's clients: meets programs when they connect, and carries what they and the receiver send
// each other.
//
//   ClientConnections clients;
//   clients.listen("penstock/1000/ab12/p0", token, welcome);   // or adopt(socket), for a program in the same process
//   clients.poll({.message = [](int id, const ClientMessage& m) { … }, .dropped = [](int id) { … }, …});
//   clients.send(id, ClientEnd{});
//   clients.collect_fds(fds);                             // for the loop's poll()
//
// A client that comes by the listening socket is of the same user (or root), and says hello with the job's token (where
//   the job has one) before anything else; others are told why not, and hung up on. A connection is known by a number,
//   never used twice.
// A client that does not read its answers is not read from, either: they wait in the kernel's buffer, and hardly any here.
// Programs: the process at the other end is known by the kernel's word (SO_PEERCRED) and watched by a pidfd. When it
//   ends, so do its connections, even where a child that it forked still has them open; a program that has closed its
//   connections is there until it ends. Where a process cannot be seen (another pid namespace), its connections stand
//   for it. A socket that was adopted belongs to program 0, which is this process and never ends.
// Thread-safety: adopt() from any thread; the rest from the receiver's loop, or after it.
// Ownership: the sockets. Failure: a message that cannot be understood, or an Error from `message`, is answered to its
//   client as ClientFailed; nobody else's connection is touched.
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/protocol/client_protocol.h"
#include "transport/unix_socket.h"

namespace penstock {

class ClientConnections {
 public:
  struct Handlers {
    std::function<void(int connection, const ClientMessage& message)> message;
    std::function<void(int connection)> dropped;  // after the hang-up; the number is no longer known
    // One came, or ended; its number and process, and how many live now.
    std::function<void(int64_t number, int pid, bool came, int32_t living)> program;
  };

  void listen(const std::string& name, const std::string& token, const ClientWelcome& welcome);
  void adopt(UniqueFd client_socket);

  bool poll(const Handlers& handlers);  // a bounded number from each; true where anything came
  void send(int connection, const ClientMessage& message, int fd = -1);
  // The latest that any client was told of what went wrong, without the remedy; empty: nothing.
  const std::string& reported_problem() const noexcept { return reported_problem_; }
  void note_problem(std::string problem) {  // that a client found itself: it says less than what one was told
    if (reported_problem_.empty()) reported_problem_ = std::move(problem);
  }
  void collect_fds(std::vector<pollfd>& fds) const;

  int64_t program(int connection) const;  // counts from 1 in the order they came; 0: in this process
  int pid(int connection) const;          // 0: cannot be seen from here
  bool living(int connection) const;      // neither hung up nor ended, asked of the kernel

  // Clients see a hang-up at once instead of waiting for nobody; later ones are refused.
  void hang_up() noexcept;
  // The same for all but the given ones; their splits and streams end as if they had hung up themselves.
  void dismiss(const std::set<int>& except);
  // hang_up() for good: sockets that are adopted later are closed too.
  void disconnect();

 private:
  struct Connection {
    PacketSocket socket;
    bool handshake_done = false;
    int64_t program = 0;
  };
  struct Program {
    int pid = 0;
    UniqueFd process;  // pidfd; empty where there is none
    bool ended() const;
  };
  bool let_in();
  void handshake(int id, Connection& connection, const ClientMessage& message, const Handlers& handlers);
  void refuse(int id, Connection& connection);
  void hang_up_on_strangers();
  void end_programs(const Handlers& handlers);

  UniqueFd listening_;
  std::string token_;
  ClientWelcome welcome_;
  std::map<int, Connection> connections_;
  std::map<int64_t, Program> programs_;
  std::string reported_problem_;
  int next_ = 1;
  int64_t next_program_ = 1;

  Mutex mutex_;
  std::vector<UniqueFd> adopted_ PENSTOCK_GUARDED_BY(mutex_);
  bool disconnected_ PENSTOCK_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
