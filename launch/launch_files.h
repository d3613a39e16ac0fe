// What starts a job in a cluster, written from the job: a script for Slurm's sbatch, a manifest for Kubernetes, a Dockerfile.
//
//   const LaunchFile file = …;                       // the command, and on how many nodes of which kind
//   std::puts(slurm_script(file).c_str());
//
// In each of them `penstock launch --run` runs the job, so that exit codes, grace and last line are those of a job without
// a cluster. Slurm: one task a node, the first of which launches (batch_nodes.h). Kubernetes: an MPIJob of Kubeflow's
// mpi-operator, whose workers are the nodes that train; it knows one kind of worker, so nodes that only load are a
// StatefulSet beside it, with the MPIJob's ssh key.
// Pure. Failure: Error(usage) for names that cannot stand in such a file.
#pragma once

#include <string>
#include <vector>

namespace penstock {

// Nodes that are all alike.
struct NodeGroup {
  int nodes = 1;
  int trainers = 0;  // of each node
  int loaders = 0;
};

struct LaunchFile {
  std::string name;                  // of the job
  std::string job;                   // path of the job file, as the command has it
  std::string job_text;              // what stands in it
  std::vector<std::string> command;  // penstock launch --run JOB …: what --run takes, without hosts
  std::vector<std::string> program;  // after --
  std::vector<NodeGroup> groups;     // one, or trainers' and loaders'
  std::string folder;                // where it runs, absolute
  std::string image;                 // of a container; empty: none
  int gpus = 0;                      // of each node that trains
  int loader_threads = 2;
  double loader_memory_gb = 2;  // all that a loader takes
  double grace_s = 5;
};

// sbatch takes it. An image that ends in .sif, or has a scheme as docker://, is Apptainer's; any other one pyxis's.
std::string slurm_script(const LaunchFile& file);
// kubectl takes it: ConfigMap, MPIJob, and Service and StatefulSet where nodes only load.
std::string kubernetes_manifest(const LaunchFile& file);
// Its context is a clone of penstock; with GPUs it compiles the CUDA kernels.
std::string dockerfile(const LaunchFile& file);

}  // namespace penstock
