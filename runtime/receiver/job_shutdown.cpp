#include "runtime/receiver/job_shutdown.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"

namespace penstock {
namespace {
// A loader answers within milliseconds, unless it is stopped; its report is all that is lost without it.
constexpr Nanoseconds kReportTimeout = 5 * kSecond;
}  // namespace

JobShutdown::JobShutdown(std::vector<PeerId> receivers, std::vector<PeerId> loaders, PeerId self, Send send)
    : receivers_(std::move(receivers)), loaders_(std::move(loaders)), self_(self), send_(std::move(send)) {}

void JobShutdown::program_done(PeerId peer, const ReceiverDone& message, const std::vector<PeerId>& living_loaders,
                               Nanoseconds now) {
  if (!done_receivers_.insert(peer).second && message.good) return;
  if (!message.report_json.empty()) receiver_reports_[peer] = message.report_json;
  if (!message.good) {
    fail(message.problem, message.exit_code);
    return;
  }
  if (done_receivers_.size() < receivers_.size() || leaving_began_) return;
  leaving_began_ = true;
  deadline_ = now + kReportTimeout;
  awaited_.insert(living_loaders.begin(), living_loaders.end());
  // A loader that was given up earlier may be stopped: it would not come to MPI_Finalize.
  if (awaited_.size() < loaders_.size()) mpi_can_end_ = false;
  for (const PeerId loader : living_loaders) send_(loader, Leave{"all programs ended"});
  if (awaited_.empty()) announce();
}

void JobShutdown::loader_report(PeerId peer, const LoaderReport& message) {
  loader_reports_[peer] = message.json;
  awaited_.erase(peer);
  if (leaving_began_ && awaited_.empty()) announce();
}

void JobShutdown::fail(const std::string& problem, int exit_code) {
  if (failure_.empty()) {
    failure_ = problem;
    failure_code_ = exit_code;
  }
  // A rank that is lost does not come to MPI_Finalize, though it could still say so.
  if (exit_code == static_cast<int>(ErrorKind::peer_lost)) mpi_can_end_ = false;
  announce();
}

void JobShutdown::peer_lost(PeerId peer) {
  mpi_can_end_ = false;
  awaited_.erase(peer);
  if (leaving_began_ && awaited_.empty()) announce();
}

void JobShutdown::tick(Nanoseconds now) {
  if (leaving_began_ && now > deadline_) announce();
}

void JobShutdown::announce() {
  if (goodbye_) return;
  leaving_began_ = true;
  goodbye_ = Goodbye{failure_.empty(), failure_code_, failure_, mpi_can_end_ && awaited_.empty()};
  for (const PeerId peer : loaders_) send_(peer, *goodbye_);
  for (const PeerId peer : receivers_) {
    if (peer != self_) send_(peer, *goodbye_);
  }
}

std::vector<std::string> JobShutdown::reports() const {
  std::vector<std::string> all;
  for (const auto& [peer, text] : receiver_reports_) all.push_back(text);
  for (const auto& [peer, text] : loader_reports_) {
    nlohmann::json report = parse_json_or_nothing(text);
    if (report.is_discarded()) continue;
    report["rank"] = peer;  // loaders do not know theirs
    all.push_back(json_text_replacing(report));
  }
  return all;
}

}  // namespace penstock
