// The variables a training program gets: its place among the trainers, and nothing that tells it another one.
//
//   spec.environment = trainer_environment(inherited, place);
//
// Purpose: the program is started under mpirun or srun, whose ranks count loaders too. Frameworks look at OMPI_*, PMI*
//   and SLURM_* and would take a wrong rank, or talk to a process manager that does not know them; those variables go.
//   What names the job (SLURM_JOB_ID, SLURM_JOB_NODELIST, …) stays: cluster tools need it.
// Pure; safe anywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct TrainerPlace {
  int rank = 0;        // among all trainers
  int world_size = 1;  // trainers
  int local_rank = 0;  // among this node's trainers
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";  // the host of trainer 0
  int master_port = 29500;
  // PENSTOCK_RECEIVER: where this trainer's receiver listens, "@penstock/…" for an abstract socket
  std::string receiver;
  std::string token;  // PENSTOCK_TOKEN: shown by the client when it connects
  std::string job;    // PENSTOCK_JOB: path of the job file, or its name
};

// "NAME=value" entries in, "NAME=value" entries out: the inherited ones in their order, without those removed or
// replaced, then ours.
std::vector<std::string> trainer_environment(const std::vector<std::string>& inherited, const TrainerPlace& place);

// Would the variable give a framework a wrong rank, size or step?
bool is_launcher_variable(std::string_view name);

std::vector<std::string> inherited_environment();  // of this process, as entries

}  // namespace penstock
