// A pool of Python worker processes, for datasets and transforms in the user's own code.
//
//   PythonWorkers workers({job.python}, config, "dataset 'my_data:make'");   // starts the first; Error where it cannot
//   std::vector<std::byte> answer;
//   SampleStatus status = workers.call({kPythonLoad, request, {}}, max_bytes, "sample 17", answer);
//
// Each call has a worker of its own; workers are started as callers need them (as many as threads call at once, or
//   python.workers). They are never forks of this process: a process that has imported their modules forks them
//   (python_fork_server.h), or they are started as programs (runtime/process/worker_process.h). They run
//   bindings/python/penstock/_worker.py, which says what a dataset and a transform are.
// Each is told its number, counted from 0, which no other one that lives has.
// A worker that ends, hangs (python.timeout_s) or says nonsense is killed, named by PythonHost::notice, and the call is made
//   again by a new one, up to python.attempts times. Answers are pure functions of requests, so nobody can tell.
// Frames, little-endian: request u64 bytes, u8 kind, body; reply u64 bytes, u8 status (0 good, 1 the sample is bad, 2
//   trouble of the machine), body. Kinds and bodies: 1 hello: JSON both ways; 2 load: LoadRequest -> u8 0 encoded or 1
//   RGB, u32 height, u32 width, i64 label, u64 bytes of the image, the other fields in table order (text and bytes: u32
//   length before), the image; 3 transform: u16 number of the function, u16 position, u32 height, u32 width,
//   LoadRequest, pixels -> pixels.
//   LoadRequest: i64 index, u64 seed, u32 epoch, u16 occurrence.
// A large body of a reply lies in memory that the worker shares, because a socket copies it twice: then bit 7 of the status is
//   set, and no body follows. The memory's descriptor comes with the first such reply, and whenever it has grown.
// What workers print goes to this process's stderr, as a child's output would, and its last lines into messages.
// Thread-safety: all functions from any thread. Failure: Error(runtime) naming worker, sample, how it ended and its
//   last lines; from the constructor also Error(dataset) with the exception that the user's code raised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sample.h"
#include "runtime/datasets/python_worker.h"
#include "runtime/job/job.h"

namespace penstock {

// A dataset that stays in this process, as with torch's num_workers=0: `dataset.pickle` is then "here:NAME", and whatever
// this was set to serves requests on `socket`, while the program waits for a batch, until that hangs up. False: no dataset of
// that name lives here (another process made the job). Set once, by the bindings; nothing: there is no Python here.
using ServePythonHere = std::function<bool(const std::string& name, UniqueFd socket)>;
void set_python_here(ServePythonHere serve);

// The interpreter that workers run where neither the job nor PENSTOCK_PYTHON names one; without it python3 from PATH. Set
// once, by the bindings: the program's own.
void set_usual_interpreter(std::string interpreter);

// How workers are run, and by whom.
struct PythonHost {
  PythonSpec spec;
  // Hears of every worker that had to be replaced, from whatever thread saw it.
  std::function<void(const std::string&)> notice = {};
  // Once stop is requested, whoever waits for a worker gets Error(runtime) within a tenth of a second: the end of a job
  // does not wait for a sample that hangs.
  std::stop_token stop = {};
  // No other machine makes samples of the data set that the program gives: what is missing here is missing.
  bool only_here = false;
};

class PythonWorkers {
 public:
  // `config`: the JSON that hello takes; where its "fields" is null the first worker finds them out, and the others
  // are given what it found. `title` for messages: "dataset 'my_data:make'".
  PythonWorkers(const PythonHost& host, std::string config, std::string title);
  ~PythonWorkers();

  // The first worker's answer to hello.
  const std::string& hello() const noexcept;

  // `what` is asked for, for messages; `answer` gets kAnswerPadding readable bytes more than its size says.
  SampleStatus call(const PythonRequest& request, size_t max_answer_bytes, const std::string& what,
                    std::vector<std::byte>& answer) const;

  // Nobody wants answers any more: who has to wait for one gets Error(runtime) within a tenth of a second, now and later.
  void end_waits() const noexcept;
  bool waits_ended() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

constexpr uint8_t kPythonLoad = 2;
constexpr uint8_t kPythonTransform = 3;

// LoadRequest of the frames above.
std::vector<std::byte> python_request(const DrawKey& key);

// What starts a worker: the interpreter and the script, as the job, the environment and the installation say.
std::string python_interpreter(const PythonSpec& spec);
std::string python_worker_script();  // Error(runtime) where there is none
// Another script, from beside that one.
std::string python_script(const std::string& name);

// The config of hello: what `dataset` (nothing: transforms alone) and `functions` need.
std::string python_config(const DatasetSpec& dataset, const std::vector<std::string>& functions);

}  // namespace penstock
