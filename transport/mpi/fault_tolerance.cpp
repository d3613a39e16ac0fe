#include "transport/mpi/fault_tolerance.h"

#include <dlfcn.h>

#include <numeric>

#include "transport/mpi/mpi_call.h"

namespace penstock::mpi {
namespace {

constexpr int kProcessFailed = 75;  // in Open MPI 5; then "pending" and "revoked"
constexpr int kRevoked = 77;

bool says(int code, const char* name) {
  return error_text(code).find(name) != std::string::npos;
}

}  // namespace

FaultTolerance FaultTolerance::find() {
  FaultTolerance found;
  const auto acknowledge = reinterpret_cast<Acknowledge>(::dlsym(RTLD_DEFAULT, "MPIX_Comm_failure_ack"));
  const auto acknowledged = reinterpret_cast<Acknowledged>(::dlsym(RTLD_DEFAULT, "MPIX_Comm_failure_get_acked"));
  if (acknowledge == nullptr || acknowledged == nullptr) return found;
  if (!says(kProcessFailed, "MPI_ERR_PROC_FAILED") || !says(kRevoked, "MPI_ERR_REVOKED")) return found;
  found.acknowledge_ = acknowledge;
  found.acknowledged_ = acknowledged;
  return found;
}

bool FaultTolerance::process_failed(int code) const {
  if (!there() || code == MPI_SUCCESS) return false;
  int what = code;
  (void)MPI_Error_class(code, &what);
  return what >= kProcessFailed && what <= kRevoked;
}

std::vector<int> FaultTolerance::acknowledge(MPI_Comm comm) const {
  std::vector<int> ranks;
  MPI_Group failed = MPI_GROUP_NULL;
  if (acknowledge_(comm) != MPI_SUCCESS || acknowledged_(comm, &failed) != MPI_SUCCESS) return ranks;
  MPI_Group all = MPI_GROUP_NULL;
  int count = 0;
  if (MPI_Comm_group(comm, &all) == MPI_SUCCESS && MPI_Group_size(failed, &count) == MPI_SUCCESS && count > 0) {
    std::vector<int> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    ranks.resize(numbers.size(), MPI_UNDEFINED);
    (void)MPI_Group_translate_ranks(failed, count, numbers.data(), all, ranks.data());
    std::erase(ranks, MPI_UNDEFINED);
  }
  if (all != MPI_GROUP_NULL) (void)MPI_Group_free(&all);
  (void)MPI_Group_free(&failed);
  return ranks;
}

}  // namespace penstock::mpi
