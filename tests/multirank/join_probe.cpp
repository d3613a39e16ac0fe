// What join_test.py has ranks do, besides examples/mpi_sgd: a mode, then the job file.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bindings/mpi/join.h"

namespace {

using penstock::mpi::join;
using penstock::mpi::Rank;

int rank_of(MPI_Comm communicator) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  return rank;
}

// Both splits, batch by batch; the sum of all pixels' bytes over the trainers.
void read_all(Rank& rank, const char* title) {
  double sum = 0;
  for (const char* split : {"train", "val"}) {
    penstock::DataLoader loader = rank.loader(split);
    for (auto& batch : loader) {
      const auto* values = batch.image().as<float>();
      for (int64_t i = 0; i < batch.image().elements(); i += 97) sum += values[i];
    }
  }
  double total = 0;
  MPI_Allreduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, rank.trainers());
  if (rank.number() == 0) std::printf("%s %d trainers %.17g\n", title, rank.num_trainers(), total);
}

void take_part(MPI_Comm communicator, const std::string& job, const char* title) {
  Rank rank = join(communicator, job);
  if (rank.loads()) return rank.serve();
  read_all(rank, title);
  const std::string report = rank.leave();
  if (report.empty() != (rank.number() != 0)) throw std::runtime_error("trainer 0 alone has the report");
}

// Rank 4 computes for itself, and messages of the program go on meanwhile.
void subset(const std::string& job) {
  MPI_Comm four = MPI_COMM_NULL;
  const int rank = rank_of(MPI_COMM_WORLD);
  MPI_Comm_split(MPI_COMM_WORLD, rank < 4 ? 0 : MPI_UNDEFINED, rank, &four);
  if (four != MPI_COMM_NULL) {
    take_part(four, job, "first");
    take_part(four, job, "second");
    MPI_Comm_free(&four);
  }
  int ones = 1;
  MPI_Allreduce(MPI_IN_PLACE, &ones, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 4) std::printf("%d ranks at the end\n", ones);
}

void batch_after_leave(const std::string& job) {
  Rank rank = join(MPI_COMM_WORLD, job);
  if (rank.loads()) return rank.serve();
  penstock::DataLoader loader = rank.loader("train");
  penstock::Batch batch = loader.start().next();
  const auto first = *batch.image().as<float>();
  rank.leave();
  if (*batch.image().as<float>() != first) throw std::runtime_error("the batch's memory changed");
  try {
    loader.start().next();
  } catch (const penstock::Error& error) {
    std::printf("after leave: %s\n", error.message().c_str());
  }
  try {
    rank.leave();
  } catch (const penstock::Error& error) {
    std::printf("again: %s\n", error.message().c_str());
  }
}

void wrong_calls(const std::string& job) {
  Rank rank = join(MPI_COMM_WORLD, job);
  try {
    rank.loads() ? (void)rank.leave() : rank.serve();
  } catch (const penstock::Error& error) {
    std::printf("%s: %s\n", rank.loads() ? "loader" : "trainer", error.message().c_str());
  }
  if (rank.loads()) return rank.serve();
  rank.leave();
}

// Trainer 1 cannot go on and says so, or goes without a word; the others read until they are told. No MPI_Abort: all come
// to MPI_Finalize.
void leave_badly(const std::string& job, bool in_words) {
  Rank rank = join(MPI_COMM_WORLD, job);
  if (rank.loads()) return rank.serve();
  penstock::DataLoader loader = rank.loader("train");
  for (int steps = 0;;) {
    for (auto& batch : loader) {
      (void)batch;
      if (rank.number() != 1 || ++steps < 5) continue;
      if (in_words) rank.leave(false);
      throw std::runtime_error("trainer 1 cannot go on");
    }
  }
}

// A child of fork() has a copy of everything and may do nothing with it, not even drop it loudly.
void fork_a_child(const std::string& job) {
  Rank rank = join(MPI_COMM_WORLD, job);
  if (rank.loads()) return rank.serve();
  penstock::DataLoader loader = rank.loader("train");
  penstock::BatchStream stream = loader.start();
  stream.next();
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      rank.leave();
    } catch (const penstock::Error& error) {
      code = error.kind() == penstock::ErrorKind::usage ? 0 : 2;
    }
    { const Rank dropped = std::move(rank); }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  while (stream.next()) {
  }
  rank.leave();
  std::printf("child ended with %d\n", WEXITSTATUS(status));
}

// The trainers have left before the loaders serve.
void serve_late(const std::string& job) {
  Rank rank = join(MPI_COMM_WORLD, job);
  if (!rank.loads()) {
    rank.leave();
    return;
  }
  ::sleep(1);
  rank.serve();
  std::printf("served late\n");
}

void say_roles(const std::string& job) {
  penstock::JoinOptions options;
  options.role = rank_of(MPI_COMM_WORLD) < 3 ? penstock::Role::trainer : penstock::Role::loader;
  Rank rank = join(MPI_COMM_WORLD, job, options);
  if (rank.loads()) return rank.serve();
  read_all(rank, "roles");
  rank.leave();
}

// A Rank that lives beyond MPI_Finalize, and never left.
void finalize_first(const std::string& job) {
  static Rank rank = join(MPI_COMM_WORLD, job);
  if (rank.loads()) return rank.serve();
  static penstock::DataLoader loader = rank.loader("train");
  for (auto& batch : loader) (void)batch;
}

// Trainer 1 goes on its way with an exception; `kill`: loader 0 dies, while everybody works.
void end_badly(const std::string& job, bool kill) {
  Rank rank = join(MPI_COMM_WORLD, job);
  if (rank.loads()) {
    if (kill && rank.number() == 0) std::raise(SIGKILL);
    return rank.serve();
  }
  penstock::DataLoader loader = rank.loader("train");
  for (int steps = 0; steps < 100000;) {
    for (auto& batch : loader) {
      (void)batch;
      if (!kill && rank.number() == 1 && ++steps == 5) throw std::runtime_error("trainer 1 gives up");
    }
  }
  rank.leave();
}

int run(const std::string& mode, const std::string& job) {
  if (mode == "before_init") {
    try {
      join(MPI_COMM_WORLD, job);
    } catch (const penstock::Error& error) {
      std::printf("%s\n", error.what());
    }
    return 0;
  }
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, mode == "serialized" ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE, &provided);
  int code = 0;
  try {
    if (mode == "subset") subset(job);
    if (mode == "all" || mode == "serialized") take_part(MPI_COMM_WORLD, job, "all");
    if (mode == "null") take_part(MPI_COMM_NULL, job, "null");
    if (mode == "alone") take_part(MPI_COMM_SELF, job, "alone");
    if (mode == "batch_after_leave") batch_after_leave(job);
    if (mode == "wrong_calls") wrong_calls(job);
    if (mode == "throws" || mode == "kill") end_badly(job, mode == "kill");
    if (mode == "leaves_badly" || mode == "never_leaves") leave_badly(job, mode == "leaves_badly");
    if (mode == "finalize_first") finalize_first(job);
    if (mode == "fork") fork_a_child(job);
    if (mode == "late") serve_late(job);
    if (mode == "roles") say_roles(job);
    if (mode == "other_job") {
      penstock::JoinOptions options;
      options.overrides = {"seed=" + std::to_string(rank_of(MPI_COMM_WORLD) % 2)};
      join(MPI_COMM_WORLD, job, options);
    }
  } catch (const std::exception& problem) {
    std::printf("rank %d: %s\n", rank_of(MPI_COMM_WORLD), problem.what());
    code = 1;
    // As programs do; where all have met the same they end in good order.
    if (mode == "throws" || mode == "kill") MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return argc == 3 ? run(argv[1], argv[2]) : 2;
}
