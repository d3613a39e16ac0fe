#include "runtime/receiver/port_end.h"

namespace penstock {

PortEnd::PortEnd(const PortOptions& options, PortMessenger& messenger, std::function<std::string()> report)
    : options_(options), messenger_(messenger), report_(std::move(report)) {
  if (coordinates() && options_.whole_job) {
    job_end_ = std::make_unique<JobEnd>(options_.coordination.ports, options_.coordination.loaders, options_.self,
                                        [this](PeerId peer, const ControlMessage& m) { messenger_.to_rank(peer, m); });
  }
}

void PortEnd::finish(bool good, const std::string& problem, int exit_code) {
  if (finished_) return;
  finished_ = true;
  messenger_.to_coordinator(PortDone{good, problem, exit_code, report_()});
}

void PortEnd::fail(const std::string& problem, int exit_code) {
  if (job_end_) {
    job_end_->fail(problem, exit_code);
    look();
  } else {
    messenger_.to_coordinator(PortDone{false, problem, exit_code, report_()});
  }
}

void PortEnd::program_done(PeerId peer, const PortDone& message, const std::vector<PeerId>& living_loaders,
                           Nanoseconds now) {
  if (!job_end_) return;
  job_end_->program_done(peer, message, living_loaders, now);
  look();
}

void PortEnd::loader_report(PeerId peer, const LoaderReport& message) {
  if (!job_end_) return;
  job_end_->loader_report(peer, message);
  look();
}

void PortEnd::peer_lost(PeerId peer) {
  if (!job_end_) return;
  job_end_->peer_lost(peer);
  look();
}

void PortEnd::tick(Nanoseconds now) {
  if (!job_end_) return;
  job_end_->tick(now);
  look();
}

void PortEnd::said_goodbye(const Goodbye& goodbye) {
  goodbye_ = goodbye;
  ended_ = true;
  if (on_goodbye_) on_goodbye_(goodbye);
}

// Has trainer 0's JobEnd decided?
void PortEnd::look() {
  if (!ended_ && job_end_->goodbye()) said_goodbye(*job_end_->goodbye());
}

void PortEnd::serving_ends(const EndServing& message) {
  if (serving_ending_) return;
  serving_ending_ = true;
  if (!coordinates()) return;
  for (const PeerId port : options_.coordination.ports) {
    if (port != options_.self) messenger_.to_rank(port, message);
  }
  messenger_.notice("serving ends: " + message.reason);
}

std::vector<std::string> PortEnd::reports() const {
  return job_end_ ? job_end_->reports() : std::vector<std::string>{};
}

}  // namespace penstock
