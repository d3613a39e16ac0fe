// A trainer of this process: its receiver, the helper that runs the program, and what joins them.
//
//   Helper helper = Helper::fork_now();                       // before MPI and before any thread
//   Trainer trainer(request, job, options, std::move(endpoint), helper, "trainer 0");
//   trainer.start(...);                                       // or serve(...): a program that somebody else starts
//   trainer.receiver().run();                                 // until the job ends
//   trainer.clean_up(signals, pass);                          // nothing of the program is left behind
//   return conclude(request, job, trainer.receiver());             // rank 0: prints the report
//
// A rank under mpirun has one; a job in one process has one for each trainer, each receiver run by a thread of its own.
//
//   program runs ──exits 0──▶ receiver says "finished well" ──▶ everybody's goodbye is good ──▶ report
//        │                                                        │ (or a rank failed, or was told to end)
//        └──exits otherwise, is killed──▶ "finished badly" ──▶ goodbye is bad ──▶ SIGTERM, grace_s, SIGKILL
//
// Thread-safety: the thread that runs the receiver calls everything but hand_over_signal() and receiver().stop(), which any
//   thread may.
// Ownership: owns the receiver; request, job and helper outlive it.
// Failure: Error(usage) from serve() where the job is being served already; Error(runtime) from the receiver.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/run_job.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/job/job.h"
#include "runtime/process/environment.h"
#include "runtime/process/helper.h"
#include "runtime/process/signals.h"
#include "runtime/receiver/receiver.h"
#include "transport/transport.h"
#include "transport/wakeup.h"

namespace penstock {

// Behind the name of a rank.
inline constexpr const char* kOrphaned =
    ": mpirun, or its daemon on that host, has ended without a word; was it killed?";

// Where this program lies; "penstock", which PATH then has to find, where that cannot be told.
std::string program_path();

class Trainer {
 public:
  // `where` names it in messages: "trainer 1 (rank 1, host b)".
  Trainer(const RunRequest& request, const Job& job, const ReceiverOptions& options, std::unique_ptr<Endpoint> endpoint,
          Helper& helper, std::string where);

  Receiver& receiver() { return *receiver_; }

  // Opens the receiver and has the helper start the request's program.
  void start(const std::string& socket_name, const std::string& token, TrainerPlace place, std::vector<int> cpus,
             bool keep_stdin, bool relay_output);
  // Opens the receiver under the job's name, for a program that somebody else starts.
  void serve(const std::string& name, int local_trainer);

  void watch_signals(SignalFd& signals);
  // An end that is asked for comes: SIGTERM to the program, the grace, SIGKILL. Asked for again after a while, it comes at
  // once (EndRequest).
  void pass_signal(int number);
  // For the thread that reads the signals: the receiver's thread will call pass_signal().
  void hand_over_signal(int number) PENSTOCK_EXCLUDES(mutex_);
  // Ends program and job when whoever started this process is gone.
  void watch_parent_fd(int fd);

  // Only after a good end, said by everybody, is there no program left that would need its grace.
  void stop_program();
  // Leaves nothing of the program behind. It may wait for the program's grace; `pass` gets the signals that come meanwhile,
  // as nobody else reads them any more.
  void clean_up(SignalFd& signals, const std::function<void(int)>& pass);
  // When the programs of all trainers are over: they are asked to end at the same time. Nothing: they have not been.
  std::optional<Nanoseconds> programs_end_by() const noexcept { return programs_end_by_; }
  // Empty, or why it ended: whoever started this process is gone.
  const std::string& orphaned() const noexcept { return orphaned_; }

 private:
  bool end_without_parent();  // false: it is there
  void end_program(double grace_s);
  // Without its helper's answer nobody would learn that the program ended: it is continued, in case that it is stopped, and
  // the job ends if that does not help.
  void ask_helper();
  void read_helper();
  void program_exited(int status);
  void take_signals() PENSTOCK_EXCLUDES(mutex_);

  const RunRequest& request_;
  const Job& job_;
  Wakeup handed_over_;
  std::unique_ptr<Receiver> receiver_;
  Helper& helper_;
  std::string where_;
  EndRequest end_request_;
  const int most_unanswered_;
  int unanswered_ = 0;           // questions to the helper, one after the other
  bool helper_resumed_ = false;  // and has not answered since
  int parent_ = -1;              // readable when it is gone
  std::string orphaned_;
  bool ended_well_ = false;
  std::optional<Nanoseconds> programs_end_by_;
  Mutex mutex_;
  std::vector<int> signals_ PENSTOCK_GUARDED_BY(mutex_);
};

// Where trainer number `trainer` of `job_id` listens.
std::string receiver_socket_name(const std::string& job_id, int trainer);

// What both kinds of job give a receiver: the job's settings and the request's.
ReceiverOptions options_for_receiver(const RunRequest& request, const Job& job);
// A TCP port that is free now, for MASTER_PORT: torch's store binds it a moment later.
int free_tcp_port();

// For people, once the receivers are open: what to start now, and how to end it.
void print_how_to_attach(const RunRequest& request, const std::string& name, int local_trainers);
// One line on stderr; from any thread.
void print_notice(const std::string& text);

// Prints what rank 0 has to say at the end; returns the exit code.
int conclude(const RunRequest& request, const Job& job, const Receiver& receiver);

}  // namespace penstock
