// What joins the ranks of an MPI job: shared memory between those of a node, MPI between the others, and the ring of
// sockets that tells of deaths on a node.
//
//   std::shared_ptr<NodeRing> ring;
//   std::unique_ptr<Endpoint> endpoint = make_endpoint(job, session, members, self, ring);   // collective
//
//   ReceiverOptions options = receiver_options(job);
//   place_receiver_in_world(job, members, self, options);      // a trainer's: who else there is
//
// Collective: every rank calls make_endpoint() with the same job.transport. `ring` is set where this node has other
//   ranks; it is left by ring->leave() when the job is over.
// Failure: Error(runtime | peer_lost) from the transports. Thread-safety: one thread.
#pragma once

#include <memory>
#include <vector>

#include "runtime/job/job.h"
#include "runtime/process/placement.h"
#include "runtime/receiver/receiver_options.h"
#include "transport/mpi_component.h"
#include "transport/node_ring.h"
#include "transport/transport.h"

namespace penstock {

std::unique_ptr<Endpoint> make_endpoint(const Job& job, MpiSession& session, const std::vector<Member>& members,
                                        int self, std::shared_ptr<NodeRing>& ring);

// Which replica the trainer belongs to: with roles.ranks_per_replica several consecutive ones get the same data.
void place_receiver(const Job& job, int trainer, int trainers, ReceiverOptions& options);

void place_receiver_in_world(const Job& job, const std::vector<Member>& members, int self, ReceiverOptions& options);

// After this long a rank that says nothing is given up.
Nanoseconds silence_limit_ns(const Job& job);

}  // namespace penstock
