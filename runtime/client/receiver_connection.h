// How a program meets the receiver that feeds it, and reads its job file on the way.
//
//   // its command line may change the job: it is read here
//   ReceiverConnection connection = connect_receiver(read, options);
//   // once the program's split is right
//   if (connection.origin == ReceiverOrigin::embedded) load_here(connection, options);
//   ClientSession session(std::move(connection.socket), …);
//
//   options.receiver                                      joined     the program is an MPI rank (ranks/joined_rank.h)
//   PENSTOCK_RECEIVER is set (`penstock run` started it)  run        that socket, with PENSTOCK_TOKEN
//   options.attach, or PENSTOCK_ATTACH=1                  attached   a `penstock serve` of this job (attach.h)
//   otherwise                                             embedded   loader and receiver in threads of this process
//
// Overrides: those of the command line of `penstock run` or `serve` come first, then the program's own.
// Thread-safety: all functions from any thread. Ownership: the caller's; the world is shared with the program's other
//   loaders (embedded.h). Failure: what read() throws; Error(peer_lost) where the receiver is not there or another
//   user's; Error(usage) as attach() and embedded_place() do, or for a PENSTOCK_ATTACH that is neither 0 nor 1.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/client/data_loader.h"
#include "runtime/embedded/embedded.h"
#include "runtime/job/job.h"
#include "transport/unix_socket.h"

namespace penstock {

// Where the receiver comes from.
enum class ReceiverOrigin { joined, run, attached, embedded };

struct ReceiverConnection {
  ReceiverOrigin origin = ReceiverOrigin::embedded;
  Job job;
  PacketSocket socket;                 // connected; of an embedded world from load_here() on
  std::shared_ptr<ReceiverHost> host;  // where the receiver is in this process
};

// The job with these overrides, from wherever it comes.
using JobMaker = std::function<Job(const std::vector<std::string>& overrides)>;

ReceiverConnection connect_receiver(const JobMaker& read, const DataLoaderOptions& options);
void load_here(ReceiverConnection& connection, const DataLoaderOptions& options);

// For a program that loads for itself and did not say that it wants to: "`penstock serve` of this job is running …", or
// nothing.
std::string unused_server(const Job& job, const DataLoaderOptions& options);

// Whose messages say more when the receiver goes away; nothing where it is in this process.
std::string server_name(ReceiverOrigin origin);

}  // namespace penstock
