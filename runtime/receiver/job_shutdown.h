// How a job under `penstock run` ends for everybody: kept by trainer 0's receiver, a state machine without sockets.
//
//   JobShutdown end(receivers, loaders, send);
//   end.program_done(peer, message, living_loaders, now);  end.loader_report(peer, message);  end.peer_lost(peer);
//   end.mpi_cannot_end();                                  // a rank is not there that MPI_Finalize would wait for
//   end.tick(now);                                         // a loader that does not report in time is not waited for
//   if (end.goodbye()) ...                                 // it was sent to all others; this rank's turn to leave
//
//   running --every program ended well--> leaving (loaders report) --all reported, or late--> ended
//      `------a program failed, or a rank that matters was lost--------------------------------^
//
// The first failure is the job's; later ones are its echoes. Thread-safety: the receiver's event loop alone.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/protocol/messages.h"

namespace penstock {

class JobShutdown {
 public:
  using Send = std::function<void(PeerId, const ControlMessage&)>;

  JobShutdown(std::vector<PeerId> receivers, std::vector<PeerId> loaders, PeerId self, Send send);

  void program_done(PeerId peer, const ReceiverDone& message, const std::vector<PeerId>& living_loaders,
                    Nanoseconds now);
  void mpi_cannot_end() { mpi_can_end_ = false; }
  void loader_report(PeerId peer, const LoaderReport& message);
  void fail(const std::string& problem, int exit_code);
  void peer_lost(PeerId peer);
  void tick(Nanoseconds now);

  bool leaving() const noexcept { return leaving_began_; }
  const std::optional<Goodbye>& goodbye() const noexcept { return goodbye_; }
  std::vector<std::string> reports() const;  // of all ranks, receivers first; complete once goodbye() is there

 private:
  void announce();

  std::vector<PeerId> receivers_;
  std::vector<PeerId> loaders_;
  PeerId self_;
  Send send_;
  std::set<PeerId> done_receivers_;
  std::set<PeerId> awaited_;  // loaders that were asked to leave and have not reported
  std::map<PeerId, std::string> receiver_reports_;
  std::map<PeerId, std::string> loader_reports_;
  std::string failure_;
  int failure_code_ = 0;
  bool mpi_can_end_ = true;  // in good order: every rank comes to MPI_Finalize
  bool leaving_began_ = false;
  Nanoseconds deadline_ = 0;
  std::optional<Goodbye> goodbye_;
};

}  // namespace penstock
