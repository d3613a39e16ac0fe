#include "runtime/simulate/fleet/fleet_links.h"

#include <algorithm>
#include <span>

namespace penstock {

FleetLinks::FleetLinks(const FleetSpec& spec, EventLoop& loop) : spec_(spec), loop_(loop) {
  const auto both_ways = [this](double bytes_per_s) {
    std::array<int, 2> links{-1, -1};
    if (bytes_per_s <= 0) return links;
    for (int& link : links) {
      link = network_.add_link(bytes_per_s);
      capacity_.push_back(bytes_per_s);
    }
    return links;
  };
  for (const FleetNode& node : spec_.nodes) nics_.push_back(both_ways(node.bytes_per_s));
  for (const FleetRack& rack : spec_.racks) uplinks_.push_back(both_ways(rack.bytes_per_s));
}

void FleetLinks::chunk(const Route& route, int64_t bytes, uint32_t lease) {
  if (route.from_node == route.to_node) {
    message(route.from_node, route.to_node, [this, lease] { on_arrived_(lease); });
    return;
  }
  bytes_ += bytes;
  const uint64_t name = (uint64_t{static_cast<uint32_t>(route.loader)} << 32) | static_cast<uint32_t>(route.receiver);
  Connection& connection = connections_[name];
  connection.route = route;
  connection.chunks.push_back({lease, bytes});
  if (connection.chunks.size() == 1) begin(name);
}

void FleetLinks::begin(uint64_t name) {
  const Connection& connection = connections_.at(name);
  const Route& route = connection.route;
  std::array<int, 4> over{};
  size_t count = 0;
  const auto add = [&](int link) {
    if (link >= 0) over[count++] = link;
  };
  const auto rack_of = [this](int node) { return static_cast<size_t>(spec_.nodes[static_cast<size_t>(node)].rack); };
  add(nics_[static_cast<size_t>(route.from_node)][0]);
  if (!uplinks_.empty() && rack_of(route.from_node) != rack_of(route.to_node)) {
    add(uplinks_[rack_of(route.from_node)][0]);
    add(uplinks_[rack_of(route.to_node)][1]);
  }
  add(nics_[static_cast<size_t>(route.to_node)][1]);
  network_.begin(loop_.now(), name, connection.chunks.front().bytes, std::span(over).first(count));
  watch();
}

// One event stands for the whole network: that of the flow which is through first. Others may begin and change that, so
// it looks again when it happens.
void FleetLinks::watch() {
  const auto next = network_.next_finish();
  if (!next || (watched_ >= 0 && watched_ <= *next)) return;
  watched_ = *next;
  loop_.at(*next, [this, when = *next] {
    if (watched_ != when) return;  // an earlier one was put before it
    watched_ = -1;
    for (auto first = network_.next_finish(); first && *first <= loop_.now(); first = network_.next_finish()) {
      const uint64_t name = network_.finish(*first);
      Connection& connection = connections_.at(name);
      const uint32_t lease = connection.chunks.front().lease;
      connection.chunks.pop_front();
      message(connection.route.from_node, connection.route.to_node, [this, lease] { on_arrived_(lease); });
      while (!connection.chunks.empty() && goes_on_ && !goes_on_(connection.chunks.front().lease)) {
        const uint32_t lost = connection.chunks.front().lease;
        connection.chunks.pop_front();
        on_lost_(lost);
      }
      if (connection.chunks.empty()) {
        connections_.erase(name);  // of so many pairs few have something under route
      } else {
        begin(name);
      }
      on_sent_(lease);
    }
    watch();
  });
}

double FleetLinks::busiest(Nanoseconds took_ns) const {
  double most = 0;
  for (size_t link = 0; link < capacity_.size() && took_ns > 0; ++link) {
    most = std::max(most, network_.carried_bytes(static_cast<int>(link)) / capacity_[link] / as_seconds(took_ns));
  }
  return most;
}

}  // namespace penstock
