// The splits that a receiver's clients have open: whose each is, what the coordinator said of it, and when it is
// closed.
//
//   OpenSplits splits(options, clients, messenger);
//   splits.open(connection, client_open);      // ClientOpen: asks the coordinator, or refuses at once
//   splits.opened(split_opened);               // its answers; the client receives them
//   splits.refused(split_refused);
//   const ReceiverSplit* split = splits.find_opened(id);
//   for (const int32_t id : splits.of(connection)) splits.close(id);     // the client has gone
//
//   none --open()--> asked --opened()--> opened --close()--> none      Each client's split has a number, never used twice;
//                      |                               ^               the client that opens the same one again gets
//                      '--refused(), or close()--------'               another.
//
// Invariant: a split, by name, is fed to one living process at a time. A second one that opens it is refused, by pid of
//   the first: both would take themselves for the same trainer, and share its data between them.
// Programs: under `penstock serve` they come and go, and the coordinator compares the n-th opening of one with the n-th
//   of another trainer's (replica_agreement.h); so openings are counted here, by program and name.
// Thread-safety: the receiver's event loop alone. Ownership: the splits; what the constructor takes must outlive it.
// Failure: what a client did wrong is its ClientRefused; opened() throws as complete() does (receiver_split.h).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/protocol/messages.h"
#include "runtime/receiver/client_connections.h"
#include "runtime/receiver/receiver_messenger.h"
#include "runtime/receiver/receiver_options.h"
#include "runtime/receiver/receiver_split.h"

namespace penstock {

class OpenSplits {
 public:
  // `clients` is only asked who they are.
  OpenSplits(const ReceiverOptions& options, const ClientConnections& clients, ReceiverMessenger& messenger)
      : options_(options), clients_(clients), messenger_(messenger) {}

  void open(int connection, const ClientOpen& message);
  void opened(const SplitOpened& message);
  void refused(const SplitRefused& message);
  // As ClientConnections::Handlers::program says it.
  void program_changed(int64_t number, int pid, bool came, int32_t living);
  // From now on people are not told of each program that goes: all are sent away.
  void serving_ends() { programs_noted_ = false; }

  std::vector<int32_t> of(int connection) const;
  void close(int32_t id);  // reports to the coordinator

  // References stay valid until close().
  const ReceiverSplit& at(int32_t id) const { return splits_.at(id); }
  const ReceiverSplit* find_opened(int32_t id) const;  // nullptr: there is none, or its dataset is not known yet

 private:
  const ReceiverSplit* fed_to_another(int connection, const std::string& name) const;
  void note_program(int pid, const std::string& what) const;

  const ReceiverOptions& options_;
  const ClientConnections& clients_;
  ReceiverMessenger& messenger_;
  std::map<int32_t, ReceiverSplit> splits_;
  int32_t next_ = 1;
  std::map<std::pair<int64_t, std::string>, int32_t> openings_;  // by program and split
  std::set<int64_t> attached_;                                   // programs that opened a split
  bool programs_noted_ = true;
};

}  // namespace penstock
