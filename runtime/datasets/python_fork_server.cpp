#include "runtime/datasets/python_fork_server.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {

constexpr uint8_t kPrepare = 4;
constexpr uint8_t kFork = 5;
constexpr size_t kMaxAnswerBytes = 16;

struct Servers {
  Mutex mutex;
  std::vector<std::pair<PythonForkServer::Place, std::weak_ptr<PythonForkServer>>> all PENSTOCK_GUARDED_BY(mutex);
};

Servers& servers() {
  static Servers servers;
  return servers;
}

}  // namespace

std::shared_ptr<PythonForkServer> PythonForkServer::shared(const Place& place) {
  Servers& known = servers();
  MutexLock lock(known.mutex);
  std::erase_if(known.all, [](const auto& one) { return one.second.expired(); });
  for (const auto& [its_place, server] : known.all) {
    if (its_place != place) continue;
    if (auto found = server.lock()) return found;
  }
  auto made = std::make_shared<PythonForkServer>(place);
  known.all.emplace_back(place, made);
  return made;
}

PythonForkServer::PythonForkServer(Place place) : place_(std::move(place)) {}

void PythonForkServer::prepare(const std::string& config, double limit_s, const std::stop_token& stop) {
  MutexLock lock(mutex_);
  if (!can_fork_) return;
  if (!server_.process) server_.process = WorkerProcess::start(place_.argv, place_.environment);
  const auto answer = ask({kPrepare, std::as_bytes(std::span(config)), {}}, limit_s, stop, nullptr);
  can_fork_ = can_fork_ && answer && !answer->empty() && answer->front() == std::byte{'1'};
}

std::optional<WorkerProcess> PythonForkServer::fork(size_t number, double limit_s, const std::stop_token& stop) {
  MutexLock lock(mutex_);
  if (!can_fork_) return std::nullopt;
  WireWriter body;
  body.u32(static_cast<uint32_t>(number));
  WorkerProcess worker = WorkerProcess::forked([&](const WorkerEnds& ends) PENSTOCK_REQUIRES(mutex_) -> pid_t {
    const auto answer = ask({kFork, body.bytes(), {}}, limit_s, stop, &ends);
    return answer && answer->size() == sizeof(uint32_t) ? static_cast<pid_t>(WireReader(*answer).u32()) : 0;
  });
  if (worker) return worker;
  can_fork_ = false;
  return std::nullopt;
}

std::optional<std::vector<std::byte>> PythonForkServer::ask(const PythonRequest& request, double limit_s,
                                                            const std::stop_token& stop, const WorkerEnds* ends) {
  std::vector<std::byte> answer;
  try {
    const uint8_t status = exchange(server_, request, kMaxAnswerBytes, limit_s, stop, answer, ends);
    drain(server_);
    if (status == kWorkerGood) return answer;
  } catch (const WorkerFault&) {
  } catch (...) {  // the job ends, and half of an answer may be left
    can_fork_ = false;
    throw;
  }
  drain(server_);
  can_fork_ = false;
  return std::nullopt;
}

}  // namespace penstock
