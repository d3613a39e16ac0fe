#include "runtime/balancer/link_costs.h"

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr int64_t kUnknownNsPerByte = 80;  // 100 Mbit/s
constexpr double kNewestSample = 0.1;      // weight of the newest of many samples
constexpr int64_t kHalfLife_ns = 10'000'000'000;
constexpr int64_t kUnknownHalfLife_ns = 1'000'000'000;
constexpr int64_t kMostHalvings = 20;

double weight_of(int64_t samples) {
  return std::max(kNewestSample, 1.0 / static_cast<double>(samples));
}

}  // namespace

void LinkCosts::begin(int64_t now_ns) {
  if (begun_ns_ < 0) begun_ns_ = now_ns;
}

void LinkCosts::granted(const Link& link, int64_t bytes) {
  links_[link].travelling_bytes += bytes;
}

void LinkCosts::dropped(const Link& link, int64_t bytes) {
  State& state = links_[link];
  state.travelling_bytes = std::max<int64_t>(0, state.travelling_bytes - bytes);
}

void LinkCosts::arrived(const Link& link, int64_t bytes, int64_t ready_ns, int64_t now_ns) {
  dropped(link, bytes);
  State& state = links_[link];
  ++state.chunks;
  state.bytes += bytes;
  if (state.newest.size() < kPeakChunks) {
    state.newest.emplace_back(now_ns, state.bytes);
  } else {
    auto& oldest = state.newest[static_cast<size_t>(state.chunks - 1) % kPeakChunks];
    const auto [before_ns, bytes_before] = std::exchange(oldest, {now_ns, state.bytes});
    if (now_ns > before_ns) {
      const double rate =
          static_cast<double>(state.bytes - bytes_before) * 1e9 / static_cast<double>(now_ns - before_ns);
      state.peak_bytes_per_s = std::max(state.peak_bytes_per_s, rate);
    }
  }
  if (link.from == link.to || bytes <= 0 || now_ns <= ready_ns) return;
  const auto way_ns = static_cast<double>(now_ns - ready_ns);
  const bool waited = state.last_arrival_ns > ready_ns;
  if (waited) {
    const double weight = weight_of(++state.busy_samples);
    state.busy_bytes += weight * (static_cast<double>(bytes) - state.busy_bytes);
    state.busy_ns += weight * (static_cast<double>(now_ns - state.last_arrival_ns) - state.busy_ns);
  }
  if (!waited || way_ns < state.empty_ns) {
    const double weight = weight_of(++state.empty_samples);
    state.empty_bytes += weight * (static_cast<double>(bytes) - state.empty_bytes);
    state.empty_ns += weight * (way_ns - state.empty_ns);
  }
  state.last_arrival_ns = now_ns;
}

bool LinkCosts::is_known(const Link& link) const {
  const auto at = links_.find(link);
  return link.from == link.to || (at != links_.end() && at->second.last_arrival_ns >= 0);
}

bool LinkCosts::is_idle(const Link& link) const {
  const auto at = links_.find(link);
  return at == links_.end() || at->second.travelling_bytes == 0;
}

int64_t LinkCosts::expected_ns(const Link& link, int64_t bytes, int64_t now_ns) const {
  if (link.from == link.to) return 0;
  const auto at = links_.find(link);
  if (at == links_.end() || at->second.last_arrival_ns < 0) {
    const int64_t ahead = at == links_.end() ? 0 : at->second.travelling_bytes;
    const int64_t known_ns = begun_ns_ < 0 ? 0 : std::max<int64_t>(0, now_ns - begun_ns_);
    return (kUnknownNsPerByte * (ahead + bytes)) >> std::min(kMostHalvings, known_ns / kUnknownHalfLife_ns);
  }
  const State& state = at->second;
  const double ns = state.latency_ns() + state.ns_per_byte() * static_cast<double>(state.travelling_bytes + bytes);
  const int64_t idle_ns = state.travelling_bytes > 0 ? 0 : std::max<int64_t>(0, now_ns - state.last_arrival_ns);
  return static_cast<int64_t>(ns) >> std::min(kMostHalvings, idle_ns / kHalfLife_ns);
}

bool LinkCosts::is_full(const Link& link, int64_t bytes) const {
  constexpr int64_t kMostUnknown = 4;  // chunks
  constexpr double kMost_ns = 1e9;
  if (link.from == link.to) return false;
  const auto at = links_.find(link);
  if (at == links_.end()) return false;
  const State& state = at->second;
  if (state.last_arrival_ns < 0) return state.travelling_bytes > 0 && state.travelling_bytes >= kMostUnknown * bytes;
  return static_cast<double>(state.travelling_bytes) * state.most_ns_per_byte() >= kMost_ns;
}

std::map<Link, LinkCosts::Figures> LinkCosts::figures() const {
  std::map<Link, Figures> result;
  for (const auto& [link, state] : links_) {
    if (state.chunks > 0)
      result[link] = {state.chunks, state.bytes, state.ns_per_byte(), state.latency_ns(), state.peak_bytes_per_s};
  }
  return result;
}

}  // namespace penstock
