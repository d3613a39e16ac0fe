// TCP connections of Open MPI 4 whose other end has died: they become connections to nobody, so that this rank goes on.
//
//   park_dead_connections();       // after MPI_Init, where Open MPI is not asked for fault tolerance (ULFM)
//
// Purpose: Open MPI 4 ends the process where a connection breaks while something is to be sent on it, or cannot be opened
//   again (mca_btl_tcp.so calls back with an error, and mca_pml_ob1.so answers with ompi_rte_abort, which does not
//   return). Between a loader's death and the moment that this rank hears of it a message may be on its way, so a job
//   with recovery would die with its loader now and then. Nothing of Open MPI can be asked to answer otherwise.
// How: the `penstock` program has readv, writev, connect and getsockopt of its own, which every library of the process
//   finds before the C library's. They do what those do, by the same system calls; but for a caller in mca_btl_tcp.so an
//   end or error that means "the other end is gone" puts a socket that nobody reads in the connection's place (dup2) and
//   says "try again later". What was to be sent waits for ever, as it does for a peer that is silent; deaths are told by
//   others (node_ring.h, heartbeats).
// Cost: two comparisons a call for everybody else, and one descriptor for each dead connection.
// Where the program is not `penstock` (a test's), or Open MPI's TCP is not in use, nothing is done.
// Thread-safety: any. Failure: none; without a descriptor to spare Open MPI sees what happened.
#pragma once

#include <cstdint>

namespace penstock::mpi {

void park_dead_connections();

}  // namespace penstock::mpi

// The program's half: whose calls are meant, by the addresses of the code that makes them.
extern "C" void penstock_park_connections_of(uintptr_t begin, uintptr_t end);
