#include "runtime/trainer/coordinator.h"

#include <algorithm>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <tuple>

#include "runtime/balance/balancer.h"
#include "runtime/balance/event_log.h"
#include "runtime/base/error.h"
#include "runtime/trainer/epoch_plan.h"
#include "runtime/trainer/replica_agreement.h"
#include "sampler/plan.h"

namespace penstock {
namespace {

BalancerOptions balancer_options(const BalancerSpec& spec, size_t ports) {
  BalancerOptions options;
  options.ports = static_cast<int32_t>(ports);
  options.policy =
      spec.policy == GrantPolicy::random ? BalancerOptions::Policy::random : BalancerOptions::Policy::deadline;
  options.lease_timeout_ns = static_cast<int64_t>(spec.lease_timeout_s * 1e9);
  options.lost_after_ns = static_cast<int64_t>(spec.lost_after_s * 1e9);
  return options;
}

constexpr int64_t kLargestChunk = 16;

}  // namespace

class Coordinator::Impl {
 public:
  Impl(const CoordinatorOptions& options, const Clock& clock, Send send)
      : options_(options),
        clock_(clock),
        send_(std::move(send)),
        balancer_(balancer_options(options.balancer, options.ports.size())),
        agreement_(options.ports.size()) {
    if (!options.balancer.log.empty()) {
      log_.open(options.balancer.log, std::ios::trunc);
      if (!log_) {
        throw Error(ErrorKind::runtime, "cannot write the balancer's log '" + options.balancer.log + "'",
                    "check balancer.log");
      }
      log_ << log_first_line(balancer_options(options.balancer, options.ports.size()));
    }
  }

  void handle(PeerId peer, const ControlMessage& message) {
    std::visit(
        overloaded{
            [&](const LoaderHello& m) {
              joined_[peer] = m;
              lost_.erase(peer);
              threads_ += std::max(1, m.threads);
              for (auto& [fingerprint, split] : splits_) {
                if (split.like == 0) prepare_at(peer, split);  // what others look at again is none of a newcomer's
              }
              apply(LoaderJoined{peer, m.depth, m.cells, node_of(peer)});
            },
            [&](const Alive&) { apply(LoaderAlive{peer}); },
            [&](const LeasesAhead& m) { apply(LoaderAhead{peer, std::max(0, m.leases)}); },
            [&](const OpenSplit& m) { open_split(peer, m); },
            [&](const SplitClosed& m) { split_closed({peer, m.split}); },
            [&](const SplitPrepared& m) { split_prepared(peer, m); },
            [&](const OpenStream& m) { open_stream(peer, m); },
            [&](const SlotFree& m) { if (streams_.count(m.stream) != 0) apply(SlotReserved{m.stream, m.step}); },
            [&](const CursorAt& m) {
              if (streams_.count(m.stream) != 0) apply(CursorMoved{m.stream, m.cursor, m.waiting});
            },
            [&](const CloseStream& m) { close_stream(m.stream); },
            [&](const ProgramsAt& m) { programs_at(peer, m.living); },
            [&](const ChunkDone& m) { apply(ChunkMade{peer, m.lease, m.busy_ns, m.bytes, m.pixels}); },
            [&](const ChunkUndone& m) { apply(ChunkFailed{peer, m.lease, m.reason}); },
            [&](const CellBack& m) { apply(CellFreed{peer, m.port}); },
            [&](const ChunkTaken& m) { if (streams_.count(m.lease.stream) != 0) apply(ChunkAccepted{m.lease}); },
            [&](const auto&) {
              throw Error(ErrorKind::peer_lost,
                          "rank " + std::to_string(peer) + " sent the coordinator a message that is not for it",
                          "all ranks must run the same version of penstock");
            },
        },
        message);
    forget_closed();
  }

  void peer_lost(PeerId peer, const std::string& reason) {
    const bool joined = joined_.erase(peer) != 0;
    if (!lost_.insert(peer).second) return;
    figures_.lost.push_back("rank " + std::to_string(peer) + " (loader): " + reason);
    if (joined) apply(LoaderLost{peer, reason});
    // A split that waited for this loader's answer goes on without it, or fails where nobody is left.
    std::vector<Fingerprint> all;
    for (const auto& [fingerprint, split] : splits_) all.push_back(fingerprint);
    for (const Fingerprint fingerprint : all) {
      const auto it = splits_.find(fingerprint);
      if (it == splits_.end()) continue;  // was the same as another
      it->second.waiting_for.erase(peer);
      settle(it->second);
    }
    forget_closed();
  }

  void tick() { apply(Tick{}); }

  std::optional<Nanoseconds> idle_since() const { return idle_since_; }
  std::vector<PeerId> living_loaders() const {
    std::vector<PeerId> living;
    for (const auto& [peer, hello] : joined_) living.push_back(peer);
    return living;
  }
  Figures figures() const {
    Figures figures = figures_;
    for (const auto& [loader, f] : balancer_.figures()) figures.regranted += f.regranted;
    return figures;
  }

 private:
  using Opening = std::pair<PeerId, int32_t>;  // port, and its number for the split
  // A description of a split, and one look at its files. While nobody has it open there is at most one for each
  // description; whoever opens it once more has the loaders look again, and only where files changed there are two.
  struct Split {
    Fingerprint fingerprint = 0;
    Fingerprint described = 0;      // of its description
    int64_t number = 0;             // the newest of a description is the largest
    Fingerprint like = 0;           // while loaders look whether it is the same as this one
    std::set<PeerId> same_at;       // loaders that said so
    int32_t looked_at = 0;          // so many are looked for by `like`
    std::string json;
    ResolvedSplit resolved;
    std::shared_ptr<const SamplerNumbers> numbers;  // of the sampler's file
    int32_t num_replicas = 1;
    int32_t max_chunk_samples = 1;
    std::set<PeerId> asked;
    std::set<PeerId> waiting_for;   // loaders that have not answered PrepareSplit
    std::set<Opening> waiting;      // for an answer
    std::set<Opening> open_at;      // those who have it open, or asked for it
    bool known = false;             // the dataset's size is
    SplitPrepared prepared;         // the first good answer
    bool failed = false;
    SplitPrepared problem;
    std::map<int64_t, std::shared_future<std::shared_ptr<const Plan>>> plans;  // by epoch
  };
  struct Stream {
    Fingerprint fingerprint = 0;
    PeerId port = 0;
    int32_t replica = 0;
    int64_t epoch = 0;
    int32_t chunk_samples = 1;
    std::shared_ptr<const Plan> plan;
    int32_t of_replicas = 0;  // the plan is this replica's alone; 0: it is that of all
  };

  int node_of(PeerId peer) const {
    return static_cast<size_t>(peer) < options_.nodes.size() ? options_.nodes[static_cast<size_t>(peer)] : 0;
  }

  void prepare_at(PeerId loader, Split& split) {
    if (!split.asked.insert(loader).second) return;
    split.waiting_for.insert(loader);
    send_(loader, PrepareSplit{split.fingerprint, split.json, split.max_chunk_samples, split.like});
  }

  void open_split(PeerId port, const OpenSplit& m) {
    const Fingerprint described = fingerprint_of(m.json);
    ResolvedSplit resolved;
    std::shared_ptr<const SamplerNumbers> numbers;
    try {
      resolved = split_from_json(m.json);
      const Split* known = newest(described);
      if (known == nullptr || known->failed) {
        numbers = std::make_shared<SamplerNumbers>(read_sampler_file(resolved));
      }
    } catch (const Error& error) {
      send_(port, SplitRefused{m.split, error.exit_code(), error.message(), error.remedy()});
      return;
    }
    const ReplicaAgreement::Who who{port, m.replica, m.program};
    if (const auto complaint = agreement_.opened(who, resolved.name, m.opening, m.json)) {
      send_(port, SplitRefused{m.split, static_cast<int32_t>(ErrorKind::config), *complaint,
                               "give every trainer the same job file and overrides"});
      return;
    }
    Split& split = choose_split(described, looked_for(who, resolved.name, described, m.opening), m, resolved, numbers);
    if (split.like == 0) {
      for (const auto& [loader, hello] : joined_) prepare_at(loader, split);
    }
    split.waiting.insert({port, m.split});
    split.open_at.insert({port, m.split});
    settle(split);
  }

  Split* newest(Fingerprint described) {
    Split* found = nullptr;
    for (auto& [fingerprint, split] : splits_) {
      if (split.described == described && (found == nullptr || split.number > found->number)) found = &split;
    }
    return found;
  }

  // The look that another replica's program has had for its n-th opening, if this is a program's n-th: all of them get
  // one list, whatever happens to the files meanwhile.
  Fingerprint& looked_for(const ReplicaAgreement::Who& who, const std::string& name, Fingerprint described,
                          int32_t opening) {
    const LookKey key{described, agreement_.program_number(who, name), opening};
    Look& look = looks_[key];
    look.ports.insert(who.port);
    if (look.ports.size() < options_.ports.size()) return look.split;
    last_look_ = look.split;
    looks_.erase(key);
    return last_look_;
  }

  // The one that an opening gets: an old one, perhaps after a look whether it is one still, or a new one. `looked`: see
  // looked_for.
  Split& choose_split(Fingerprint described, Fingerprint& looked, const OpenSplit& m, ResolvedSplit& resolved,
                      std::shared_ptr<const SamplerNumbers>& numbers) {
    if (const auto it = splits_.find(looked); looked != 0 && it != splits_.end()) return it->second;
    std::set<Opening> open_at;
    Split* known = newest(described);
    if (known != nullptr && known->failed) {
      open_at = forget_failed(known->fingerprint);
      known = newest(described);
    }
    // What loaders look at just now was asked for a moment ago. Who has objects in Python has to say itself when they
    // are others.
    const bool again = known != nullptr && known->known && !known->failed && known->like == 0 &&
                       known->waiting_for.empty() && !joined_.empty() && !resolved.split.dataset.is_python();
    if (known != nullptr && !again) {
      looked = known->fingerprint;
      return *known;
    }
    Fingerprint fingerprint = described;
    while (fingerprint == 0 || splits_.count(fingerprint) != 0) {
      fingerprint = fingerprint_of(m.json + "#" + std::to_string(++last_number_));
    }
    Split& split = splits_[fingerprint];
    split.fingerprint = fingerprint;
    split.described = described;
    split.number = ++last_number_;
    split.open_at = std::move(open_at);
    split.json = m.json;
    split.num_replicas = m.num_replicas;
    const int64_t largest = options_.chunk_samples > 0 ? options_.chunk_samples : kLargestChunk;
    split.max_chunk_samples = static_cast<int32_t>(std::min(resolved.split.batch_size, largest));
    split.resolved = std::move(resolved);
    split.numbers = again ? known->numbers : std::move(numbers);
    looked = fingerprint;
    if (again) {
      split.like = known->fingerprint;
      ++known->looked_at;
      for (const auto& [loader, hello] : joined_) prepare_at(loader, split);
    }
    return split;
  }

  // Every loader has looked again.
  void decide(Split& split) {
    Split& before = splits_.at(split.like);  // kept by looked_at
    --before.looked_at;
    split.like = 0;
    if (split.known || split.failed) {
      // Two lists from now on: those that have the older one open keep it.
      for (const PeerId loader : split.same_at) split.asked.erase(loader);
      if (!split.failed) {
        for (const auto& [loader, hello] : joined_) prepare_at(loader, split);
      }
      settle(split);
      return;
    }
    before.waiting.merge(split.waiting);
    before.open_at.merge(split.open_at);
    for (auto& [key, look] : looks_) {
      if (look.split == split.fingerprint) look.split = before.fingerprint;
    }
    splits_.erase(split.fingerprint);
    settle(before);
  }

  void split_closed(const Opening& opening) {
    for (auto& [fingerprint, split] : splits_) {
      split.open_at.erase(opening);
      split.waiting.erase(opening);
    }
  }

  // Splits that nobody has open: programs that open one after the other must not fill memory, here or at loaders. One
  // that loaders still look at waits for their answers, which would otherwise be taken for the next one's.
  void forget_closed() {
    for (auto it = splits_.begin(); it != splits_.end();) {
      const Split& split = it->second;
      if (!split.open_at.empty() || !split.waiting_for.empty() || split.looked_at > 0 || has_streams(it->first)) {
        ++it;
        continue;
      }
      for (const PeerId loader : split.asked) {
        if (joined_.count(loader) != 0) send_(loader, SplitClosed{it->first, split.failed});
      }
      it = splits_.erase(it);
    }
  }

  bool has_streams(Fingerprint fingerprint) const {
    return std::any_of(streams_.begin(), streams_.end(),
                       [&](const auto& item) { return item.second.fingerprint == fingerprint; });
  }

  void split_prepared(PeerId loader, const SplitPrepared& m) {
    const auto it = splits_.find(m.fingerprint);
    if (it == splits_.end()) return;
    Split& split = it->second;
    split.waiting_for.erase(loader);
    if (m.good && m.same) {
      split.same_at.insert(loader);
    } else if (!m.good) {
      split.failed = true;
      split.problem = m;
      split.problem.error = "rank " + std::to_string(loader) + " (loader): " + m.error;
    } else if (!split.known) {
      split.known = true;
      split.prepared = m;
    } else if (m.dataset_fingerprint != split.prepared.dataset_fingerprint) {
      split.failed = true;
      split.problem = m;
      split.problem.error_kind = static_cast<int32_t>(ErrorKind::dataset);
      split.problem.error = "rank " + std::to_string(loader) + " (loader) sees another dataset for split '" +
                            split.resolved.name + "': " + std::to_string(m.dataset_size) + " samples, not " +
                            std::to_string(split.prepared.dataset_size);
      split.problem.remedy = "make the same files visible under the same path on every node";
    }
    settle(split);
  }

  // Answers the ports that wait for a split, once every loader has said what it sees.
  void settle(Split& split) {
    if (!split.waiting_for.empty()) return;
    if (split.like != 0) return decide(split);
    if (split.waiting.empty()) return;
    const bool none_left = joined_.empty() && !lost_.empty() && lost_.size() >= options_.loaders.size();
    if (!split.known && !split.failed && !none_left) return;  // no loader yet
    if (!split.known && !split.failed) {
      split.failed = true;
      split.problem.error_kind = static_cast<int32_t>(ErrorKind::peer_lost);
      split.problem.error = "no loader is left that could read split '" + split.resolved.name + "'";
      split.problem.remedy = "see the messages of the loaders";
    }
    if (!split.failed) {
      try {
        check_numbers(split.resolved, *split.numbers, split.prepared.dataset_size);
        (void)Plan(shape_spec(split), 0);
      } catch (const Error& error) {
        split.failed = true;
        split.problem.error_kind = error.exit_code();
        split.problem.error = error.message();
        split.problem.remedy = error.remedy();
      }
    }
    for (const Opening& opening : split.waiting) {
      const auto& [port, number] = opening;
      if (split.failed) {
        send_(port, SplitRefused{number, split.problem.error_kind, split.problem.error, split.problem.remedy});
        split.open_at.erase(opening);
      } else {
        send_(port, SplitOpened{split.fingerprint, split.prepared.dataset_size, split.prepared.dataset_fingerprint,
                                split.prepared.classes, split.prepared.extra_fields, split.prepared.labelled, number});
      }
    }
    split.waiting.clear();
  }

  // A split that could not be opened is asked for anew when somebody opens it again: its folder may have been repaired.
  // The ports that have it open all the same: a loader failed that came later.
  std::set<Opening> forget_failed(Fingerprint fingerprint) {
    const auto it = splits_.find(fingerprint);
    if (it == splits_.end() || !it->second.failed || !it->second.waiting_for.empty() || it->second.looked_at > 0 ||
        has_streams(fingerprint)) {
      return {};
    }
    std::set<Opening> open_at = std::move(it->second.open_at);
    splits_.erase(it);
    return open_at;
  }

  // The plan's shape without its permutation.
  PlanSpec shape_spec(const Split& split) const {
    PlanSpec spec = plan_spec(split.resolved, split.prepared.dataset_size, split.num_replicas);
    spec.shuffle = false;
    return spec;
  }

  std::shared_ptr<const Plan> plan_of(Split& split, int64_t epoch) {
    const auto start = [&](int64_t which) {
      if (split.plans.count(which) != 0) return;
      split.plans[which] = std::async(std::launch::async, [resolved = split.resolved, numbers = split.numbers, which,
                                                           size = split.prepared.dataset_size,
                                                           replicas = split.num_replicas] {
                             return epoch_plan(resolved, *numbers, size, replicas, which);
                           }).share();
    };
    start(epoch);
    auto plan = split.plans.at(epoch).get();
    // A permutation takes a while on millions of samples: have the next one ready before it is asked for.
    const SamplerSpec& sampler = split.resolved.split.sampler;
    if ((sampler.shuffle || !sampler.file().empty()) && split.resolved.split.mode == Mode::train) start(epoch + 1);
    while (split.plans.size() > 3) split.plans.erase(split.plans.begin());
    return plan;
  }

  // Several chunks for every thread of the job, so that no thread waits for another at a batch's end; but not so small
  // that the messages cost more than they save.
  int32_t choose_chunk(const Split& split) const {
    if (options_.chunk_samples > 0) return split.max_chunk_samples;
    const int64_t pieces = std::max<int64_t>(1, 2 * threads_ / std::max<int64_t>(1, std::ssize(options_.ports)));
    const int64_t samples = (split.resolved.split.batch_size + pieces - 1) / pieces;
    return static_cast<int32_t>(std::clamp<int64_t>(samples, std::min<int64_t>(4, split.max_chunk_samples),
                                                    split.max_chunk_samples));
  }

  void open_stream(PeerId port, const OpenStream& m) {
    const auto it = splits_.find(m.fingerprint);
    if (it == splits_.end() || !it->second.known) {
      send_(port, StreamFailed{m.stream, static_cast<int32_t>(ErrorKind::usage), "the split was not opened", ""});
      return;
    }
    Split& split = it->second;
    if (const auto complaint =
            agreement_.began({port, m.replica, m.program}, split.resolved.name, m.opening, m.epoch, m.first_step)) {
      send_(port, StreamFailed{m.stream, static_cast<int32_t>(ErrorKind::usage), *complaint,
                               "resume every trainer from the same state, and call set_epoch() alike in all of them"});
      return;
    }
    Stream stream;
    stream.fingerprint = m.fingerprint;
    stream.port = port;
    stream.replica = m.replica;
    stream.epoch = m.epoch;
    stream.chunk_samples = choose_chunk(split);
    try {
      if (split.resolved.split.sampler.program) {
        stream.plan = program_plan(split.resolved, m.order, split.prepared.dataset_size, m.epoch);
        stream.of_replicas = split.num_replicas;
      } else {
        stream.plan = plan_of(split, m.epoch);
      }
    } catch (const Error& error) {
      split.plans.erase(m.epoch);
      send_(port, StreamFailed{m.stream, error.exit_code(), error.message(), error.remedy()});
      return;
    }
    const int64_t steps = stream.plan->steps();
    if (m.first_step >= steps) return;  // a pass of no steps: it was only to be compared
    const auto pieces = [&](int64_t step) {
      return static_cast<int32_t>((stream.plan->batch_length(step) + stream.chunk_samples - 1) / stream.chunk_samples);
    };
    StreamOpened opened;
    opened.stream = m.stream;
    opened.port = port;
    opened.node = node_of(port);
    opened.first_step = m.first_step;
    opened.steps = steps;
    opened.chunks_per_step = pieces(0);
    opened.chunks_last_step = pieces(steps - 1);
    send_(port, StreamReady{m.stream, stream.chunk_samples});
    streams_[m.stream] = std::move(stream);
    apply(opened);
  }

  void programs_at(PeerId port, int32_t living) {
    programs_[port] = living;
    const bool any = std::any_of(programs_.begin(), programs_.end(), [](const auto& item) { return item.second > 0; });
    if (any) {
      idle_since_.reset();
      return;
    }
    idle_since_ = clock_.now();
    agreement_.forget();
    looks_.clear();
  }

  void close_stream(StreamId id) {
    if (streams_.erase(id) != 0) apply(StreamClosed{id});
  }

  void apply(const Event& event) {
    const int64_t now = clock_.now();
    const std::vector<Action> actions = balancer_.step(now, event);
    if (log_.is_open()) log_ << log_lines(now, event, actions) << std::flush;
    for (const Action& action : actions) {
      std::visit(overloaded{
                     [&](const Grant& a) { grant(a); },
                     [&](const Revoke& a) { send_(a.loader, LeaseRevoked{a.lease}); },
                     [&](const GiveUpLoader& a) { peer_lost(a.loader, a.reason); },
                     [&](const FailStream& a) { fail_stream(a); },
                 },
                 action);
    }
  }

  void grant(const Grant& a) {
    const auto it = streams_.find(a.lease.stream);
    if (it == streams_.end()) return;
    const Stream& stream = it->second;
    const bool own = stream.of_replicas > 0;
    BatchPlan batch = stream.plan->batch(a.lease.step, own ? 0 : stream.replica);
    if (own) globalize(batch, stream.replica, stream.of_replicas);
    LeaseGranted lease;
    lease.lease = a.lease;
    lease.fingerprint = stream.fingerprint;
    lease.epoch = stream.epoch;
    lease.replica = stream.replica;
    lease.port = stream.port;
    lease.first_slot = a.lease.chunk * stream.chunk_samples;
    const auto begin = batch.begin() + lease.first_slot;
    const auto end = std::min<std::ptrdiff_t>(std::ssize(batch), lease.first_slot + stream.chunk_samples);
    lease.samples.assign(begin, batch.begin() + end);
    ++figures_.granted;
    send_(a.loader, lease);
  }

  void fail_stream(const FailStream& a) {
    const auto it = streams_.find(a.stream);
    if (it == streams_.end()) return;
    const ErrorKind kind = joined_.empty() ? ErrorKind::peer_lost : ErrorKind::runtime;
    const PeerId port = it->second.port;
    streams_.erase(it);
    send_(port, StreamFailed{a.stream, static_cast<int32_t>(kind), a.reason, ""});
  }

  CoordinatorOptions options_;
  const Clock& clock_;
  Send send_;
  Balancer balancer_;
  std::ofstream log_;
  std::map<PeerId, LoaderHello> joined_;
  std::set<PeerId> lost_;
  int64_t threads_ = 0;
  std::map<Fingerprint, Split> splits_;
  int64_t last_number_ = 0;  // of splits
  ReplicaAgreement agreement_;
  // What openings got, until every port has had the same one; by description, number of the program, of the opening.
  using LookKey = std::tuple<Fingerprint, size_t, int32_t>;
  struct Look {
    Fingerprint split = 0;
    std::set<PeerId> ports;
  };
  std::map<LookKey, Look> looks_;
  Fingerprint last_look_ = 0;
  std::map<PeerId, int32_t> programs_;  // that live at each port
  std::optional<Nanoseconds> idle_since_;
  std::map<StreamId, Stream> streams_;
  Figures figures_;
};

Coordinator::Coordinator(const CoordinatorOptions& options, const Clock& clock, Send send)
    : impl_(std::make_unique<Impl>(options, clock, std::move(send))) {}
Coordinator::~Coordinator() = default;
void Coordinator::handle(PeerId peer, const ControlMessage& message) { impl_->handle(peer, message); }
void Coordinator::peer_lost(PeerId peer, const std::string& reason) { impl_->peer_lost(peer, reason); }
void Coordinator::tick() { impl_->tick(); }
std::optional<Nanoseconds> Coordinator::idle_since() const { return impl_->idle_since(); }
std::vector<PeerId> Coordinator::living_loaders() const { return impl_->living_loaders(); }
Coordinator::Figures Coordinator::figures() const { return impl_->figures(); }

}  // namespace penstock
