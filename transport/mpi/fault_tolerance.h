// What Open MPI 5 can tell of processes that failed (ULFM: mpirun --with-ft ulfm), looked up in the library that is
// loaded, because one build serves Open MPI 4, which has nothing of it, and 5.
//
//   const FaultTolerance ulfm = FaultTolerance::find();     // after MPI_Init
//   if (ulfm.process_failed(code)) for (const int rank : ulfm.acknowledge(comm)) ...   // all that have failed
//
// Without it, or where mpirun was not asked for it, no call ever says that a process failed, and process_failed() is
// false for every code.
// Names: MPIX_Comm_failure_ack, MPIX_Comm_failure_get_acked ("User Level Failure Mitigation", MPI Forum; the first has a
//   newer name in MPI 5 drafts). The error codes are no macros in 4.1's mpi.h; Open MPI 5 has 75 to 77 for them, and what
//   MPI_Error_string says of them is compared before they are believed.
// Thread-safety: of the thread that makes all MPI calls. Failure: none.
#pragma once

#include <mpi.h>

#include <vector>

namespace penstock::mpi {

class FaultTolerance {
 public:
  static FaultTolerance find();

  bool there() const noexcept { return acknowledge_ != nullptr; }
  // "a process failed", "... during a receive from anybody", "the communicator was revoked".
  bool process_failed(int code) const;
  // From now on calls with MPI_ANY_SOURCE go on without those that have failed, whose ranks are returned.
  std::vector<int> acknowledge(MPI_Comm comm) const;

 private:
  using Acknowledge = int (*)(MPI_Comm);
  using Acknowledged = int (*)(MPI_Comm, MPI_Group*);
  Acknowledge acknowledge_ = nullptr;
  Acknowledged acknowledged_ = nullptr;
};

}  // namespace penstock::mpi
