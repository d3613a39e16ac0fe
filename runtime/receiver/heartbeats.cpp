#include "runtime/receiver/heartbeats.h"

namespace penstock {

void Heartbeats::begin(Nanoseconds now) {
  if (spec_.silence_ns <= 0) return;
  if (!coordinates()) {
    silence_.watch(spec_.coordinator, now);
    return;
  }
  for (const PeerId port : spec_.ports) {
    if (port != spec_.self) silence_.watch(port, now);
  }
}

std::optional<PeerLost> Heartbeats::tick(Nanoseconds now) {
  if (spec_.every_ns > 0 && now - last_said_ >= spec_.every_ns) {
    last_said_ = now;
    say();
  }
  if (const auto silent = silence_.tick(now)) return PeerLost{*silent, silence_.reason()};
  return std::nullopt;
}

void Heartbeats::say() {
  if (!coordinates()) {
    send_(spec_.coordinator, Alive{});
    return;
  }
  for (const auto* peers : {&spec_.ports, &spec_.loaders}) {
    for (const PeerId peer : *peers) {
      if (peer != spec_.self) send_(peer, Alive{});
    }
  }
}

}  // namespace penstock
