// What it costs to move a chunk from a loader's node to a receiver's: latency + bytes * time per byte, learned for each
// pair of nodes. A link is such a pair, in one direction.
//
//   LinkCosts links;
//   links.granted({from, to}, bytes);               // the chunk will travel
//   const int64_t ns = links.expected_ns({from, to}, bytes, now);
//   links.arrived({from, to}, bytes, ready_ns, now);  // ready_ns: when it was made
//   links.dropped({from, to}, bytes);               // or it will not travel after all
//
// Purpose: over a slow link a chunk takes longer to travel than to be made, and the loaders of the receiver's own node
//   should make it.
// How: a chunk that was made while an earlier one was still travelling waited for that one, so the time between the two
//   arrivals is what its bytes took (a busy period of the link); its rate is the ratio of exponentially weighted sums of
//   both. Where a chunk found the link empty, the time that its bytes do not explain is latency. Everything that was
//   granted and has not arrived is assumed to travel first. A link of which nothing is known counts as one of 100
//   Mbit/s, and as twice as fast with every second since begin(): so it is tried, but late where nobody needs it.
//   What was learned fades: while nothing travels it halves every ten seconds, so that a link that was once slow is
//   tried again.
// Times are the coordinator's own: the latency holds the way of the lease and of both answers.
// Within a node nothing travels: expected_ns is 0, and only the sums are kept.
// Determinism: as cost_model.h. Thread-safety: none; a part of Balancer.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock {

struct Link {
  int32_t from = 0;  // node of the loader
  int32_t to = 0;    // node of the receiver

  friend auto operator<=>(const Link&, const Link&) = default;
};

class LinkCosts {
 public:
  struct Figures {
    int64_t chunks = 0;  // that arrived
    int64_t bytes = 0;
    double ns_per_byte = 0;  // 0: never learned
    double latency_ns = 0;
    double peak_bytes_per_s = 0;  // of kPeakChunks arrivals after another one, at the best; 0: no more arrived
  };
  // Few, so that bursts show: over a link that is not the limit, what waited for a receiver arrives far faster than the
  // mean. A pause of the coordinator can make it larger than what the link carries; then the link is not blamed.
  static constexpr size_t kPeakChunks = 16;

  void begin(int64_t now_ns);  // the first time counts
  void granted(const Link& link, int64_t bytes);
  void dropped(const Link& link, int64_t bytes);
  void arrived(const Link& link, int64_t bytes, int64_t ready_ns, int64_t now_ns);

  // What travels keeps it busy for a second: more would only wait, and heartbeats behind it. Of a link that nothing has
  // arrived over yet, when some chunks travel.
  bool is_full(const Link& link, int64_t bytes) const;

  // Something has arrived over it; before that, expected_ns() is a guess.
  bool is_known(const Link& link) const;
  bool is_idle(const Link& link) const;  // nothing travels

  // From the moment a chunk of `bytes` is made until it has arrived.
  int64_t expected_ns(const Link& link, int64_t bytes, int64_t now_ns) const;

  std::map<Link, Figures> figures() const;

 private:
  struct State {
    int64_t chunks = 0;
    int64_t bytes = 0;
    int64_t travelling_bytes = 0;  // granted, neither arrived nor dropped
    int64_t last_arrival_ns = -1;
    int64_t busy_samples = 0;  // chunks that waited for one before
    double busy_bytes = 0;     // of those, exponentially weighted
    double busy_ns = 0;
    int64_t empty_samples = 0;                        // chunks that met an empty link, or one that was as good as that
    double empty_bytes = 0;                           // of those, exponentially weighted
    double empty_ns = 0;                              // their whole way
    std::vector<std::pair<int64_t, int64_t>> newest;  // when they arrived, and `bytes` then; a ring once it is full
    double peak_bytes_per_s = 0;

    double ns_per_byte() const { return busy_bytes > 0 ? busy_ns / busy_bytes : 0; }
    // No less than a byte takes, where it is not known: the whole way's.
    double most_ns_per_byte() const { return busy_bytes > 0 ? ns_per_byte() : empty_ns / empty_bytes; }
    double latency_ns() const { return std::max(0.0, empty_ns - ns_per_byte() * empty_bytes); }
  };
  int64_t begun_ns_ = -1;
  struct Hash {
    size_t operator()(const Link& link) const {
      const uint64_t both = uint64_t{static_cast<uint32_t>(link.from)} << 32 | static_cast<uint32_t>(link.to);
      return static_cast<size_t>((both * 0x9e3779b97f4a7c15u) >> 16);
    }
  };
  // Looked up with every grant; a large fleet has a million. Walked for figures() alone, which sorts.
  std::unordered_map<Link, State, Hash> links_;
};

}  // namespace penstock
