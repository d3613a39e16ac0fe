// Transport between threads of one process: mailboxes, chunk buffers read in place.
//
//   InprocWorld world(3);
//   auto loader = world.endpoint(2);      // in the loader's thread
//   auto receiver = world.endpoint(0);    // in the receiver's thread
//
// Ownership: endpoints share the mailboxes, so they may outlive the InprocWorld object. An endpoint that is destroyed
// is reported to the others as PeerLost, and what was published to it comes back as ChunkBufferReturned.
// Thread-safety: endpoint() from any thread, once per peer; each Endpoint then belongs to its thread.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace penstock {

class InprocWorld {
 public:
  explicit InprocWorld(int peers);
  ~InprocWorld();
  std::unique_ptr<Endpoint> endpoint(PeerId self);

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace penstock
