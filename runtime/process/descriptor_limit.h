// How many descriptors (files, sockets, memory) this process may have open, and the least that a job needs.
//
//   allow_descriptors(descriptors_of_node(4), "a job of 4 ranks on this node");   // before anything is opened or forked
//
// A process that runs out of them in the middle fails wherever it happens to be, and mpirun waits for ever. The soft limit is
// raised no further than is needed: some programs close every number up to it, and select() knows 1024.
// Thread-safety: none; processes that are started later inherit it. Failure: Error(runtime) where the hard limit is too low.
#pragma once

#include <string>

namespace penstock {

void allow_descriptors(int needed, const std::string& who);

// Measured, with room for what comes and goes. In one process a trainer has its receiver, client, helper and program.
constexpr int descriptors_of_one_process(int trainers) {
  return 24 + 10 * trainers;
}
// What mpirun needs, and each of so many ranks on one node.
constexpr int descriptors_of_node(int ranks) {
  return 48 + 9 * ranks / 2;
}

}  // namespace penstock
