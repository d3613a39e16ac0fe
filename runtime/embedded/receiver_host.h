// A receiver in this process, as the program's clients know it.
//
//   PacketSocket socket(host->connect());              // a client's end, speaking client_protocol.h
//   if (hung_up) why = host->problem();
//
// Thread-safety: any thread. Ownership: shared by the clients; the last one that lets go ends it, which may wait for
//   threads (let_go_elsewhere()).
#pragma once

#include <memory>
#include <string>

#include "runtime/base/memory.h"

namespace penstock {

class ReceiverHost {
 public:
  virtual ~ReceiverHost() = default;
  virtual UniqueFd connect() = 0;
  virtual std::string problem() const = 0;                  // what ended it, if that was bad; else empty
  virtual std::string loader_report() const { return {}; }  // of a loader that is here, too

  // Lets go of it in a thread of its own, where nobody can wait until a large folder has been listed.
  static void let_go_elsewhere(std::shared_ptr<ReceiverHost> host);
};

}  // namespace penstock
