// The nodes of a batch job as hosts of mpirun, where neither ssh nor srun reaches them from: in a job's container there is
// no srun, and in many clusters no ssh.
//
//   // the script of `penstock launch --slurm`: one task a node, and an empty file for each in a folder that all nodes see
//   export PENSTOCK_NODES=$(mktemp -d "$PWD/penstock-nodes-XXXXXX"); touch "$PENSTOCK_NODES"/node{0..2}
//   exec srun … penstock launch --run job.yaml --trainer-nodes 1:8 --loader-nodes 2:16 -- ./train
//
//   const auto place = batch_place(environment);            // in `launch --run`: which of the nodes this is
//   if (place->node > 0) return serve_node(*place, grace_s);  // starts what mpirun wants here, until that has ended
//   BatchNodes nodes(*place);                               // the first node: all names, and what mpirun calls for ssh
//
// Purpose: every node writes its host name into its file. mpirun is given an agent in the place of ssh that writes the
//   daemon's command line into the file of the host named, where that node reads it. The files are there from the
//   beginning and opened for each look, because an NFS client looks anew only at what is opened.
// Ends: the first node's task removes the folder when the job has ended; the file `pid` there is what the script signals to
//   end it in good order. Another node's task ends with the last process that descends from it: scancel signals every
//   process of a job at once, and Slurm kills what is left on a node whose task has ended, so the task has to stay while
//   programs have their grace.
// Safety: what stands in the files is executed, so the folder must be this user's and nobody else's (0700).
// Thread-safety: one thread; serve_node() makes this process the parent of all orphans below it.
// Failure: Error(usage) for a folder or tasks that do not fit, Error(peer_lost) naming the nodes that were not heard of
//   within kMeet_s.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

inline constexpr const char* kNodesVariable = "PENSTOCK_NODES";

struct BatchPlace {
  std::string folder;
  int node = 0;
  int nodes = 1;
};

// Nothing where kNodesVariable is not set.
std::optional<BatchPlace> batch_place(const std::map<std::string, std::string>& environment);

// The first node's view of all of them. The constructor waits for the others, and writes the agent.
class BatchNodes {
 public:
  static constexpr double kMeet_s = 600;  // nodes may fetch a container's image first

  explicit BatchNodes(BatchPlace place, double limit_s = kMeet_s);
  ~BatchNodes();
  BatchNodes(const BatchNodes&) = delete;
  BatchNodes& operator=(const BatchNodes&) = delete;

  const std::vector<std::string>& names() const noexcept { return names_; }
  std::string agent() const;  // called as ssh is: HOST COMMAND…

 private:
  struct Announced {
    BatchPlace place;
  };
  explicit BatchNodes(Announced announced) : place_(std::move(announced.place)) {}

  BatchPlace place_;
  std::vector<std::string> names_;
};

// The exit code for this node's task. `grace_s` is the programs' (trainer.grace_s).
int serve_node(const BatchPlace& place, double grace_s);

}  // namespace penstock
