// The links between the nodes of a simulated fleet: messages, which are small, and chunks, which share links.
//
//   FleetLinks links(spec, loop);
//   links.message(from_node, to_node, [=] { ... });            // after their latency, in order
//   links.chunk({from_node, to_node, loader, receiver}, bytes, lease);   // on_sent(lease), later on_arrived(lease)
//
// What travels within a node costs overhead.local_message_ns, and its chunks stay where they are (shared memory). Between
//   nodes chunks of one loader to one receiver go one after the other, as over their connection; connections share the
//   NICs and uplinks fairly (fair_network.h). Messages do not wait behind chunks. What is under way when its loader
//   dies, or is stopped, still arrives.
// Thread-safety: none. Ownership: the loop must outlive it, and what is passed to message() lives in the loop.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/simulate/event_loop.h"
#include "runtime/simulate/fleet/fair_network.h"
#include "runtime/simulate/fleet/fleet_spec.h"

namespace penstock {

class FleetLinks {
 public:
  using Call = std::function<void(uint32_t lease)>;
  FleetLinks(const FleetSpec& spec, EventLoop& loop);

  void on_sent(Call call) { on_sent_ = std::move(call); }  // its sender has its chunk buffer back; other nodes only
  void on_arrived(Call call) { on_arrived_ = std::move(call); }
  // Asked before a chunk that waited for its connection begins: its sender may have died. What does not go on is lost.
  void goes_on(std::function<bool(uint32_t lease)> asks) { goes_on_ = std::move(asks); }
  void on_lost(Call call) { on_lost_ = std::move(call); }

  Nanoseconds latency_ns(int from, int to) const {
    if (from == to) return spec_.overhead.local_message_ns;
    return (spec_.nodes[static_cast<size_t>(from)].latency_ns + spec_.nodes[static_cast<size_t>(to)].latency_ns) / 2;
  }
  template <class Event>
  void message(int from, int to, Event&& event) {
    loop_.after(latency_ns(from, to), std::forward<Event>(event));
  }

  struct Route {
    int from_node = 0;
    int to_node = 0;
    int32_t loader = 0;
    int32_t receiver = 0;
  };
  void chunk(const Route& route, int64_t bytes, uint32_t lease);

  int64_t bytes_between_nodes() const noexcept { return bytes_; }
  // The share of its capacity that the busiest NIC or uplink used during `took_ns`; 0 where nothing limits.
  double busiest(Nanoseconds took_ns) const;

 private:
  struct Waiting {
    uint32_t lease = 0;
    int64_t bytes = 0;
  };
  struct Connection {
    Route route;
    std::deque<Waiting> chunks;  // the first one is under route
  };
  void begin(uint64_t connection);
  void watch();

  const FleetSpec& spec_;
  EventLoop& loop_;
  FairNetwork network_;
  std::vector<std::array<int, 2>> nics_;                  // by node: out, in; -1: no limit
  std::vector<std::array<int, 2>> uplinks_;               // by rack
  std::vector<double> capacity_;                          // by link
  std::unordered_map<uint64_t, Connection> connections_;  // looked up, never walked
  Nanoseconds watched_ = -1;                              // an event is there for it
  int64_t bytes_ = 0;
  Call on_sent_;
  Call on_arrived_;
  Call on_lost_;
  std::function<bool(uint32_t lease)> goes_on_;
};

}  // namespace penstock
