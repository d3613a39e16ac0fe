// The sockets of a port's clients: meets programs at the door, and carries what they and the port say to each other.
//
//   ClientConnections clients;
//   clients.listen("penstock/1000/ab12/p0", token);       // or adopt(socket), for a program in the same process
//   clients.poll({.message = [](int id, const ClientMessage& m) { … }, .dropped = [](int id) { … }});
//   clients.tell(id, ClientEnd{});
//   clients.collect_fds(fds);                             // for the loop's poll()
//
// A client that comes by the listening socket is of the same user (or root), and says hello with the job's token before
//   anything else; others are told why not, and hung up on. A connection is known by a number, never used twice.
// Thread-safety: adopt() from any thread; the rest from the port's loop, or after it.
// Ownership: the sockets. Failure: a message that cannot be understood, or an Error from `message`, is answered to its
//   client as ClientFailed; nobody else's connection is touched.
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/trainer/client_protocol.h"
#include "transport/unix_socket.h"

namespace penstock {

class ClientConnections {
 public:
  struct Handlers {
    std::function<void(int connection, const ClientMessage& message)> message;
    std::function<void(int connection)> dropped;  // after the hang-up; the number is no longer known
  };

  void listen(const std::string& name, const std::string& token);
  void adopt(UniqueFd client_socket);

  bool poll(const Handlers& handlers);  // takes all there is now; true where anything came
  void tell(int connection, const ClientMessage& message, int fd = -1);
  void collect_fds(std::vector<pollfd>& fds) const;

  // Clients see a hang-up at once instead of waiting for nobody; later ones that the door is shut.
  void hang_up() noexcept;
  // hang_up() for good: sockets that are adopted later are closed too.
  void disconnect();

 private:
  struct Connection {
    PacketSocket socket;
    bool greeted = false;
  };
  bool let_in();
  bool greet(Connection& connection, const ClientMessage& message);

  UniqueFd listening_;
  std::string token_;
  std::map<int, Connection> connections_;
  int next_ = 1;

  Mutex mutex_;
  std::vector<UniqueFd> adopted_ PENSTOCK_GUARDED_BY(mutex_);
  bool disconnected_ PENSTOCK_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
