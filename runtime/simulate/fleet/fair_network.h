// A network whose links are shared fairly: what each flow gets, and when it is through.
//
//   FairNetwork network;
//   const int out = network.add_link(1'250'000'000);             // bytes a second
//   network.begin(now, id, bytes, {{out, in}});
//   if (const auto when = network.next_finish()) ...             // and then, if nothing has begun or ended before:
//   const uint64_t id = network.finish(*when);
//
// What is fair: max-min. No flow can get more without taking it from one that has no more than it has (Bertsekas and
//   Gallager, "Data Networks", 1992, 6.5.2). It is what TCP's connections of alike round trips get of NICs and
//   uplinks, on the scale of chunks; slow start and losses are not in it.
// Cost: a flow that begins or ends is weighed against those that share a link with it, directly or through others, and
//   no more. Flows of one pair of ranks should be one after the other, as on its connection; that is the caller's.
// Exact to the nanosecond in what is sent: a flow ends at the first whole nanosecond at which its bytes are through.
// Determinism: doubles that are only added, multiplied and divided, in the order of flows' numbers.
// Thread-safety: none. Failure: Error(usage) for a link of no capacity and a flow over a link that does not exist.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"

namespace penstock {

class FairNetwork {
 public:
  static constexpr size_t kMostLinks = 5;  // of a flow: out, up, down, in, and a bound of its own

  int add_link(double bytes_per_s);
  size_t links() const noexcept { return links_.size(); }

  // A flow over no link is through at once, at the next finish().
  void begin(Nanoseconds now, uint64_t id, int64_t bytes, std::span<const int> over);
  // When the next flow is through, if nothing begins before; nullopt: there is none.
  std::optional<Nanoseconds> next_finish() const;
  // Ends that flow and gives its id; `now` is what next_finish() said.
  uint64_t finish(Nanoseconds now);

  size_t flows() const noexcept { return by_finish_.size(); }
  double carried_bytes(int link) const { return links_[static_cast<size_t>(link)].carried; }
  // The rate of the flow that was begun with this id, in bytes a second; for tests. 0: there is no such flow.
  double rate_of(uint64_t id) const;

 private:
  struct Flow {
    uint64_t id = 0;
    double left = 0;  // bytes, at `since`
    double rate = 0;  // bytes a nanosecond
    int64_t bytes = 0;
    Nanoseconds since = 0;
    Nanoseconds finish = 0;
    std::array<int, kMostLinks> links = {};
    uint8_t count = 0;
    bool used = false;
    uint32_t mark = 0;  // of the weighing that has reached it
    bool settled = false;
  };
  struct Link {
    double capacity = 0;  // bytes a nanosecond
    double carried = 0;
    std::vector<uint32_t> flows;  // places, ascending by when they began
    uint32_t mark = 0;
    double left = 0;  // while weighing
    int64_t unsettled = 0;
  };

  static constexpr Nanoseconds kNotYet = -1;  // of a flow that is about to be weighed for the first time

  void weigh(Nanoseconds now, std::span<const int> around);
  void set_rate(uint32_t place, double rate, Nanoseconds now);

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_;
  std::set<std::pair<Nanoseconds, uint32_t>> by_finish_;
  uint32_t mark_ = 0;
  std::vector<uint32_t> reached_;
  std::vector<int> reached_links_;
};

}  // namespace penstock
