// `penstock launch` and `penstock run` in small, for launch_run_test.py:
//
//   launch_stand_in launch RANKS GRACE PROGRAM...   # writes the mpirun line for itself, and runs it
//   launch_stand_in print RANKS GRACE PROGRAM...
//   launch_stand_in run GRACE -- PROGRAM...         # a rank: rank 0 starts the program through its helper, others wait
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "launch/end_channel.h"
#include "launch/launch_line.h"
#include "runtime/base/error.h"
#include "runtime/process/environment.h"
#include "runtime/process/helper.h"
#include "runtime/process/session_folder.h"
#include "runtime/process/signals.h"
#include "runtime/process/tree.h"
#ifdef STAND_IN_USES_MPI
#include <mpi.h>
#endif

using namespace penstock;

namespace {

int launch(int argc, char** argv, bool print) {
  LaunchRequest request;
  char self[PATH_MAX] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
  request.penstock = self;
  request.ranks = std::atoi(argv[2]);
  request.grace_s = std::atof(argv[3]);
  request.lost_after_s = 0.5;
  request.job = argv[3];
  request.program.assign(argv + 4, argv + argc);
  request.cores = 1;
  request.root = geteuid() == 0;
  request.session_folder = new_session_folder_name();
  const LaunchLine line = launch_line(request, find_mpirun());
  if (!print) return run_launch_line(line);
  std::puts(shell_quoted(line.argv).c_str());
  return 0;
}

int run(int argc, char** argv) {
  EndReporter end = EndReporter::from_environment();
  Helper helper = Helper::fork_now();
  SignalFd signals({SIGTERM, SIGINT, SIGUSR1, SIGUSR2, kEndInOrder, kEndAtOnce});
  int rank = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr ? std::atoi(std::getenv("OMPI_COMM_WORLD_RANK")) : 0;
  const double grace_s = std::atof(argv[2]);
#ifdef STAND_IN_USES_MPI
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#endif
  end.running(false);
  int status = 0;
  if (rank == 0) {
    ProgramSpec spec;
    spec.argv.assign(argv + 4, argv + argc);
    TrainerPlace place;
    place.world_size = 1;
    spec.environment = trainer_environment(inherited_environment(), place);
    spec.keep_stdin = true;
    spec.relay_output = true;
    spec.grace_s = grace_s;
    helper.start(spec);
    for (bool ended = false; !ended;) {
      pollfd fds[2] = {{helper.poll_fd(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
      poll(fds, 2, -1);
      while (const auto arrived = signals.next()) {
        if (*arrived == SIGUSR1 || *arrived == SIGUSR2) {
          helper.signal(*arrived);
        } else {
          helper.stop(grace_s);
        }
      }
      while (const auto report = helper.next_report()) {
        if (report->kind == HelperReport::Kind::start_failed) {
          std::fprintf(stderr, "%s\n", report->text.c_str());
          status = 1;
          helper.stop(0);
        }
        if (report->kind == HelperReport::Kind::exited) {
          std::fprintf(stderr, "rank 0: the program %s\n", describe_status(report->status).c_str());
          status = report->status == 0 ? 0 : 1;
          helper.stop(grace_s);
        }
        ended = ended || report->kind == HelperReport::Kind::ended;
      }
    }
  }
#ifdef STAND_IN_USES_MPI
  MPI_Request done;
  MPI_Ibcast(&status, 1, MPI_INT, 0, MPI_COMM_WORLD, &done);
  for (int over = 0; over == 0;) {
    MPI_Test(&done, &over, MPI_STATUS_IGNORE);
    if (over == 0) usleep(2000);
  }
  MPI_Finalize();
#endif
  if (rank != 0) helper.stop(0);
  helper.wait_report(5);
  end.ended(status, "");
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string verb = argv[1];
  try {
    return verb == "run" ? run(argc, argv) : launch(argc, argv, verb == "print");
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
