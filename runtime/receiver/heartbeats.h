// Heartbeats between the ranks of trainers: says that this one lives, and notices which other has fallen silent.
//
//   Heartbeats heartbeats({.self = 1, .coordinator = 0, .ports = ports, .loaders = loaders,
//                          .every_ns = kSecond, .silence_ns = 10 * kSecond}, send);
//   heartbeats.begin(now);                              // from now on the others are expected to say something
//   heartbeats.heard(peer, now);                        // at every message, whatever it says
//   if (const auto lost = heartbeats.tick(now)) ...     // once for each that fell silent; several times a second
//
// Who tells whom, and who is missed (Alive, protocol/messages.h):
//
//   coordinator's port ──Alive──▶ every other port and loader      misses: the other ports
//   any other port     ──Alive──▶ the coordinator                  misses: the coordinator, with twice the patience
//
// Loaders are not missed here: the balancer has their heartbeats and leases. A trainer's rank that is gone without a word
//   would be waited for by the other trainers' programs for ever, and one that lost the coordinator would wait for batches.
//   Twice the patience, because the coordinator says nothing while it draws the permutation of a large dataset.
// Between threads of one process both times are 0: nothing is said, and silence means nothing.
// Thread-safety: the port's event loop alone. Failure: none; the caller decides what a silence means.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/protocol/messages.h"
#include "runtime/protocol/silence.h"
#include "transport/transport.h"

namespace penstock {

class Heartbeats {
 public:
  struct Spec {
    PeerId self = 0;
    PeerId coordinator = 0;
    std::vector<PeerId> ports;    // of all ranks; the coordinator's port knows them, others need not
    std::vector<PeerId> loaders;
    Nanoseconds every_ns = 0;     // between two of this rank's own; 0: it says nothing
    Nanoseconds silence_ns = 0;   // after which somebody is missed; 0: nobody is
  };
  using Send = std::function<void(PeerId, const ControlMessage&)>;

  Heartbeats(Spec spec, Send send) : spec_(std::move(spec)), send_(std::move(send)), silence_(patience()) {}

  void begin(Nanoseconds now);
  void heard(PeerId peer, Nanoseconds now) { silence_.heard(peer, now); }
  // Says what is due, and names one that has been silent for too long, with the reason.
  std::optional<PeerLost> tick(Nanoseconds now);

 private:
  bool coordinates() const noexcept { return spec_.self == spec_.coordinator; }
  Nanoseconds patience() const noexcept { return coordinates() ? spec_.silence_ns : 2 * spec_.silence_ns; }
  void say();

  Spec spec_;
  Send send_;
  SilenceWatch silence_;
  Nanoseconds last_said_ = 0;
};

}  // namespace penstock
