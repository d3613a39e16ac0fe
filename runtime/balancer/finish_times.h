// When a chunk would arrive if a given loader made it, and which chunks a loader should leave to others.
//
//   FinishTimes times;
//   times.produced(loader, stream, event, granted_ns, now);   // what chunks cost, and how fast the loader is
//   const int64_t ns = times.finish_ns(loader, stream, chunk, now);
//   const int64_t leave = times.left_to_others(loader, stream, chunk, {loaders, streams, may_make}, now);
//
// The estimate: ready + work / speed + link.
//   ready   until one of the loader's executors is free (LoaderState::ready_ns)
//   work    the cost model of the loader's class, for the chunk's bytes and pixels: those that its batch buffer's
//           reservation said, or what chunks of the lease stream usually have; shared by the loader's threads
//   link    from the loader's node to the receiver's (link_costs.h), where they differ. Besides, a loader elsewhere is
//           taken to need a quarter longer, so that equal ones stay at home.
// Who leaves chunks to others: a loader that is far from the receiver (the link costs more than a quarter of the
//   threads' work) or slow (less than a third of its class's median speed). All others pull whatever comes next: where
//   executors and links are alike, that is as good as any plan and needs no estimate.
//   Those to whom chunks are left will get to the waiting chunk number k at about
//       least finish of one of them + k / rate      rate: chunks a second that they make for this receiver
//   and the loader takes the first chunk that it finishes no later than that. A slow one leaves chunks to near ones that
//   are not slow; a far one to all near ones, because even a slow loader at home may be faster than the link. A far one
//   counts its link twice: a chunk that comes late holds up a batch and all that follow it, one left at home costs no more
//   than its work. So over a slow link travel chunks that are needed late, as many as the link carries, and none that
//   would hold up a batch. A link that nothing has come over yet is far for a receiver that has loaders at home, and is
//   tried with one chunk.
//   Where there is nobody to leave them to, a loader takes what comes. One that has receivers on its own node takes
//   nothing for far ones while it works for those: behind a chunk on a slow link its own leases would wait, too. And
//   nobody takes more than the link carries in a second (LinkCosts::is_full).
// Slow and back: looked at by update_slow(), at every tick. A slow loader keeps what it works on and nothing behind it
//   (LoaderState::most_leases); it goes on being measured by what it makes, and is as before once it has half the median
//   speed.
// Determinism: as cost_model.h. Thread-safety: none; a part of Balancer.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/balancer/cost_model.h"
#include "runtime/balancer/lease_stream_registry.h"
#include "runtime/balancer/link_costs.h"
#include "runtime/balancer/loader_registry.h"

namespace penstock {

class FinishTimes {
 public:
  static constexpr int32_t kClasses = 2;  // executors on the CPU alone, and beside GPUs

  void opened(LeaseStreamState& stream, int64_t now_ns);
  // `granted_ns`: -1 where it is not known.
  void produced(LoaderState& loader, LeaseStreamState* stream, const ChunkProduced& event, int64_t granted_ns,
                int64_t now_ns);

  // What the chunk takes of threads' time, all of them added, in an average loader of the class.
  int64_t work_ns(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk) const;
  int64_t finish_ns(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk,
                    int64_t now_ns) const;
  bool link_is_full(const LoaderState& loader, const LeaseStreamState& stream) const;
  struct Others {
    const LoaderRegistry& loaders;
    const LeaseStreamRegistry& streams;
    const std::function<bool(LoaderId)>& may_make;  // it can read the samples, and reach the receiver
  };
  // Near and not slow: it takes whatever comes next.
  bool pulls(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& first,
             const LoaderRegistry& loaders, int64_t now_ns) const;
  // How many of the lease stream's waiting chunks, from `first` on, come before the first one that the loader, which does
  // not pull, should take.
  int64_t left_to_others(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& first,
                         const Others& others, int64_t now_ns);
  // After loaders or lease streams have come or gone, or loaders are usable or slow that were not.
  void fleet_changed() { supplies_.clear(); }

  // True: some loader became slow, or is no longer.
  bool update_slow(LoaderRegistry& loaders) const;

  LinkCosts links;

  const CostModel& model(int32_t executor_class) const { return models_[index_of(executor_class)]; }

 private:
  // What near loaders make for a lease stream: all of them, or those that pull.
  struct Supply {
    int64_t at_ns = -1;
    double chunks_per_ns = 0;
    int64_t least_ns = 0;  // until one of them has made a chunk that it is granted now
  };
  bool is_near(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk,
               const LoaderRegistry& loaders, int64_t now_ns) const;
  // The link, beside the threads' work at this loader.
  static bool is_short(int64_t link_ns, int64_t work_ns, const LoaderState& loader);
  const Supply& near_supply(const LeaseStreamState& stream, const ChunkState& first, const Others& others,
                            bool slow_too, int64_t now_ns);
  static size_t index_of(int32_t executor_class) { return executor_class == 1 ? 1 : 0; }
  int64_t link_ns(const LoaderState& loader, const LeaseStreamState& stream, int64_t now_ns) const;

  std::array<CostModel, kClasses> models_;
  double mean_bytes_ = 0;  // of the fleet's chunks
  double mean_pixels_ = 0;
  std::map<std::tuple<LeaseStreamId, int64_t, bool>, Supply> supplies_;  // by lease stream, group, and slow_too
};

}  // namespace penstock
