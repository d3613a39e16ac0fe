#include "runtime/datasets/python_workers.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/json_text.h"
#include "runtime/base/switches.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/base/wire.h"
#include "runtime/datasets/python_fork_server.h"
#include "runtime/process/worker_process.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr uint8_t kHello = 1;
constexpr size_t kMaxHelloBytes = size_t{16} << 20;
constexpr double kGrace_s = 0.5;  // for a worker to end by itself, once it was told to

ServePythonHere& serve_python_here() {
  static ServePythonHere serve;
  return serve;
}

std::string& usual_interpreter() {
  static std::string interpreter = "python3";
  return interpreter;
}

std::string working_folder() {
  std::error_code problem;
  return std::filesystem::current_path(problem).string();  // empty where it was removed
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

class PythonWorkers::Impl {
 public:
  Impl(const PythonHost& host, std::string config, std::string title)
      : spec_(host.spec),
        notice_(host.notice),
        host_ends_(host.stop),
        ended_with_host_(host.stop, EndWaits{*this}),
        stop_(ended_.get_token()),
        config_(std::move(config)),
        title_(std::move(title)),
        argv_{python_interpreter(host.spec), python_worker_script()},
        environment_(worker_environment()) {
    Json said = parse_json(config_);
    const auto pickle = said.at("pickle").get<std::string>();
    if (pickle.starts_with(DatasetSpec::kHere)) here_ = pickle.substr(DatasetSpec::kHere.size());
    said["workers"] = spec_.workers;
    said["only_here"] = host.only_here && !pickle.empty();
    config_ = json_text_replacing(said);
    if (here_.empty()) {
      fork_server_ = PythonForkServer::shared({{argv_.front(), python_script("_fork_server.py")},
                                               environment_,
                                               said.at("main").get<std::string>(),
                                               json_text(said.at("path")),
                                               working_folder()});
      preparation_ = config_;
    }
    put_back(start_first());
  }

  ~Impl() {
    MutexLock lock(mutex_);
    for (auto& worker : idle_) worker->process.hang_up();
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>(kGrace_s * 1e9);
    for (auto& worker : idle_) {
      (void)worker->process.end(std::max(0.0, as_seconds(deadline - clock.now())));
    }
  }

  const std::string& hello() const noexcept { return hello_; }

  SampleStatus call(const PythonRequest& request, size_t max_answer_bytes, const std::string& what,
                    std::vector<std::byte>& answer) {
    std::string problem;
    for (int attempt = 1; attempt <= spec_.attempts; ++attempt) {
      std::unique_ptr<PythonWorker> worker = take(what);
      uint8_t status = kWorkerGood;
      try {
        status = exchange(*worker, request, max_answer_bytes, spec_.timeout_s, stop_, answer);
      } catch (const WorkerFault& fault) {
        problem = bury(std::move(worker), fault, what);
        gone();
        continue;
      } catch (...) {  // the job ends, or no memory: the answer is lost half-way, and the worker with it
        const size_t number = worker->number;
        worker.reset();
        give_back_number(number);
        gone();
        throw;
      }
      put_back(std::move(worker));
      if (status == kWorkerGood) return SampleStatus::good();
      if (status == kWorkerBad) return SampleStatus::bad(text_of(answer));
      throw Error(ErrorKind::runtime, title_ + ": " + what + ": " + text_of(answer),
                  "an error of the machine, not of the sample: check files, network and memory, and the modules of " +
                      argv_.front() + " (python.interpreter), which the workers run");
    }
    throw Error(ErrorKind::runtime,
                title_ + ": " + what + " was given up after " + std::to_string(spec_.attempts) + " workers: " + problem,
                "try it alone: python -c 'dataset[index]'; for slow samples raise python.timeout_s");
  }

  void end_waits() noexcept { ended_.request_stop(); }
  bool waits_ended() const noexcept { return ended_.stop_requested(); }

 private:
  WorkerProcess start_process(size_t number) {
    if (here_.empty()) {
      if (stop_.stop_requested())
        throw Error(ErrorKind::runtime, "the job, or its split, ended before a Python worker was started");
      // The process that forks them serves others, too, and would be lost with a request that is broken off.
      if (auto forked = fork_server_->make_worker(preparation_, number, spec_.start_timeout_s, host_ends_))
        return std::move(*forked);
      std::vector<std::string> argv = argv_;
      argv.push_back(std::to_string(number));
      return WorkerProcess::start(std::move(argv), environment_);
    }
    auto [ours, theirs] = worker_sockets();
    if (!serve_python_here() || !serve_python_here()(here_, std::move(theirs))) {
      throw Error(ErrorKind::config, title_ + " stays in the program's process (num_workers=0), and loaders are others",
                  "give penstock.DataLoader num_workers=1 or more, so that workers of the loaders get a copy of it");
    }
    return WorkerProcess::in_this_process(std::move(ours));
  }

  size_t take_number() {
    MutexLock lock(mutex_);
    const auto free = std::find(numbers_.begin(), numbers_.end(), false);
    const auto number = static_cast<size_t>(free - numbers_.begin());
    if (free == numbers_.end()) numbers_.push_back(false);
    numbers_[number] = true;
    return number;
  }

  void give_back_number(size_t number) {
    MutexLock lock(mutex_);
    numbers_[number] = false;
  }

  // An idle worker, a new one where there may be another, or the next that somebody brings back.
  std::unique_ptr<PythonWorker> take(const std::string& what) {
    {
      const MonotonicClock clock;
      // A thread keeps a worker at most that long, and many threads may wait for one.
      const double limit_s = (spec_.timeout_s + spec_.start_timeout_s + 2 * kGrace_s) * spec_.attempts;
      MutexLock lock(mutex_);
      Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>(limit_s * 1e9);
      for (int64_t seen = returned_; idle_.empty() && spec_.workers > 0 && living_ >= spec_.workers;) {
        if (returned_ != seen) {  // somebody else took it: the workers do work
          seen = returned_;
          deadline = clock.now() + static_cast<Nanoseconds>(limit_s * 1e9);
        }
        if (stop_.stop_requested())
          throw Error(ErrorKind::runtime, "the job, or its split, ended before a Python worker was free");
        if (clock.now() > deadline) {
          throw Error(
              ErrorKind::runtime,
              title_ + ": " + what + " waited for one of " + std::to_string(living_) + " busy workers for too long",
              "raise python.workers");
        }
        (void)changed_.wait_for(mutex_, std::chrono::milliseconds(kStopCheck_ms));
      }
      if (!idle_.empty()) {
        std::unique_ptr<PythonWorker> worker = std::move(idle_.back());
        idle_.pop_back();
        return worker;
      }
      ++living_;
    }
    try {
      return start();
    } catch (...) {
      gone();
      throw;
    }
  }

  void put_back(std::unique_ptr<PythonWorker> worker) {
    drain(*worker);
    MutexLock lock(mutex_);
    idle_.push_back(std::move(worker));
    ++returned_;
    changed_.notify_one();
  }

  void gone() {
    MutexLock lock(mutex_);
    --living_;
    changed_.notify_one();
  }

  // "worker 4711 was killed by SIGSEGV; it said last: ...": and it is no more. Its place stays taken.
  std::string bury(std::unique_ptr<PythonWorker> worker, const WorkerFault& fault, const std::string& what) {
    std::string text = "worker " + std::to_string(worker->process.pid()) + " ";
    drain(*worker);
    const std::string said = last_lines(worker->tail);
    const std::string status = worker->process.end(fault.how.empty() ? kGrace_s : 0);
    text += fault.how.empty() ? status : fault.how + " and " + status;
    const std::string notice = title_ + ": " + what + ": " + text;
    give_back_number(worker->number);
    if (notice_) notice_(notice);  // its last lines have gone to stderr already
    return said.empty() ? text : text + "; it said last:\n" + said;
  }

  std::unique_ptr<PythonWorker> start_first() {
    {
      MutexLock lock(mutex_);
      ++living_;
    }
    std::unique_ptr<PythonWorker> worker = start();
    Json config = parse_json(config_);
    const Json hello = parse_json(hello_);
    config["fields"] = hello["fields"];
    config["labelled"] = hello["labelled"];
    config_ = json_text(config);  // nobody else has a worker yet
    return worker;
  }

  // A worker that has imported its modules and made its dataset.
  std::unique_ptr<PythonWorker> start() {
    std::string problem;
    for (int attempt = 1; attempt <= spec_.attempts; ++attempt) {
      const size_t number = take_number();
      try {
        return start(number);
      } catch (StartFault& fault) {
        problem = bury(std::move(fault.worker), fault.fault, "while it started");
      } catch (...) {
        give_back_number(number);
        throw;
      }
    }
    throw Error(ErrorKind::runtime, title_ + " cannot be opened: " + problem,
                "workers run " + argv_.front() + " (python.interpreter); slow imports need python.start_timeout_s");
  }

  struct StartFault {
    std::unique_ptr<PythonWorker> worker;
    WorkerFault fault;
  };
  std::unique_ptr<PythonWorker> start(size_t number) {
    auto worker = std::make_unique<PythonWorker>();
    worker->number = number;
    worker->process = start_process(number);
    std::vector<std::byte> answer;
    uint8_t status = kWorkerGood;
    try {
      const auto body = std::as_bytes(std::span(config_));
      status = exchange(*worker, {kHello, body, {}}, kMaxHelloBytes, spec_.start_timeout_s, stop_, answer);
    } catch (const WorkerFault& fault) {
      throw StartFault{std::move(worker), fault};
    }
    const std::string said = text_of(answer);
    if (status != kWorkerGood) {
      throw Error(ErrorKind::dataset, title_ + " cannot be opened: " + said,
                  "workers run " + argv_.front() + " (python.interpreter) and look for modules in dataset.path");
    }
    check_hello(said);
    drain(*worker);
    return worker;
  }

  void check_hello(const std::string& said) {
    Json answer;
    std::string compared = said;
    try {
      answer = parse_json(said);
      (void)answer.at("size").get<int64_t>();
      (void)answer.at("labelled").get<bool>();
      for (const char* list : {"classes", "fields"}) {
        if (!answer.at(list).is_array()) throw Error(ErrorKind::runtime, "not a list");
      }
    } catch (const std::exception&) {
      throw Error(ErrorKind::runtime, title_ + ": the worker's answer cannot be read",
                  "use the _worker.py of this version of penstock");
    }
    if (!here_.empty()) {  // a connection after an interrupt; the data set may have grown, which the next epoch sees
      answer.erase("size");
      compared = answer.dump();
    }
    MutexLock lock(mutex_);
    if (hello_.empty()) {
      hello_ = said;
      compared_ = compared;
    } else if (compared_ != compared) {
      throw Error(
          ErrorKind::dataset,
          title_ + " is another one in another worker: " + said.substr(0, 300) + ", before " + hello_.substr(0, 300),
          "size, classes, fingerprint and fields must be the same whenever it is made");
    }
  }

  struct EndWaits {
    Impl& workers;
    void operator()() const noexcept { workers.end_waits(); }
  };

  const PythonSpec spec_;
  const std::function<void(const std::string&)> notice_;
  const std::stop_token host_ends_;
  std::stop_source ended_;
  const std::stop_callback<EndWaits> ended_with_host_;
  const std::stop_token stop_;
  std::string config_;  // constant once the first worker runs
  const std::string title_;
  std::string here_;  // as config_: a dataset in this process; empty where workers are processes
  const std::vector<std::string> argv_;
  const std::vector<std::string> environment_;
  std::string hello_;                              // as config_
  std::string compared_;                           // of it: what later ones have to say, too
  std::shared_ptr<PythonForkServer> fork_server_;  // nullptr for a dataset in this process
  std::string preparation_;                        // config_ as it was before the fields were known

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<PythonWorker>> idle_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<bool> numbers_ PENSTOCK_GUARDED_BY(mutex_);  // taken by workers that live
  int living_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  int64_t returned_ PENSTOCK_GUARDED_BY(mutex_) = 0;  // how often a worker was brought back
};

void set_usual_interpreter(std::string interpreter) {
  usual_interpreter() = std::move(interpreter);
}

void set_python_here(ServePythonHere serve) {
  serve_python_here() = std::move(serve);
}

PythonWorkers::PythonWorkers(const PythonHost& host, std::string config, std::string title)
    : impl_(std::make_unique<Impl>(host, std::move(config), std::move(title))) {}
PythonWorkers::~PythonWorkers() = default;
const std::string& PythonWorkers::hello() const noexcept {
  return impl_->hello();
}
SampleStatus PythonWorkers::call(const PythonRequest& request, size_t max_answer_bytes, const std::string& what,
                                 std::vector<std::byte>& answer) const {
  return impl_->call(request, max_answer_bytes, what, answer);
}
void PythonWorkers::end_waits() const noexcept {
  impl_->end_waits();
}
bool PythonWorkers::waits_ended() const noexcept {
  return impl_->waits_ended();
}

std::vector<std::byte> python_request(const DrawKey& key) {
  WireWriter out;
  out.i64(static_cast<int64_t>(key.index));
  out.u64(key.seed);
  out.u32(key.epoch);
  out.u16(key.occurrence);
  return out.take();
}

std::string python_interpreter(const PythonSpec& spec) {
  if (!spec.interpreter.empty()) return spec.interpreter;
  if (const std::string named = switches().python; !named.empty()) return named;
  return usual_interpreter();
}

std::string python_worker_script() {
  if (const std::string named = switches().worker_script; !named.empty()) return named;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&python_worker_script), &info) != 0 && info.dli_fname != nullptr) {
    const std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "./" : path.substr(0, slash + 1);
    // Beside the library in a Python package (or above it) and in the build folder; under share/ where it is installed,
    // from lib/ or lib/<triplet>/, or from bin/.
    for (const char* place :
         {"_worker.py", "../_worker.py", "../share/penstock/_worker.py", "../../share/penstock/_worker.py"}) {
      if (::access((folder + place).c_str(), R_OK) == 0) return folder + place;
    }
  }
  throw Error(ErrorKind::runtime, "cannot find _worker.py, which Python workers run",
              "install penstock as a whole, or set PENSTOCK_WORKER_SCRIPT to the file");
}

std::string python_script(const std::string& name) {
  const std::string worker = python_worker_script();
  const std::string path = worker.substr(0, worker.rfind('/') + 1) + name;
  if (::access(path.c_str(), R_OK) == 0) return path;
  throw Error(ErrorKind::runtime, "cannot find '" + path + "'", "install penstock as a whole");
}

std::string python_config(const DatasetSpec& dataset, const std::vector<std::string>& functions) {
  Json config;
  config["python"] = dataset.python;
  config["args"] = parse_json(dataset.args);
  config["pickle"] = dataset.pickle;
  config["main"] = dataset.main;
  config["functions"] = functions;
  config["fields"] = nullptr;
  config["labelled"] = true;
  config["path"] = Json::array();
  for (size_t at = 0; at < dataset.path.size();) {
    const size_t end = std::min(dataset.path.find(':', at), dataset.path.size());
    if (end > at) config["path"].push_back(dataset.path.substr(at, end - at));
    at = end + 1;
  }
  return json_text_replacing(config);
}

}  // namespace penstock
