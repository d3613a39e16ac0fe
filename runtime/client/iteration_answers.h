// The answers to a client's questions for its next batches: asked for, come early, or of iterations that are over.
//
//   // it came while somebody waited for another iteration
//   if (auto answer = answers.take(iteration)) return *answer;
//   if (answers.ask(iteration)) send(ClientNext{iteration});      // unless that was done before
//   if (const uint64_t whose = iteration_of(message)) ...         // a message that is such an answer
//   answers.arrived(iteration);                                   // ours, or else:
//   if (const auto back = answers.keep(whose, message)) send(*back);
//   answers.stop(iteration);                                      // the iteration is over
//   for (const ClientRelease& back : answers.drop_stopped()) send(back);
//
// The states of one iteration:
//
//   nothing --ask()--> asked --arrived()--> nothing         A wait that is interrupted leaves its question asked; the
//                        |                                  next one does not ask again, so no batch is lost.
//                        '--keep()--> kept --take()--> nothing
//   stop() in `asked`: what keep() would have kept goes back at once. In `kept`: it goes back with drop_stopped().
//
// Invariant: a batch that came for nobody goes back to the receiver; a batch buffer must not stay held by an iteration
// that is over. Thread-safety: none; ClientSession guards it. Ownership: the kept answers. Failure: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "runtime/protocol/client_protocol.h"

namespace penstock {

// The iteration whose ClientNext this message answers; 0: none.
uint64_t iteration_of(const ClientMessage& message);

class IterationAnswers {
 public:
  bool ask(uint64_t iteration) { return asked_.insert(iteration).second; }
  std::optional<ClientMessage> take(uint64_t iteration);
  void arrived(uint64_t iteration) { asked_.erase(iteration); }
  std::optional<ClientRelease> keep(uint64_t iteration, ClientMessage answer);

  void stop(uint64_t iteration) { stopped_.insert(iteration); }
  std::vector<ClientRelease> drop_stopped();

 private:
  std::set<uint64_t> asked_;
  std::map<uint64_t, ClientMessage> kept_;
  std::set<uint64_t> stopped_;  // with an answer under way, or kept
};

}  // namespace penstock
