// How a port leaves its job: what it says of its own trainer's end, and what it hears of everybody's.
//
//   PortEnd end(options, messenger, [] { return report; });   // this port's report, as it stands
//   end.finish(true, "", 0);                    // the program ended: trainer 0's port is told, with this port's report
//   end.fail(problem, exit_code);               // this port, or a trainer's rank, cannot go on
//   end.program_done(…); end.loader_report(…); end.said_goodbye(…); end.serving_ends(…);      // messages
//   if (end.ended()) ...                        // leave the loop; end.goodbye() says how it went
//
//   working --finish(), once--------------------------> finished --Goodbye--> ended
//      |  '--serving_ends(): its programs are sent away--^                      ^
//      '--fail()--> failed: the others hear why, this port waits for -----------'
//
// Trainer 0's port of a whole job decides for all when it is over: it keeps the JobEnd (job_end.h), and its own Goodbye
//   comes from there at once; the others' comes as a message. Under the program's own threads (not whole_job) nothing of
//   this happens: the owner stops the port.
// Invariant: after ended() the goodbye does not change, and `on_goodbye` was called once for it.
// Thread-safety: the port's event loop alone. Ownership: what the constructor takes must outlive it. Failure: none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/protocol/messages.h"
#include "runtime/receiver/job_end.h"
#include "runtime/receiver/port_messenger.h"
#include "runtime/receiver/port_options.h"

namespace penstock {

class PortEnd {
 public:
  PortEnd(const PortOptions& options, PortMessenger& messenger, std::function<std::string()> report);

  void on_goodbye(std::function<void(const Goodbye&)> call) { on_goodbye_ = std::move(call); }

  void finish(bool good, const std::string& problem, int exit_code);
  bool finished() const noexcept { return finished_; }
  // The job ends by this. Where another port decides, its Goodbye is to be waited for.
  void fail(const std::string& problem, int exit_code);

  void program_done(PeerId peer, const PortDone& message, const std::vector<PeerId>& living_loaders, Nanoseconds now);
  void loader_report(PeerId peer, const LoaderReport& message);
  void peer_lost(PeerId peer);
  void said_goodbye(const Goodbye& goodbye);
  // Trainer 0's port passes it on. What is left to do with clients and passes before finish() is the port's.
  void serving_ends(const EndServing& message);
  bool serving_ending() const noexcept { return serving_ending_; }
  void tick(Nanoseconds now);

  bool decides() const noexcept { return job_end_ != nullptr; }
  bool leaving() const noexcept { return job_end_ && job_end_->leaving(); }
  bool ended() const noexcept { return ended_; }
  const Goodbye& goodbye() const noexcept { return goodbye_; }
  // Where this port decides: of all ranks, ports first.
  std::vector<std::string> reports() const;

 private:
  bool coordinates() const noexcept { return options_.self == options_.coordinator; }
  void look();

  const PortOptions& options_;
  PortMessenger& messenger_;
  std::function<std::string()> report_;
  std::function<void(const Goodbye&)> on_goodbye_;
  std::unique_ptr<JobEnd> job_end_;
  bool finished_ = false;
  bool serving_ending_ = false;
  bool ended_ = false;
  Goodbye goodbye_;
};

}  // namespace penstock
