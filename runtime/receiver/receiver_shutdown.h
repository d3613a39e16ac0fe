// How a receiver leaves its job: what it says of its own trainer's end, and what it hears of everybody's.
//
//   ReceiverShutdown end(options, messenger, [] { return report; });  // this receiver's report, as it stands
//   // the program ended: trainer 0's receiver is told, with this receiver's report
//   end.finish(true, "", 0);
//   end.fail(problem, exit_code);               // this receiver, or a trainer's rank, cannot go on
//   end.program_done(…); end.loader_report(…); end.received_goodbye(…); end.serving_ends(…);  // messages
//   if (end.ended()) ...                        // leave the loop; end.goodbye() says how it went
//
//   working --finish(), once--------------------------> finished --Goodbye--> ended
//      |  '--serving_ends(): its programs are sent away--^                      ^
//      '--fail()--> failed: the others are sent why, this receiver waits for ---'
//
// Trainer 0's receiver of a whole job decides for all when it is over: it keeps the JobShutdown (job_shutdown.h), and
//   its own Goodbye comes from there at once; the others' comes as a message. Under the program's own threads (not
//   whole_job) nothing of this happens: the owner stops the receiver.
// Invariant: after ended() the goodbye does not change, and `on_goodbye` was called once for it.
// Thread-safety: the receiver's event loop alone. Ownership: what the constructor takes must outlive it. Failure: none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/protocol/messages.h"
#include "runtime/receiver/job_shutdown.h"
#include "runtime/receiver/receiver_messenger.h"
#include "runtime/receiver/receiver_options.h"

namespace penstock {

class ReceiverShutdown {
 public:
  ReceiverShutdown(const ReceiverOptions& options, ReceiverMessenger& messenger, std::function<std::string()> report);

  void on_goodbye(std::function<void(const Goodbye&)> call) { on_goodbye_ = std::move(call); }

  void finish(bool good, const std::string& problem, int exit_code);
  bool finished() const noexcept { return finished_; }
  // The job ends by this. Where another receiver decides, its Goodbye is to be waited for.
  void fail(const std::string& problem, int exit_code);

  void program_done(PeerId peer, const ReceiverDone& message, const std::vector<PeerId>& living_loaders,
                    Nanoseconds now);
  // A rank is gone, or does not reach another one, so that MPI_Finalize would wait.
  void mpi_cannot_end();
  void loader_report(PeerId peer, const LoaderReport& message);
  void peer_lost(PeerId peer);
  void received_goodbye(const Goodbye& goodbye);
  // Trainer 0's receiver passes it on. What is left to do with clients and iterations before finish() is the
  // receiver's.
  void serving_ends(const EndServing& message);
  bool serving_ending() const noexcept { return serving_ending_; }
  void tick(Nanoseconds now);

  bool decides() const noexcept { return job_shutdown_ != nullptr; }
  bool leaving() const noexcept { return job_shutdown_ && job_shutdown_->leaving(); }
  bool ended() const noexcept { return ended_; }
  const Goodbye& goodbye() const noexcept { return goodbye_; }
  // Where this receiver decides: of all ranks, receivers first.
  std::vector<std::string> reports() const;

 private:
  bool coordinates() const noexcept { return options_.self == options_.coordinator; }
  void look();

  const ReceiverOptions& options_;
  ReceiverMessenger& messenger_;
  std::function<std::string()> report_;
  std::function<void(const Goodbye&)> on_goodbye_;
  std::unique_ptr<JobShutdown> job_shutdown_;
  bool finished_ = false;
  bool serving_ending_ = false;
  bool ended_ = false;
  Goodbye goodbye_;
};

}  // namespace penstock
