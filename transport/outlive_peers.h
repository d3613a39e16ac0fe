// What Open MPI 4 does about a peer that has died, and that would end this rank too: undone.
//
//   outlive_peers();       // after MPI_Init, where Open MPI is not asked for fault tolerance (ULFM)
//
// Purpose: with --enable-recovery mpirun lets the other ranks live, but Open MPI 4's library ends them in two cases, now
//   and then: one loader in a hundred or two that are killed took rank 0 with it.
//   1. A TCP connection breaks while something is to be sent on it, or cannot be opened again, because a message was on its
//      way before this rank heard of the death: mca_btl_tcp.so reports an error, and mca_pml_ob1.so answers with
//      ompi_rte_abort.
//   2. The process manager tells of the death (PMIx event): ompi_errhandler_callback answers with ompi_mpi_abort.
//   Nothing of Open MPI can be asked to answer otherwise.
// How: the `penstock` program (launch/outlive_peers.cpp) defines functions that every library of the process finds
//   before those of the same names elsewhere. readv, writev, connect and getsockopt do what the C library's do, by the
//   same system calls. But for a caller in mca_btl_tcp.so, an end or an error that means "the other end is gone" puts a
//   socket that nobody reads in the connection's place (dup2) and returns "try again later". What was to be sent then
//   waits for ever, as it does for a peer that is silent; deaths are noticed elsewhere (node_ring.h, heartbeats).
//   ompi_mpi_abort does nothing for a caller in Open MPI's PMIx component, and for all others what it always did.
// Cost: two comparisons a call for everybody else, and one descriptor for each dead connection.
// Limits: Open MPI's components have to be files of their own (mca_btl_tcp.so, mca_pmix_*.so), as Debian and others build
//   them; a peer that dies within the handshake of a new connection (send, recv) may still take this rank along. Where the
//   program is not `penstock` (a test's) nothing is done.
// Thread-safety: any. Failure: none; without a descriptor to spare Open MPI sees what happened.
#pragma once

#include <cstdint>

namespace penstock::mpi {

void outlive_peers();

}  // namespace penstock::mpi

// The program's half: whose calls are meant, by the addresses of the code that makes them.
struct PenstockCode {
  uintptr_t begin;
  uintptr_t end;
};
extern "C" void penstock_outlive_peers(PenstockCode tcp, PenstockCode events);
