#include "runtime/simulate/fleet/fleet_coordinator.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "runtime/balancer/event_log.h"
#include "runtime/balancer/lease_rules.h"
#include "runtime/simulate/fleet/loader_model.h"
#include "runtime/simulate/fleet/trainer_model.h"

namespace penstock {
namespace {

constexpr Nanoseconds kTick = 100 * kMillisecond;  // as receiver.cpp has it

const SpeedProfile& full_speed() {
  static const SpeedProfile full;
  return full;
}

BalancerOptions options_of(const FleetSpec& spec) {
  BalancerOptions options = spec.balancer;
  options.receivers = static_cast<int32_t>(spec.trainers.size());
  return options;
}

}  // namespace

FleetCoordinator::FleetCoordinator(FleetParts& parts)
    : parts_(parts),
      balancer_(options_of(parts.spec)),
      incarnations_(parts.spec.loaders.size(), 0),
      queued_(parts.spec.loaders.size(), 0),
      draws_(parts.costs.number(8, 0)) {}

void FleetCoordinator::begin() {
  tick();
}

void FleetCoordinator::tick() {
  if (over) return;
  receive(Tick{});
  parts_.loop.after(kTick, [this] { tick(); });
}

void FleetCoordinator::receive(Event event) {
  const Nanoseconds now = parts_.loop.now();
  const Nanoseconds cost = parts_.spec.overhead.event_ns;
  ServerPool& thread = parts_.trainers.front().event_loop();
  if (cost == 0 && received_.empty() && thread.first_free() <= now) return decide(event);
  received_.push_back(std::move(event));
  parts_.loop.at(thread.serve(now, cost, full_speed()).end, [this] {
    const Event next = std::move(received_.front());
    received_.pop_front();
    decide(next);
  });
}

void FleetCoordinator::decide(const Event& event) {
  if (over) return;
  ++decisions_;
  if (parts_.spec.policy != FleetPolicy::production) {
    if (const auto* joined = std::get_if<LoaderJoined>(&event)) {
      const auto place = std::lower_bound(joined_.begin(), joined_.end(), joined->loader);
      if (place == joined_.end() || *place != joined->loader) {
        joined_.insert(place, joined->loader);
        by_queue_.emplace(queued_[static_cast<size_t>(joined->loader)], joined->loader);
      }
    }
    if (const auto* reserved = std::get_if<BatchBufferReserved>(&event)) waiting_.push_back(*reserved);
    const auto at_first = std::count_if(parts_.spec.loaders.begin(), parts_.spec.loaders.end(),
                                        [](const FleetLoader& loader) { return loader.joins_at == 0; });
    if (joined_.empty() || std::ssize(joined_) < at_first) return;
    for (const BatchBufferReserved& one : std::exchange(waiting_, {})) give_away(one);
    return;
  }
  const std::vector<Action> actions = balancer_.step(parts_.loop.now(), event);
  if (parts_.balancer_log != nullptr) {
    if (decisions_ == 1) *parts_.balancer_log = log_first_line(options_of(parts_.spec));
    *parts_.balancer_log += log_lines(decisions_, parts_.loop.now(), event, actions);
  }
  for (const Action& action : actions) carry_out(action);
}

void FleetCoordinator::carry_out(const Action& action) {
  if (const auto* granted = std::get_if<Grant>(&action)) return grant(*granted);
  const int here = parts_.node_of_coordinator();
  if (const auto* revoked = std::get_if<Revoke>(&action)) {
    LoaderModel& loader = parts_.loaders[static_cast<size_t>(revoked->loader)];
    parts_.links.message(here, loader.node(), [&loader, key = revoked->lease] { loader.revoke(key); });
  } else if (const auto* given_up = std::get_if<GiveUpLoader>(&action)) {
    LoaderModel& loader = parts_.loaders[static_cast<size_t>(given_up->loader)];
    const uint32_t incarnation = std::exchange(incarnations_[static_cast<size_t>(given_up->loader)], 0);
    parts_.links.message(here, loader.node(), [&loader, incarnation] { loader.given_up(incarnation); });
    receive(LoaderLost{given_up->loader, given_up->reason});
  } else if (const auto* failed = std::get_if<FailLeaseStream>(&action)) {
    if (failure_.empty()) failure_ = failed->reason;
  }
}

void FleetCoordinator::give_away(const BatchBufferReserved& reserved) {
  const auto receiver =
      static_cast<ReceiverId>((reserved.lease_stream - 1) % static_cast<LeaseStreamId>(parts_.trainer_count()));
  for (int32_t chunk = 0; chunk < parts_.chunks_of(reserved.step); ++chunk) {
    const LoaderId loader = choose(receiver, reserved.step * parts_.chunks_of(0) + chunk);
    const auto place = static_cast<size_t>(loader);
    by_queue_.erase({queued_[place], loader});
    by_queue_.emplace(++queued_[place], loader);
    grant({loader, receiver, {reserved.lease_stream, reserved.step, chunk, 1}, reserved.step, false});
  }
}

LoaderId FleetCoordinator::choose(ReceiverId receiver, int64_t chunk) {
  const auto loaders = std::ssize(joined_);
  const auto number = [&](int64_t n) { return joined_[static_cast<size_t>(n % loaders)]; };
  const auto at_random = [&] { return number(draws_.below(loaders)); };
  switch (parts_.spec.policy) {
    case FleetPolicy::fixed: {
      // So many for each trainer; where there are fewer loaders than trainers, some trainers share one.
      const int64_t each = std::max<int64_t>(1, loaders / parts_.trainer_count());
      return number(receiver * each + chunk % each);
    }
    case FleetPolicy::shortest_queue: return by_queue_.begin()->second;
    case FleetPolicy::power_of_two: {
      const LoaderId one = at_random(), other = at_random();
      return queued_[static_cast<size_t>(one)] <= queued_[static_cast<size_t>(other)] ? one : other;
    }
    default: return number(grants_);
  }
}

void FleetCoordinator::grant(const Grant& action) {
  ++grants_;
  const uint32_t place = parts_.leases.add({.key = action.lease,
                                            .loader = action.loader,
                                            .receiver = action.receiver,
                                            .incarnation = incarnations_[static_cast<size_t>(action.loader)],
                                            .samples = parts_.samples_of(action.lease),
                                            .holds = 1});
  LoaderModel& loader = parts_.loaders[static_cast<size_t>(action.loader)];
  const auto go = [this, place, &loader] {
    parts_.links.message(parts_.node_of_coordinator(), loader.node(), [&loader, place] { loader.lease_came(place); });
  };
  const Nanoseconds cost = parts_.spec.overhead.grant_ns;
  if (cost == 0) return go();
  parts_.loop.at(parts_.trainers.front().event_loop().serve(parts_.loop.now(), cost, full_speed()).end, go);
}

void FleetCoordinator::open_stream(ReceiverId receiver) {
  TrainerModel& trainer = parts_.trainers[static_cast<size_t>(receiver)];
  LeaseStreamOpened opened;
  opened.lease_stream = trainer.lease_stream();
  opened.receiver = receiver;
  opened.node = trainer.node();
  opened.steps = parts_.steps;
  opened.chunks_per_step = parts_.chunks_of(0);
  opened.chunks_last_step = parts_.chunks_of(parts_.steps - 1);
  opened.payload_bytes = parts_.spec.samples.payload_bytes * parts_.chunk_samples;
  receive(opened);
  parts_.links.message(parts_.node_of_coordinator(), trainer.node(), [&trainer] { trainer.ready(); });
}

void FleetCoordinator::batch_buffer_free(LeaseStreamId lease_stream, int64_t step) {
  BatchBufferReserved reserved{lease_stream, step};
  if (parts_.spec.samples.sizes_known) {
    const auto receiver =
        static_cast<ReceiverId>((lease_stream - 1) % static_cast<LeaseStreamId>(parts_.trainer_count()));
    for (int32_t chunk = 0; chunk < parts_.chunks_of(step); ++chunk) {
      const LeaseKey key{lease_stream, step, chunk, 0};
      int64_t bytes = 0;
      for (int32_t row = 0; row < parts_.samples_of(key); ++row)
        bytes += parts_.costs.bytes(parts_.index_of(key, receiver, row));
      reserved.chunk_bytes.push_back(bytes);
    }
  }
  receive(std::move(reserved));
}

void FleetCoordinator::receive_from(LoaderId loader, uint32_t incarnation, Event event) {
  if (incarnations_[static_cast<size_t>(loader)] == incarnation) receive(std::move(event));
}

void FleetCoordinator::loader_joined(LoaderId loader, uint32_t incarnation) {
  const FleetLoader& spec = parts_.spec.loaders[static_cast<size_t>(loader)];
  if (!parts_.loaders[static_cast<size_t>(loader)].alive()) return;
  uint32_t& known = incarnations_[static_cast<size_t>(loader)];
  if (known != 0) receive(LoaderLost{loader, "it was started anew"});
  known = incarnation;
  LoaderJoined joined;
  joined.loader = loader;
  joined.depth = (spec.depth > 0 ? spec.depth : lease_depth(spec.threads)) + 2 * spec.gpus;
  joined.chunk_buffers = spec.chunk_buffers > 0 ? spec.chunk_buffers : usual_chunk_buffers(spec.threads);
  joined.node = spec.node;
  joined.executor_class = spec.executor_class;
  joined.threads = spec.threads;
  receive(joined);
}

void FleetCoordinator::loader_died(LoaderId loader, uint32_t incarnation) {
  uint32_t& known = incarnations_[static_cast<size_t>(loader)];
  if (known != incarnation) return;
  known = 0;
  receive(LoaderLost{loader, "its process has gone"});
}

void FleetCoordinator::produced(uint32_t place) {
  const FleetLease& lease = parts_.leases[place];
  if (parts_.spec.policy != FleetPolicy::production) {
    int64_t& queued = queued_[static_cast<size_t>(lease.loader)];
    by_queue_.erase({queued, lease.loader});
    by_queue_.emplace(--queued, lease.loader);
  }
  const SampleModel& samples = parts_.spec.samples;
  receive_from(lease.loader, lease.incarnation,
               ChunkProduced{lease.loader, lease.key, lease.busy_ns, lease.bytes, samples.pixels * lease.samples,
                             lease.sent_at - lease.came_at});
  parts_.leases.drop(place);
}

void FleetCoordinator::accepted(uint32_t place) {
  receive(ChunkAccepted{parts_.leases[place].key});
  parts_.leases.drop(place);
}

void FleetCoordinator::chunk_buffer_freed(uint32_t place) {
  const FleetLease& lease = parts_.leases[place];
  receive_from(lease.loader, lease.incarnation, ChunkBufferFreed{lease.loader, lease.receiver});
  parts_.leases.drop(place);
}

}  // namespace penstock
