#include "runtime/receiver/heartbeats.h"

namespace penstock {

void Heartbeats::begin(Nanoseconds now) {
  if (spec_.silence_ns <= 0) return;
  if (!coordinates()) {
    silence_.watch(spec_.coordinator, now);
    return;
  }
  for (const PeerId receiver : spec_.receivers) {
    if (receiver != spec_.self) silence_.watch(receiver, now);
  }
}

void Heartbeats::beat(Nanoseconds now) {
  if (spec_.every_ns <= 0 || now - last_sent_ < spec_.every_ns) return;
  last_sent_ = now;
  send_alive();
}

std::optional<PeerLost> Heartbeats::tick(Nanoseconds now) {
  beat(now);
  if (const auto silent = silence_.tick(now)) return PeerLost{*silent, silence_.reason()};
  return std::nullopt;
}

void Heartbeats::send_alive() {
  if (!coordinates()) {
    send_(spec_.coordinator, Alive{});
    return;
  }
  for (const auto* peers : {&spec_.receivers, &spec_.loaders}) {
    for (const PeerId peer : *peers) {
      if (peer != spec_.self && dead_.count(peer) == 0) send_(peer, Alive{});
    }
  }
}

}  // namespace penstock
