#include "runtime/simulate/fleet/fair_network.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

#include "runtime/base/error.h"

namespace penstock {

int FairNetwork::add_link(double bytes_per_s) {
  if (!(bytes_per_s > 0)) {
    throw Error(ErrorKind::usage, "a link carries more than 0 bytes a second",
                "leave a link without limit out of the network");
  }
  links_.push_back({.capacity = bytes_per_s / 1e9, .flows = {}});
  return static_cast<int>(links_.size() - 1);
}

void FairNetwork::begin(Nanoseconds now, uint64_t id, int64_t bytes, std::span<const int> over) {
  if (over.size() > kMostLinks)
    throw Error(ErrorKind::usage, "a flow goes over " + std::to_string(kMostLinks) + " links at most");
  for (const int link : over) {
    if (link >= 0 && static_cast<size_t>(link) < links_.size()) continue;
    throw Error(ErrorKind::usage, "there is no link " + std::to_string(link));
  }
  if (free_.empty()) {
    flows_.emplace_back();
    free_.push_back(static_cast<uint32_t>(flows_.size() - 1));
  }
  const uint32_t place = free_.back();
  free_.pop_back();
  Flow& flow = flows_[place];
  flow = {.id = id, .left = static_cast<double>(bytes), .bytes = bytes, .since = now, .finish = now, .used = true};
  flow.count = static_cast<uint8_t>(over.size());
  std::copy(over.begin(), over.end(), flow.links.begin());
  if (flow.count == 0 || bytes <= 0) {
    flow.count = 0;
    by_finish_.emplace(now, place);
    return;
  }
  flow.finish = kNotYet;
  by_finish_.emplace(flow.finish, place);
  for (const int link : over) links_[static_cast<size_t>(link)].flows.push_back(place);
  weigh(now, over);
}

std::optional<Nanoseconds> FairNetwork::next_finish() const {
  if (by_finish_.empty()) return std::nullopt;
  return by_finish_.begin()->first;
}

uint64_t FairNetwork::finish(Nanoseconds now) {
  const uint32_t place = by_finish_.begin()->second;
  by_finish_.erase(by_finish_.begin());
  Flow& flow = flows_[place];
  flow.used = false;
  free_.push_back(place);
  const std::span<const int> over(flow.links.data(), flow.count);
  for (const int number : over) {
    Link& link = links_[static_cast<size_t>(number)];
    link.carried += static_cast<double>(flow.bytes);
    link.flows.erase(std::find(link.flows.begin(), link.flows.end(), place));
  }
  const uint64_t id = flow.id;
  if (!over.empty()) weigh(now, over);
  return id;
}

double FairNetwork::rate_of(uint64_t id) const {
  for (const Flow& flow : flows_) {
    if (flow.used && flow.id == id) return flow.rate * 1e9;
  }
  return 0;
}

// Filling: all flows grow alike until a link is full; those over it are settled, and the others go on growing.
void FairNetwork::weigh(Nanoseconds now, std::span<const int> around) {
  ++mark_;
  reached_.clear();
  reached_links_.clear();
  const auto reach = [this](int number) {
    Link& link = links_[static_cast<size_t>(number)];
    if (link.mark == mark_) return;
    link.mark = mark_;
    link.left = link.capacity;
    link.unsettled = std::ssize(link.flows);
    if (!link.flows.empty()) reached_links_.push_back(number);
  };
  for (const int link : around) reach(link);
  for (size_t i = 0; i < reached_links_.size(); ++i) {
    for (const uint32_t place : links_[static_cast<size_t>(reached_links_[i])].flows) {
      Flow& flow = flows_[place];
      if (flow.mark == mark_) continue;
      flow.mark = mark_;
      flow.settled = false;
      reached_.push_back(place);
      for (size_t l = 0; l < flow.count; ++l) reach(flow.links[l]);
    }
  }

  // A link's share never falls while others are settled, so one whose share has grown since it was queued is queued anew.
  using Share = std::pair<double, int>;
  std::priority_queue<Share, std::vector<Share>, std::greater<>> fullest;
  const auto share = [this](int number) {
    const Link& link = links_[static_cast<size_t>(number)];
    return link.left / static_cast<double>(link.unsettled);
  };
  for (const int number : reached_links_) fullest.emplace(share(number), number);
  while (!fullest.empty()) {
    const auto [its, number] = fullest.top();
    fullest.pop();
    Link& link = links_[static_cast<size_t>(number)];
    if (link.unsettled == 0) continue;
    if (const double grown = share(number); grown > its) {
      fullest.emplace(grown, number);
      continue;
    }
    for (const uint32_t place : link.flows) {
      Flow& flow = flows_[place];
      if (flow.settled) continue;
      flow.settled = true;
      for (size_t l = 0; l < flow.count; ++l) {
        Link& other = links_[static_cast<size_t>(flow.links[l])];
        other.left = std::max(0.0, other.left - its);
        --other.unsettled;
      }
      set_rate(place, its, now);
    }
  }
}

void FairNetwork::set_rate(uint32_t place, double rate, Nanoseconds now) {
  Flow& flow = flows_[place];
  if (flow.rate == rate && flow.finish != kNotYet) return;
  flow.left = std::max(0.0, flow.left - flow.rate * static_cast<double>(now - flow.since));
  flow.since = now;
  flow.rate = rate;
  by_finish_.erase({flow.finish, place});
  flow.finish = now + static_cast<Nanoseconds>(std::ceil(flow.left / rate));
  by_finish_.emplace(flow.finish, place);
}

}  // namespace penstock
