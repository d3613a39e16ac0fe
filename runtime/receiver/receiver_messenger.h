// What the parts of a receiver send, and to whom. The receiver implements it once; tests have one that keeps what was
// sent (tests/support/fake_receiver_messenger.h).
//
//   messenger.to_coordinator(BatchBufferFree{stream, step});
//   messenger.to_rank(loader, BufferRangeReturned{gpu, buffer_range});
//   messenger.to_client(connection, ClientExport{…}, descriptor);
//   messenger.notice("process 4711 attached");
//
// A message to this rank itself, as all of trainer 0's to the coordinator are, waits in a queue until the part that
//   sends it has returned: no part is entered while another one is at work.
// Thread-safety: the receiver's event loop alone. Ownership: messages and descriptors stay the caller's.
// Failure: to_client() throws Error where a descriptor cannot be passed on; to a client that has gone nothing is sent.
//   What ends the job is thrown by the part that meets it, not sent.
#pragma once

#include <string>

#include "runtime/protocol/client_protocol.h"
#include "runtime/protocol/messages.h"

namespace penstock {

class ReceiverMessenger {
 public:
  virtual void to_coordinator(const ControlMessage& message) = 0;
  virtual void to_rank(PeerId peer, const ControlMessage& message) = 0;  // a loader, or another receiver
  virtual void to_client(int connection, const ClientMessage& message, int fd = -1) = 0;
  virtual void notice(const std::string& text) = 0;  // for people, at this rank
  // From within work of seconds, now and then: other ranks hear that this one lives.
  virtual void still_alive() = 0;

 protected:
  ~ReceiverMessenger() = default;
};

}  // namespace penstock
