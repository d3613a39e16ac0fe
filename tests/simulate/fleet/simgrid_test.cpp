// Fair sharing against SimGrid's, on 20 random topologies: nodes with NICs, racks with uplinks, flows that begin at any
// time. SimGrid's model of flows has been compared with packet-level simulators and with real networks (Velho, Schnorr,
// Casanova and Legrand, "On the validity of flow-level TCP network models for grid and cloud simulations", 2013); of its
// TCP corrections (latency, window, cross traffic) none is on here, because fair_network.h has none.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/simulate/fleet/fair_network.h"
#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

namespace sg = simgrid::s4u;

struct Node {
  int rack = 0;
  double bytes_per_s = 0;
};

struct Flow {
  size_t from = 0;
  size_t to = 0;
  int64_t bytes = 0;
  Nanoseconds begin = 0;
};

struct Topology {
  std::vector<Node> nodes;
  std::vector<double> uplinks;  // by rack
  std::vector<Flow> flows;
};

Topology draw(SeededRandom& random) {
  Topology t;
  for (int64_t r = random.between(1, 4); r > 0; --r)
    t.uplinks.push_back(static_cast<double>(random.between(1, 40)) * 1.25e8);
  for (int64_t n = random.between(3, 16); n > 0; --n) {
    t.nodes.push_back(
        {static_cast<int>(random.below(std::ssize(t.uplinks))), static_cast<double>(random.between(1, 25)) * 1.25e8});
  }
  const int64_t nodes = std::ssize(t.nodes);
  for (int64_t f = random.between(10, 80); f > 0; --f) {
    const int64_t from = random.below(nodes);
    const int64_t to = (from + random.between(1, nodes - 1)) % nodes;
    t.flows.push_back({static_cast<size_t>(from), static_cast<size_t>(to), random.between(100'000, 50'000'000),
                       random.below(200 * kMillisecond)});
  }
  std::sort(t.flows.begin(), t.flows.end(), [](const Flow& a, const Flow& b) { return a.begin < b.begin; });
  return t;
}

// Where a flow goes: out of a NIC, up and down where the racks differ, into a NIC.
template <class Link>
std::vector<Link> way(const Topology& t, const Flow& flow, const std::vector<std::array<Link, 2>>& nics,
                      const std::vector<std::array<Link, 2>>& uplinks) {
  std::vector<Link> over{nics[flow.from][0]};
  const auto from = static_cast<size_t>(t.nodes[flow.from].rack), to = static_cast<size_t>(t.nodes[flow.to].rack);
  if (from != to) over.insert(over.end(), {uplinks[from][0], uplinks[to][1]});
  over.push_back(nics[flow.to][1]);
  return over;
}

std::vector<sg::LinkInRoute> in_route(const std::vector<const sg::Link*>& links) {
  std::vector<sg::LinkInRoute> route;
  for (const sg::Link* link : links) route.emplace_back(link);
  return route;
}

std::vector<double> by_us(const Topology& t) {
  FairNetwork network;
  std::vector<std::array<int, 2>> nics, uplinks;
  for (const Node& node : t.nodes)
    nics.push_back({network.add_link(node.bytes_per_s), network.add_link(node.bytes_per_s)});
  for (const double uplink : t.uplinks) uplinks.push_back({network.add_link(uplink), network.add_link(uplink)});
  std::vector<double> ends(t.flows.size());
  const auto until = [&](Nanoseconds limit) {
    for (auto next = network.next_finish(); next && *next <= limit; next = network.next_finish()) {
      const uint64_t id = network.finish(*next);
      ends[id] = as_seconds(*next);
    }
  };
  for (size_t i = 0; i < t.flows.size(); ++i) {
    until(t.flows[i].begin);
    network.begin(t.flows[i].begin, i, t.flows[i].bytes, way(t, t.flows[i], nics, uplinks));
  }
  until(std::numeric_limits<Nanoseconds>::max());
  return ends;
}

// A platform of its own for each topology, in one engine: SimGrid has one engine a process.
std::vector<std::vector<double>> by_simgrid(const std::vector<Topology>& topologies) {
  int argc = 1;
  char name[] = "simgrid_test";
  char* argv[] = {name, nullptr};
  sg::Engine engine(&argc, argv);
  for (const char* setting :
       {"network/model:CM02", "network/TCP-gamma:0", "network/weight-S:0", "network/crosstraffic:0",
        "network/bandwidth-factor:1", "network/latency-factor:1", "surf/precision:1e-9"}) {
    engine.set_config(setting);
  }
  auto* const root = sg::create_full_zone("root");
  std::vector<std::vector<double>> ends(topologies.size());
  for (size_t k = 0; k < topologies.size(); ++k) {
    const Topology& t = topologies[k];
    const std::string mine = std::to_string(k) + "-";
    std::vector<sg::Host*> hosts;
    std::vector<std::array<const sg::Link*, 2>> nics, uplinks;
    for (size_t n = 0; n < t.nodes.size(); ++n) {
      const std::string host = mine + "host" + std::to_string(n);
      hosts.push_back(root->create_host(host, 1e9)->seal());
      nics.push_back({root->create_link(host + "-out", t.nodes[n].bytes_per_s)->seal(),
                      root->create_link(host + "-in", t.nodes[n].bytes_per_s)->seal()});
    }
    for (size_t r = 0; r < t.uplinks.size(); ++r) {
      const std::string rack = mine + "rack" + std::to_string(r);
      uplinks.push_back({root->create_link(rack + "-up", t.uplinks[r])->seal(),
                         root->create_link(rack + "-down", t.uplinks[r])->seal()});
    }
    std::set<std::pair<size_t, size_t>> routes;
    ends[k].resize(t.flows.size());
    for (size_t i = 0; i < t.flows.size(); ++i) {
      const Flow& flow = t.flows[i];
      if (routes.insert({flow.from, flow.to}).second) {
        root->add_route(hosts[flow.from]->get_netpoint(), hosts[flow.to]->get_netpoint(), nullptr, nullptr,
                        in_route(way(t, flow, nics, uplinks)), false);
      }
      sg::Actor::create("flow", hosts[flow.from], [&ends, k, i, flow, hosts] {
        sg::this_actor::sleep_until(as_seconds(flow.begin));
        sg::Comm::sendto(hosts[flow.from], hosts[flow.to], static_cast<uint64_t>(flow.bytes));
        ends[k][i] = sg::Engine::get_clock();
      });
    }
  }
  root->seal();
  engine.run();
  return ends;
}

TEST_CASE("flows end when SimGrid says, within 5 % of their time, on 20 random topologies") {
  const uint64_t seed = 2025;
  MESSAGE("seed " << seed);
  SeededRandom random(seed);
  std::vector<Topology> topologies;
  for (int i = 0; i < 20; ++i) topologies.push_back(draw(random));
  const auto theirs = by_simgrid(topologies);
  double worst = 0, sum = 0;
  int64_t count = 0;
  for (size_t k = 0; k < topologies.size(); ++k) {
    const std::vector<double> ours = by_us(topologies[k]);
    for (size_t i = 0; i < ours.size(); ++i) {
      const double begin = as_seconds(topologies[k].flows[i].begin);
      REQUIRE(theirs[k][i] > begin);
      const double error = std::abs((ours[i] - begin) / (theirs[k][i] - begin) - 1);
      worst = std::max(worst, error);
      sum += error;
      ++count;
    }
  }
  MESSAGE(count << " flows: error " << sum / static_cast<double>(count) << " in the mean, " << worst << " at most");
  CHECK(worst <= 0.05);
}

}  // namespace
}  // namespace penstock
