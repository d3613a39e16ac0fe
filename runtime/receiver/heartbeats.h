// Heartbeats between the ranks of trainers: says that this one lives, and notices which other has fallen silent.
//
//   Heartbeats heartbeats({.self = 1, .coordinator = 0, .receivers = receivers, .loaders = loaders,
//                          .every_ns = kSecond, .silence_ns = 10 * kSecond}, send);
//   heartbeats.begin(now);                              // from now on the others are expected to say something
//   heartbeats.received(peer, now);                     // at every message, whatever it says
//   if (const auto lost = heartbeats.tick(now)) ...     // once for each that fell silent; several times a second
//
// Which process reports to which, and which one misses it (Alive, protocol/messages.h):
//
//   coordinator's receiver ──Alive──▶ every other receiver and loader  misses: the other receivers
//   any other receiver     ──Alive──▶ the coordinator                  misses: the coordinator, after twice the limit
//
// Loaders are not missed here: the balancer has their heartbeats and leases. A trainer's rank that is gone without a
//   word would be waited for by the other trainers' programs for ever, and one that lost the coordinator would wait for
//   batches. Twice the wait limit, so that the coordinator, which knows more, names the lost rank first.
// Between threads of one process both times are 0: nothing is said, and silence means nothing.
// Thread-safety: the receiver's event loop alone. Failure: none; the caller decides what a silence means.
#pragma once

#include <functional>
#include <optional>
#include <set>
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
    std::vector<PeerId> receivers;  // of all ranks; the coordinator's receiver knows them, others need not
    std::vector<PeerId> loaders;
    Nanoseconds every_ns = 0;    // between two of this rank's own; 0: it says nothing
    Nanoseconds silence_ns = 0;  // after which somebody is missed; 0: nobody is
  };
  using Send = std::function<void(PeerId, const ControlMessage&)>;

  Heartbeats(Spec spec, Send send) : spec_(std::move(spec)), send_(std::move(send)), silence_(wait_limit()) {}

  void begin(Nanoseconds now);
  void received(PeerId peer, Nanoseconds now) { silence_.received(peer, now); }
  void dead(PeerId peer) { dead_.insert(peer); }  // it is told nothing more
  void beat(Nanoseconds now);                     // says what is due
  // The same, and names one that has been silent for too long, with the reason.
  std::optional<PeerLost> tick(Nanoseconds now);

 private:
  bool coordinates() const noexcept { return spec_.self == spec_.coordinator; }
  Nanoseconds wait_limit() const noexcept { return coordinates() ? spec_.silence_ns : 2 * spec_.silence_ns; }
  void send_alive();

  Spec spec_;
  Send send_;
  SilenceWatch silence_;
  std::set<PeerId> dead_;
  Nanoseconds last_sent_ = 0;
};

}  // namespace penstock
