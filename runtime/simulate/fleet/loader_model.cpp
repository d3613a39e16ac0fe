#include "runtime/simulate/fleet/loader_model.h"

#include <algorithm>
#include <cmath>

#include "runtime/balancer/lease_rules.h"
#include "runtime/simulate/fleet/fleet_coordinator.h"
#include "runtime/simulate/fleet/fleet_world.h"

namespace penstock {

namespace {

// As loader.cpp has it: four times the delay to the coordinator, where that is another machine.
LeasesInTransit in_transit_of(const FleetParts& parts, const FleetLoader& spec) {
  const int home = parts.node_of_coordinator();
  const int32_t most = spec.chunk_buffers > 0 ? spec.chunk_buffers : usual_chunk_buffers(spec.threads);
  return {spec.node == home ? 0 : 4 * parts.links.latency_ns(spec.node, home), spec.threads, most};
}

}  // namespace

LoaderModel::LoaderModel(FleetParts& parts, LoaderId id)
    : parts_(parts), id_(id), in_transit_(in_transit_of(parts, parts.spec.loaders[static_cast<size_t>(id)])) {}

void LoaderModel::begin() {
  speed_ = spec().speed;
  SeededRandom random = parts_.costs.number(6, id_);
  const double share = static_cast<double>(random.bits() >> 11) * 0x1p-53;
  if (share < parts_.spec.faults.slow_share) speed_ = speed_.times(parts_.spec.faults.slow_speed);
  parts_.loop.at(spec().joins_at, [this] { join(); });
  if (spec().dies_at) parts_.loop.at(*spec().dies_at, [this] { die(incarnation_, spec().seen_after_ns); });
  if (spec().comes_back_at) parts_.loop.at(*spec().comes_back_at, [this] { join(); });
}

void LoaderModel::join_at(Nanoseconds when) {
  parts_.loop.at(when, [this, deaths = deaths_] {
    if (deaths == deaths_) join();
  });
}

void LoaderModel::join() {
  if (alive_) return;
  alive_ = true;
  ++incarnation_;
  ahead_ = 0;
  threads_ = ServerPool(spec().threads);
  gpus_ = ServerPool(spec().gpus);
  event_loop_ = ServerPool();
  reads_ = ServerPool(parts_.spec.storage.reads_ahead);
  begins_at_ = kNever;
  parts_.log.note(parts_.loop.now(), "join", id_, incarnation_);
  parts_.links.message(node(), parts_.node_of_coordinator(),
                       [this, incarnation = incarnation_] { parts_.coordinator->loader_joined(id_, incarnation); });
  beat(incarnation_);
  draw_a_fault();
}

void LoaderModel::draw_a_fault() {
  const FaultModel& faults = parts_.spec.faults;
  if (faults.loader_mtbf_s <= 0) return;
  SeededRandom random = parts_.costs.number(7, int64_t{id_} * 1'000'003 + incarnation_);
  const Nanoseconds lives = Distribution::exponential(faults.loader_mtbf_s * 1e9).draw(random);
  parts_.loop.after(lives, [this, incarnation = incarnation_] {
    if (incarnation != incarnation_ || !alive_ || parts_.coordinator->over) return;
    die(incarnation, parts_.spec.faults.seen_after_ns);
    const double restart_s = parts_.spec.faults.restart_s;
    if (restart_s > 0) parts_.loop.after(static_cast<Nanoseconds>(restart_s * 1e9), [this] { join(); });
  });
}

void LoaderModel::die(uint32_t incarnation, std::optional<Nanoseconds> seen_after_ns) {
  ++deaths_;
  if (!alive_) return;
  parts_.log.note(parts_.loop.now(), "die", id_, incarnation);
  alive_ = false;
  drop_all();
  if (!seen_after_ns) return;
  parts_.loop.after(*seen_after_ns, [this, incarnation] { parts_.coordinator->loader_died(id_, incarnation); });
}

// Those that were begun are in an event of their own, which finds that it is of an earlier incarnation.
void LoaderModel::drop_all() {
  const Nanoseconds now = parts_.loop.now();
  for (const uint32_t place : in_hand_) {
    FleetLease& lease = parts_.leases[place];
    parts_.leases_at_loaders.leave(now, lease.came_at);
    lease.place = FleetLease::Place::nowhere;
    if (!lease.begun) parts_.leases.drop(place);
  }
  in_hand_.clear();
  queue_.clear();
}

template <class Event>
bool LoaderModel::postponed(Event again) {
  const Nanoseconds until = speed_.finish(parts_.loop.now(), 0);
  if (until <= parts_.loop.now()) return false;
  if (until != kNever) parts_.loop.at(until, std::move(again));
  return true;
}

void LoaderModel::given_up(uint32_t incarnation) {
  if (!alive_ || incarnation != incarnation_) return;
  if (postponed([this, incarnation] { given_up(incarnation); })) return;
  const Nanoseconds idle_at = std::max({parts_.loop.now(), threads_.all_free(), gpus_.all_free()});
  drop_all();
  ++incarnation_;  // nothing that it says now is of the next one, which begins when its threads are idle
  alive_ = false;
  if (idle_at == kNever) return;
  join_at(idle_at);
}

void LoaderModel::beat(uint32_t incarnation) {
  if (incarnation != incarnation_ || !alive_ || parts_.coordinator->over) return;
  if (postponed([this, incarnation] { beat(incarnation); })) return;
  parts_.links.message(node(), parts_.node_of_coordinator(),
                       [this, incarnation] { parts_.coordinator->receive_from(id_, incarnation, LoaderAlive{id_}); });
  parts_.loop.after(parts_.spec.heartbeat_ns, [this, incarnation] { beat(incarnation); });
}

void LoaderModel::lease_came(uint32_t place) {
  FleetLease& lease = parts_.leases[place];
  if (!has(lease)) {
    parts_.leases.drop(place);
    return;
  }
  if (postponed([this, place] { lease_came(place); })) return;
  const Nanoseconds now = parts_.loop.now();
  parts_.log.note(now, "lease", id_, static_cast<int64_t>(lease.key.lease_stream),
                  lease.key.step * 100'000 + lease.key.chunk);
  lease.came_at = now;
  lease.place = FleetLease::Place::at_loader;
  parts_.leases_at_loaders.enter(now);
  in_hand_.push_back(place);
  queue_.push_back(place);
  if (reads()) read_ahead(lease);
  begin_next();
}

void LoaderModel::begin_next() {
  const Nanoseconds now = parts_.loop.now();
  while (!queue_.empty() && first_free() <= now) {
    const uint32_t place = queue_.front();
    queue_.pop_front();
    begin_lease(place);
  }
  const Nanoseconds next = first_free();
  if (queue_.empty() || next == kNever || begins_at_ == next) return;
  begins_at_ = next;
  parts_.loop.at(next, [this, next] {
    if (begins_at_ != next) return;  // of an earlier incarnation, or another one has come before it
    begins_at_ = kNever;
    begin_next();
  });
}

void LoaderModel::begin_lease(uint32_t place) {
  FleetLease& lease = parts_.leases[place];
  lease.begun = true;
  lease.begun_at = parts_.loop.now();
  Nanoseconds end = lease.begun_at;
  for (int32_t row = 0; row < lease.samples; ++row) {
    const int64_t index = parts_.index_of(lease.key, lease.receiver, row);
    const int64_t bytes = parts_.costs.bytes(index);
    const int64_t making = (index * 131 + parts_.epoch) * 31 + lease.key.generation;
    const Nanoseconds there = lease.read_at.empty() ? lease.begun_at : lease.read_at[static_cast<size_t>(row)];
    // A thread that takes a sample waits for its bytes, and is busy meanwhile.
    const bool by_gpu = spec().gpus > 0 && gpus_.first_free() <= threads_.first_free();
    const Nanoseconds taken = std::max(lease.begun_at, by_gpu ? gpus_.first_free() : threads_.first_free());
    const Service one = by_gpu ? gpus_.serve(there, spec().gpu_sample_ns, speed_)
                               : threads_.serve(there, parts_.costs.work_ns(index, making), speed_);
    lease.bytes += bytes;
    if (one.end != kNever) {
      lease.busy_ns += one.end - taken;
      lease.thread_ns += by_gpu ? 0 : one.end - taken;
    }
    end = std::max(end, one.end);
  }
  if (end == kNever) return;  // it is stopped for good, and found out by its silence
  parts_.loop.at(end, [this, place] { made(place); });
}

bool LoaderModel::reads() const {
  return !parts_.disks.empty() && !(parts_.spec.storage.cached && parts_.epoch > 0);
}

// When its samples' bytes are there: so many reads are under way at a time, and the disk serves them in order.
void LoaderModel::read_ahead(FleetLease& lease) {
  const StorageModel& storage = parts_.spec.storage;
  ServerPool& disk = parts_.disks[storage.shared ? 0 : static_cast<size_t>(node())];
  static const SpeedProfile full;
  for (int32_t row = 0; row < lease.samples; ++row) {
    const int64_t index = parts_.index_of(lease.key, lease.receiver, row);
    SeededRandom random = parts_.costs.number(5, index * 131 + parts_.epoch);
    const Nanoseconds latency = storage.latency_ns.draw(random);
    double service_s =
        storage.bytes_per_s > 0 ? static_cast<double>(parts_.costs.bytes(index)) / storage.bytes_per_s : 0;
    if (storage.reads_per_s > 0) service_s = std::max(service_s, 1 / storage.reads_per_s);
    const auto end_of = [&](Nanoseconds begin) {
      return disk.serve(begin, static_cast<Nanoseconds>(service_s * 1e9), full).end + latency;
    };
    lease.read_at.push_back(reads_.serve_until(parts_.loop.now(), end_of).end);
  }
}

void LoaderModel::made(uint32_t place) {
  FleetLease& lease = parts_.leases[place];
  if (!has(lease)) {
    parts_.leases.drop(place);
    return;
  }
  const Nanoseconds now = parts_.loop.now();
  parts_.leases_at_loaders.leave(now, lease.came_at);
  lease.place = FleetLease::Place::nowhere;
  in_hand_.erase(std::find(in_hand_.begin(), in_hand_.end(), place));
  ++chunks_;
  busy_ns_ += lease.thread_ns;
  const Nanoseconds sent = event_loop_.serve(now, parts_.spec.overhead.loader_chunk_ns, speed_).end;
  if (sent <= now) {
    send(place);
  } else if (sent != kNever) {
    parts_.loop.at(sent, [this, place] { send(place); });
  }
}

void LoaderModel::send(uint32_t place) {
  FleetLease& lease = parts_.leases[place];
  if (!has(lease)) {
    parts_.leases.drop(place);
    return;
  }
  const Nanoseconds now = parts_.loop.now();
  parts_.log.note(now, "sent", id_, static_cast<int64_t>(lease.key.lease_stream),
                  lease.key.step * 100'000 + lease.key.chunk);
  if (parts_.spans != nullptr) {
    parts_.spans->push_back(
        {FleetSpan::What::make, id_, lease.begun_at, now, lease.key.step, lease.key.chunk, lease.receiver});
  }
  in_transit_.made(lease.busy_ns);
  const int32_t for_reads =
      reads() ? (parts_.spec.storage.reads_ahead + parts_.chunk_samples - 1) / parts_.chunk_samples : 0;
  const int32_t ahead = std::max(for_reads, in_transit_.leases());
  if (ahead != std::exchange(ahead_, ahead)) {
    parts_.links.message(node(), parts_.node_of_coordinator(), [this, incarnation = incarnation_, ahead] {
      parts_.coordinator->receive_from(id_, incarnation, LoaderAhead{id_, ahead});
    });
  }
  lease.place = FleetLease::Place::on_its_way;
  lease.sent_at = now;
  parts_.chunks_on_their_way.enter(now);
  parts_.leases.hold(place);  // the word
  parts_.leases.hold(place);  // the chunk
  parts_.links.message(node(), parts_.node_of_coordinator(), [this, place] { parts_.coordinator->produced(place); });
  const int to = parts_.spec.trainers[static_cast<size_t>(lease.receiver)].node;
  parts_.links.chunk({node(), to, id_, lease.receiver}, lease.samples * parts_.spec.samples.payload_bytes, place);
}

void LoaderModel::returned(uint32_t place) {
  if (!has(parts_.leases[place])) {
    parts_.leases.drop(place);
    return;
  }
  if (postponed([this, place] { returned(place); })) return;
  parts_.links.message(node(), parts_.node_of_coordinator(),
                       [this, place] { parts_.coordinator->chunk_buffer_freed(place); });
}

void LoaderModel::revoke(const LeaseKey& key) {
  if (!alive_) return;
  if (postponed([this, key] { revoke(key); })) return;
  const auto found =
      std::find_if(queue_.begin(), queue_.end(), [&](uint32_t place) { return parts_.leases[place].key == key; });
  if (found == queue_.end()) return;
  const uint32_t place = *found;
  FleetLease& lease = parts_.leases[place];
  parts_.leases_at_loaders.leave(parts_.loop.now(), lease.came_at);
  lease.place = FleetLease::Place::nowhere;
  queue_.erase(found);
  in_hand_.erase(std::find(in_hand_.begin(), in_hand_.end(), place));
  returned(place);
}

}  // namespace penstock
