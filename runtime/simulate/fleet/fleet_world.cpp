#include "runtime/simulate/fleet/fleet_world.h"

#include <algorithm>

#include "runtime/balancer/lease_rules.h"
#include "runtime/base/error.h"
#include "runtime/simulate/fleet/fleet_coordinator.h"
#include "runtime/simulate/fleet/fleet_parts.h"
#include "runtime/simulate/fleet/loader_model.h"
#include "runtime/simulate/fleet/trainer_model.h"

namespace penstock {

FleetParts::FleetParts(const FleetSpec& described, uint64_t seed, std::string* text)
    : spec(described), costs(described.samples, seed), links(spec, loop), log(text) {}

FleetParts::~FleetParts() = default;

namespace {

class FleetWorld {
 public:
  FleetWorld(const FleetSpec& spec, const FleetOptions& options)
      : spec_(spec), options_(options), parts_(spec, options.seed, options.text) {
    parts_.spans = options.spans;
    parts_.balancer_log = options.balancer_log;
    plan_spec_ = {.dataset_size = spec.dataset_size,
                  .num_replicas = std::ssize(spec.trainers) / spec.ranks_per_replica,
                  .batch_size = spec.batch_size,
                  .shuffle = spec.shuffle,
                  .seed = options.seed,
                  .sampler_drop_last = true,
                  .batch_drop_last = true};
    parts_.steps = plan_shape(plan_spec_).steps;
    if (spec.steps > 0) parts_.steps = std::min(parts_.steps, spec.steps);
    parts_.chunk_samples = chunk_samples();
    if (spec.storage.bytes_per_s > 0 || spec.storage.reads_per_s > 0)
      parts_.disks.resize(spec.storage.shared ? 1 : spec.nodes.size());
    parts_.coordinator = std::make_unique<FleetCoordinator>(parts_);
    // Their events keep their addresses.
    parts_.loaders.reserve(spec.loaders.size());
    parts_.trainers.reserve(spec.trainers.size());
    for (size_t i = 0; i < spec.loaders.size(); ++i) parts_.loaders.emplace_back(parts_, static_cast<LoaderId>(i));
    for (size_t i = 0; i < spec.trainers.size(); ++i) parts_.trainers.emplace_back(parts_, static_cast<ReceiverId>(i));
    parts_.links.on_sent(
        [this](uint32_t lease) { parts_.loaders[static_cast<size_t>(parts_.leases[lease].loader)].returned(lease); });
    parts_.links.goes_on([this](uint32_t lease) {
      return parts_.loaders[static_cast<size_t>(parts_.leases[lease].loader)].has(parts_.leases[lease]);
    });
    parts_.links.on_lost([this](uint32_t place) {
      FleetLease& lease = parts_.leases[place];
      parts_.chunks_on_their_way.leave(parts_.loop.now(), lease.sent_at);
      lease.place = FleetLease::Place::nowhere;
      parts_.leases.drop(place);  // the chunk's
      parts_.leases.drop(place);  // and its loader's, which is gone
    });
    parts_.links.on_arrived([this](uint32_t lease) {
      parts_.trainers[static_cast<size_t>(parts_.leases[lease].receiver)].chunk_came(lease);
    });
    parts_.on_stepped = [this](ReceiverId trainer) { stepped(trainer); };
    parts_.on_batch = [this](Nanoseconds waited, bool counts) {
      if (counts) result_.waits.add(waited);
      if (result_.batches == 0) result_.first_batch_ns = parts_.loop.now();
      ++result_.batches;
      last_progress_ = parts_.loop.now();
    };
  }

  FleetResult run() {
    for (LoaderModel& loader : parts_.loaders) loader.begin();
    parts_.coordinator->begin();
    open_epoch();
    while (!over_ && parts_.loop.step()) {
      ++result_.events;
      if (!parts_.coordinator->failure().empty()) {
        result_.failure = parts_.coordinator->failure();
        break;
      }
      if (parts_.loop.now() - last_progress_ > options_.stuck_after_ns && !stuck().empty()) {
        result_.failure = stuck();
        break;
      }
    }
    parts_.coordinator->over = true;
    finish();
    return std::move(result_);
  }

 private:
  int32_t chunk_samples() const {
    if (spec_.chunk_samples > 0) return static_cast<int32_t>(std::min(spec_.chunk_samples, spec_.batch_size));
    int64_t threads = 0;
    for (const FleetLoader& loader : spec_.loaders) threads += loader.joins_at == 0 ? loader.threads : 0;
    return chunk_samples_for(spec_.batch_size, std::ssize(spec_.trainers), threads,
                             static_cast<int32_t>(spec_.batch_size));
  }

  void open_epoch() {
    parts_.plan = std::make_shared<const Plan>(plan_spec_, parts_.epoch);
    for (TrainerModel& trainer : parts_.trainers) trainer.open_epoch();
    for (TrainerModel& trainer : parts_.trainers) trainer.ask();
  }

  // A step is over for all of them at once where there is a barrier; an epoch is so always.
  void stepped(ReceiverId which) {
    TrainerModel& trainer = parts_.trainers[static_cast<size_t>(which)];
    const bool last = trainer.cursor() == parts_.steps;
    if (!spec_.barrier && !last) return trainer.ask();
    if (++at_barrier_ < std::ssize(parts_.trainers)) return;
    at_barrier_ = 0;
    const Nanoseconds now = parts_.loop.now();
    if (spec_.barrier) result_.steps_done_ns.push_back(now);
    if (!last) {
      for (TrainerModel& one : parts_.trainers) one.ask();
      return;
    }
    for (TrainerModel& one : parts_.trainers) {
      parts_.links.message(one.node(), parts_.node_of_coordinator(), [this, lease_stream = one.lease_stream()] {
        parts_.coordinator->receive(LeaseStreamClosed{lease_stream});
      });
    }
    if (parts_.epoch + 1 == spec_.epochs) {
      over_ = true;
      return;
    }
    parts_.loop.after(spec_.overhead.epoch_ns, [this] {
      ++parts_.epoch;
      open_epoch();
    });
  }

  // Who waits in vain; empty: some program is at work.
  std::string stuck() const {
    const auto& trainers = parts_.trainers;
    if (std::any_of(trainers.begin(), trainers.end(), [](const TrainerModel& one) { return one.stepping(); }))
      return {};
    const auto waits =
        std::find_if(trainers.begin(), trainers.end(), [](const TrainerModel& one) { return one.waiting(); });
    if (waits == trainers.end()) return {};
    return "trainer " + std::to_string(waits - parts_.trainers.begin()) + " has waited for step " +
           std::to_string(waits->cursor()) + " for more than " + std::to_string(options_.stuck_after_ns / kSecond) +
           " s, and no batch came to anybody";
  }

  void finish() {
    const Nanoseconds now = parts_.loop.now();
    result_.took_ns = now;
    // What is still made or sent is made in vain.
    for (const FleetLease& lease : parts_.leases.all()) {
      if (lease.place == FleetLease::Place::at_loader) parts_.leases_at_loaders.leave(now, lease.came_at);
      if (lease.place == FleetLease::Place::on_its_way) parts_.chunks_on_their_way.leave(now, lease.sent_at);
    }
    parts_.leases_at_loaders.check("leases at loaders");
    parts_.chunks_on_their_way.check("chunks on their way");
    const int64_t wanted = parts_.steps * spec_.epochs * std::ssize(parts_.trainers);
    if (result_.failure.empty()) {
      parts_.batches_ready.check("batches");
      if (result_.batches != wanted) {
        throw Error(
            ErrorKind::runtime,
            "the simulation delivered " + std::to_string(result_.batches) + " batches of " + std::to_string(wanted),
            "this is a defect of penstock; please report it with the command and its seed");
      }
    }
    result_.images = result_.batches * spec_.batch_size / spec_.ranks_per_replica;
    result_.log = parts_.log.hash();
    const double seconds = as_seconds(now);
    if (seconds > 0) {
      double waited_s = 0, at_barrier_s = 0, elapsed_s = 0;
      for (const TrainerModel& trainer : parts_.trainers) {
        const double its = as_seconds(trainer.elapsed_ns());
        if (its > 0) result_.images_per_s += static_cast<double>(trainer.batches() * spec_.batch_size) / its;
        waited_s += as_seconds(trainer.waited_ns());
        at_barrier_s += as_seconds(trainer.at_barrier_ns());
        elapsed_s += its;
      }
      if (elapsed_s > 0) {
        result_.stalled = waited_s / elapsed_s;
        result_.at_barrier = at_barrier_s / elapsed_s;
      }
      result_.images_per_s /= spec_.ranks_per_replica;  // an image counts once, as in a report
    }
    const auto figures = parts_.coordinator->balancer().figures();
    for (const auto& [loader, its] : figures) {
      result_.regranted += its.regranted;
      result_.hedged += its.hedged;
    }
    for (const LoaderModel& loader : parts_.loaders) {
      const double busy = seconds > 0 ? as_seconds(loader.busy_ns()) / seconds / loader.spec().threads : 0;
      result_.loaders.push_back({loader.chunks(), busy});
    }
    result_.busiest_link = parts_.links.busiest(now);
    result_.bytes_between_nodes = parts_.links.bytes_between_nodes();
    result_.grants = parts_.coordinator->grants();
    result_.decisions = parts_.coordinator->decisions();
  }

  const FleetSpec& spec_;
  FleetOptions options_;
  FleetParts parts_;
  PlanSpec plan_spec_;
  FleetResult result_;
  int64_t at_barrier_ = 0;
  Nanoseconds last_progress_ = 0;
  bool over_ = false;
};

}  // namespace

FleetResult simulate_fleet(const FleetSpec& spec, const FleetOptions& options) {
  spec.check();
  return FleetWorld(spec, options).run();
}

}  // namespace penstock
