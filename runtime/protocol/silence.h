// Finds peers that have been silent for too long.
//
//   SilenceWatch silence(10 * kSecond);
//   silence.watch(peer, now);                        // from now on it is expected to say something
//   silence.received(peer, now);                     // whatever it said
//   if (const auto peer = silence.tick(now)) ...     // once for each that fell silent; often, from the event loop
//
// Purpose: a transport between nodes does not tell that a peer is gone when its node or the network is (MPI over TCP
//   waits for it for a quarter of an hour). Ranks that are waited for without limit say Alive from time to time, and
//   this notices when they do not.
// A loop that itself stood still (a stopped process, a long computation) has not listened meanwhile: the time between
//   two ticks that lie more than half the limit apart counts as heard, so that nobody is given up for what waits
//   unread. Once the limit has been credited so, the rest counts as silence until the peer says something: a loop whose
//   turns always take long reads what waits between them, and must miss peers all the same.
// Thread-safety: one thread. Failure: none; the caller decides what a silence means.
#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "transport/transport.h"

namespace penstock {

class SilenceWatch {
 public:
  explicit SilenceWatch(Nanoseconds limit_ns) : limit_(limit_ns) {}

  std::string reason() const {
    char text[160];
    std::snprintf(text, sizeof text,
                  "nothing was heard of it for %g s; its node or the network to it is down, or the process is stopped",
                  as_seconds(limit_));
    return text;
  }
  void watch(PeerId peer, Nanoseconds now) { received_[peer] = {now, 0}; }
  void received(PeerId peer, Nanoseconds now) {
    if (const auto it = received_.find(peer); it != received_.end()) it->second = {now, 0};
  }
  std::optional<PeerId> tick(Nanoseconds now) {
    const Nanoseconds gap = ticked_ ? now - last_tick_ : 0;
    last_tick_ = now;
    ticked_ = true;
    for (auto& [peer, last] : received_) {
      if (gap <= limit_ / 2 || last.credited >= limit_) continue;
      const Nanoseconds credit = std::min(gap, now - last.at);  // it may have been heard since the last tick
      last.at += credit;
      last.credited += credit;
    }
    for (const auto& [peer, last] : received_) {
      if (now - last.at <= limit_) continue;
      const PeerId silent = peer;
      received_.erase(silent);
      return silent;
    }
    return std::nullopt;
  }

 private:
  struct LastReceived {
    Nanoseconds at = 0;        // when it last was, or counts as heard
    Nanoseconds credited = 0;  // since it last said something
  };

  Nanoseconds limit_;
  Nanoseconds last_tick_ = 0;
  bool ticked_ = false;
  std::map<PeerId, LastReceived> received_;
};

}  // namespace penstock
