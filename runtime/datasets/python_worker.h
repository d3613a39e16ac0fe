// One Python worker as python_workers.h talks with it: its process, and a request with its answer.
//
//   PythonWorker worker;
//   worker.process = WorkerProcess::start(...);
//   try {
//     uint8_t status = exchange(worker, {kPythonLoad, body, {}}, max_bytes, limit_s, stop, answer);
//   } catch (const WorkerFault& fault) { ... }          // it is no use any more
//
// What the worker prints goes to this process's stderr, as a child's output would, and its end is kept for messages.
// Thread-safety: one thread at a time. Failure: WorkerFault; Error(runtime) where the job ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/process/worker_process.h"

namespace penstock {

struct PythonWorker {
  WorkerProcess process;
  std::string tail;     // what it printed last
  SharedMemory memory;  // what large answers come in; none before the first
  size_t number = 0;
};

struct PythonRequest {
  uint8_t kind = 0;
  std::span<const std::byte> body;
  std::span<const std::byte> payload;  // more of the body
};

// A worker did not answer as it should.
struct WorkerFault {
  std::string how;  // "did not answer within 20 s"; empty: it has ended
};

constexpr uint8_t kWorkerGood = 0;
constexpr uint8_t kWorkerBad = 1;  // the sample, or what was asked for; any other: trouble of the machine
constexpr size_t kAnswerPadding = 64;
constexpr int64_t kStopCheck_ms = 100;  // how often a wait looks whether the job has ended

// The status of the answer, which gets kAnswerPadding readable bytes more than its size says. `ends`: descriptors that go
// along.
uint8_t exchange(PythonWorker& worker, const PythonRequest& request, size_t max_answer_bytes, double limit_s,
                 const std::stop_token& stop, std::vector<std::byte>& answer, const WorkerEnds* ends = nullptr);

// Takes what the worker has printed: passes it on, keeps the end of it. One that prints faster than we read, or a stderr
// that nobody reads, holds us up for 50 ms at most; what is left waits for the next time, or is not passed on.
void drain(PythonWorker& worker);

// Some lines at most, for a message.
std::string last_lines(const std::string& tail);

}  // namespace penstock
