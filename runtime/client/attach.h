// How a training program finds the receiver of a `penstock serve` on its node: by the job's name and its local rank.
//
//   const std::string name = serving_name(job);                    // `name:` of the job file, or made from its path
//   Attached receiver = attach(name, job, program_place(current_environment()));
//   receiver.socket ...                                            // a client's end, speaking client_protocol.h
//
// The name is a meeting point in the abstract namespace: penstock/USER/serve/NAME/pLOCAL_RANK. Nothing is to unlink, no
//   secret is to pass on: only processes of the same user (or root) are talked to, on either side. Programs in other
//   namespaces of network or processes (a container of its own) do not see it.
// Thread-safety: all functions from any thread. Ownership: the caller's.
// Failure: Error(peer_lost) where nobody serves after a while, naming user, job, local rank and remedy; Error(usage)
//   where the program's RANK and WORLD_SIZE are not those of the receiver.
#pragma once

#include <functional>
#include <string>

#include "runtime/job/job.h"
#include "runtime/process/program_place.h"
#include "runtime/protocol/client_protocol.h"
#include "transport/unix_socket.h"

namespace penstock {

// Makes a program attach: "1"; "0" or nothing: not. DataLoaderOptions::attach comes before it.
inline constexpr const char* kAttachVariable = "PENSTOCK_ATTACH";

// Set by `penstock run` for the program: its command line's overrides, as a JSON list of "key.sub=value". They come
// before DataLoaderOptions::overrides, and count only together with PENSTOCK_RECEIVER.
inline constexpr const char* kOverridesVariable = "PENSTOCK_OVERRIDES";

// job.name, or the job file's name and a hash of its canonical path, so that two jobs of one user do not meet.
std::string serving_name(const Job& job);
std::string serving_socket(const std::string& name, int local_trainer);
// Is somebody serving this job on this node?
bool is_served(const std::string& name);

struct Attached {
  PacketSocket socket;
  ClientWelcome welcome;
};
// What a program hears of a wait. Both may be empty, and may throw to end it.
struct AttachCalls {
  std::function<void(const std::string&)> on_warning;  // once, where nobody serves for three seconds
  std::function<void()> while_waiting;                 // a few times a second
};
// Waits for a `penstock serve` that is just starting, half a minute at most (and trainer.timeout_s).
Attached attach(const std::string& name, const Job& job, const ProgramPlace& place, const AttachCalls& calls);

// Says hello to a receiver and waits for its welcome, so long.
ClientWelcome handshake(PacketSocket& socket, const std::string& token, Nanoseconds timeout_ns);

// `penstock serve --stop`: true once the job's ranks have said goodbye; false where nobody serves.
bool end_serving(const std::string& name, Nanoseconds timeout_ns);

}  // namespace penstock
