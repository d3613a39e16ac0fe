// Transport between threads of one process: mailboxes, cells read in place.
//
//   InprocWorld world(3);
//   auto loader = world.endpoint(2);      // in the loader's thread
//   auto port = world.endpoint(0);        // in the port's thread
//
// Ownership: endpoints share the mailboxes, so they may outlive the InprocWorld object. An endpoint that is destroyed
// is reported to the others as PeerLost, and what was published to it comes back as CellReturned.
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
