#include "runtime/receiver/receiver_shutdown.h"

namespace penstock {

ReceiverShutdown::ReceiverShutdown(const ReceiverOptions& options, ReceiverMessenger& messenger,
                                   std::function<std::string()> report)
    : options_(options), messenger_(messenger), report_(std::move(report)) {
  if (coordinates() && options_.whole_job) {
    job_shutdown_ =
        std::make_unique<JobShutdown>(options_.coordination.receivers, options_.coordination.loaders, options_.self,
                                      [this](PeerId peer, const ControlMessage& m) { messenger_.to_rank(peer, m); });
  }
}

void ReceiverShutdown::finish(bool good, const std::string& problem, int exit_code) {
  if (finished_) return;
  finished_ = true;
  messenger_.to_coordinator(ReceiverDone{good, problem, exit_code, report_()});
}

void ReceiverShutdown::fail(const std::string& problem, int exit_code) {
  if (job_shutdown_) {
    job_shutdown_->fail(problem, exit_code);
    look();
  } else {
    messenger_.to_coordinator(ReceiverDone{false, problem, exit_code, report_()});
  }
}

void ReceiverShutdown::program_done(PeerId peer, const ReceiverDone& message, const std::vector<PeerId>& living_loaders,
                                    Nanoseconds now) {
  if (!job_shutdown_) return;
  job_shutdown_->program_done(peer, message, living_loaders, now);
  look();
}

void ReceiverShutdown::mpi_cannot_end() {
  if (job_shutdown_) job_shutdown_->mpi_cannot_end();
}

void ReceiverShutdown::loader_report(PeerId peer, const LoaderReport& message) {
  if (!job_shutdown_) return;
  job_shutdown_->loader_report(peer, message);
  look();
}

void ReceiverShutdown::peer_lost(PeerId peer) {
  if (!job_shutdown_) return;
  job_shutdown_->peer_lost(peer);
  look();
}

void ReceiverShutdown::tick(Nanoseconds now) {
  if (!job_shutdown_) return;
  job_shutdown_->tick(now);
  look();
}

void ReceiverShutdown::received_goodbye(const Goodbye& goodbye) {
  goodbye_ = goodbye;
  ended_ = true;
  if (on_goodbye_) on_goodbye_(goodbye);
}

// Has trainer 0's JobShutdown decided?
void ReceiverShutdown::look() {
  if (!ended_ && job_shutdown_->goodbye()) received_goodbye(*job_shutdown_->goodbye());
}

void ReceiverShutdown::serving_ends(const EndServing& message) {
  if (serving_ending_) return;
  serving_ending_ = true;
  if (!coordinates()) return;
  for (const PeerId receiver : options_.coordination.receivers) {
    if (receiver != options_.self) messenger_.to_rank(receiver, message);
  }
  messenger_.notice("serving ends: " + message.reason);
}

std::vector<std::string> ReceiverShutdown::reports() const {
  return job_shutdown_ ? job_shutdown_->reports() : std::vector<std::string>{};
}

}  // namespace penstock
