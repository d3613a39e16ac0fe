// mpirun, which starts the ranks, and the MPI component, which they speak through: two things that may not fit.
#include "launch/findings.h"
#include "launch/launch_line.h"
#include "runtime/base/error.h"
#include "transport/mpi_component.h"

namespace penstock {
namespace {

std::string version_of(const MpiFound& mpi) {
  return std::to_string(mpi.major) + "." + std::to_string(mpi.minor) + "." + std::to_string(mpi.patch);
}

// "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, ..." without all that follows.
std::string first_words(const std::string& library) {
  return library.substr(0, library.find_first_of(",\n"));
}

}  // namespace

void find_mpi(Findings& findings) {
  std::string version;
  try {
    const MpiFound mpi = find_mpirun();
    version = version_of(mpi);
    findings.push_back({"mpirun", "Open MPI " + version});
  } catch (const Error& error) {
    findings.push_back({"mpirun", error.message(), FindingLevel::note,
                        "jobs of one process, and `penstock serve`, work without; " + error.remedy()});
  }
  try {
    const MpiAbout about = about_mpi();
    Finding finding{"MPI component", "loads, with " + first_words(about.library)};
    if (!version.empty() && about.library.find(version) == std::string::npos) {
      finding.level = FindingLevel::problem;
      finding.text += ", but mpirun is " + version;
      finding.remedy = "put the mpirun of that MPI first in PATH, or build penstock against the other";
    }
    findings.push_back(finding);
    if (about.cuda == MpiAbout::Cuda::unknown) return;
    findings.push_back(
        {"MPI and CUDA", about.cuda == MpiAbout::Cuda::yes
                             ? "takes pointers to a GPU's memory"
                             : "takes no pointers to a GPU's memory: batches travel through this machine's"});
  } catch (const Error& error) {
    findings.push_back({"MPI component", error.message(), FindingLevel::note, error.remedy()});
  }
}

}  // namespace penstock
