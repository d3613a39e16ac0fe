#include "runtime/datasets/python_fork_server.h"

#include <unistd.h>

#include <chrono>
#include <functional>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {

constexpr uint8_t kPrepare = 4;
constexpr uint8_t kFork = 5;
constexpr size_t kMaxAnswerBytes = 16;
constexpr double kServerGrace_s = 0.5;  // to reap its workers, and for exit handlers of the modules

struct Known {
  pid_t process;  // a forked child has a copy of the table, and no server
  PythonForkServer::Place place;
  std::weak_ptr<PythonForkServer> server;
};
struct Servers {
  Mutex mutex;
  std::vector<Known> all PENSTOCK_GUARDED_BY(mutex);
};

Servers& servers() {
  static Servers servers;
  return servers;
}

}  // namespace

class PythonForkServer::Turn {
 public:
  Turn(PythonForkServer& server, const std::stop_token& stop) : server_(server) {
    MutexLock lock(server_.mutex_);
    while (server_.busy_) {
      if (stop.stop_requested())
        throw Error(ErrorKind::runtime, "the job, or its split, ended before a Python worker was started");
      (void)server_.changed_.wait_for(server_.mutex_, std::chrono::milliseconds(kStopCheck_ms));
    }
    server_.busy_ = true;
  }
  ~Turn() {
    MutexLock lock(server_.mutex_);
    server_.busy_ = false;
    server_.changed_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  PythonForkServer& server_;
};

std::shared_ptr<PythonForkServer> PythonForkServer::shared(const Place& place) {
  Servers& known = servers();
  const pid_t self = ::getpid();
  MutexLock lock(known.mutex);
  std::erase_if(known.all, [](const Known& one) { return one.server.expired(); });
  for (const Known& one : known.all) {
    if (one.process != self || one.place != place) continue;
    if (auto found = one.server.lock()) return found;
  }
  auto made = std::make_shared<PythonForkServer>(place);
  known.all.push_back({self, place, made});
  return made;
}

PythonForkServer::PythonForkServer(Place place) : place_(std::move(place)) {}

PythonForkServer::~PythonForkServer() {
  (void)server_.process.end(kServerGrace_s);
}

std::optional<WorkerProcess> PythonForkServer::make_worker(const std::string& config, size_t number, double limit_s,
                                                           const std::stop_token& stop) {
  const Turn turn(*this, stop);
  if (!prepare(config, limit_s, stop)) return std::nullopt;
  WireWriter body;
  body.u32(static_cast<uint32_t>(number));
  WorkerProcess worker = WorkerProcess::forked([&](const WorkerEnds& ends) -> pid_t {
    const auto answer = ask({kFork, body.bytes(), {}}, limit_s, stop, &ends);
    return answer && answer->size() == sizeof(uint32_t) ? static_cast<pid_t>(WireReader(*answer).u32()) : 0;
  });
  if (!worker) return std::nullopt;
  has_forked_ = true;
  return worker;
}

bool PythonForkServer::prepare(const std::string& config, double limit_s, const std::stop_token& stop) {
  const size_t key = std::hash<std::string>{}(config);
  if (hopeless_.contains(key)) return false;
  if (server_.process && prepared_.contains(key)) return true;
  if (!server_.process) server_.process = WorkerProcess::start(place_.argv, place_.environment);
  const auto answer = ask({kPrepare, std::as_bytes(std::span(config)), {}}, limit_s, stop, nullptr);
  if (answer && !answer->empty() && answer->front() == std::byte{'1'}) {
    prepared_.insert(key);
    return true;
  }
  // What was imported cannot be undone: the other configs that it was prepared for are lost, too, for a server that is kept
  // because it still has to say how its workers end.
  hopeless_.insert(key);
  if (has_forked_) {
    hopeless_.insert(prepared_.begin(), prepared_.end());
  } else {
    forget();
  }
  return false;
}

std::optional<std::vector<std::byte>> PythonForkServer::ask(const PythonRequest& request, double limit_s,
                                                            const std::stop_token& stop, const WorkerEnds* ends) {
  std::vector<std::byte> answer;
  try {
    const uint8_t status = exchange(server_, request, kMaxAnswerBytes, limit_s, stop, answer, ends);
    drain(server_);
    if (status == kWorkerGood) return answer;
    return std::nullopt;
  } catch (const WorkerFault&) {
  } catch (...) {  // the job ends, and half of an answer may be left
    forget();
    throw;
  }
  drain(server_);
  forget();
  return std::nullopt;
}

void PythonForkServer::forget() noexcept {
  (void)server_.process.end(0);
  server_ = {};
  prepared_.clear();
  has_forked_ = false;
}

}  // namespace penstock
