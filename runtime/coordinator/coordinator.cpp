#include "runtime/coordinator/coordinator.h"

#include <algorithm>
#include <deque>
#include <fstream>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "runtime/balancer/balancer.h"
#include "runtime/balancer/event_log.h"
#include "runtime/balancer/lease_rules.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/coordinator/background_work.h"
#include "runtime/coordinator/balance_report.h"
#include "runtime/coordinator/balancer_options.h"
#include "runtime/coordinator/epoch_plan.h"
#include "runtime/coordinator/lease_stream.h"
#include "runtime/coordinator/replica_agreement.h"
#include "runtime/coordinator/split_registry.h"
#include "sampler/plan.h"

namespace penstock {
namespace {

BalancerOptions balancer_options(const CoordinatorOptions& coordination) {
  BalancerOptions options = balancer_options(coordination.balancer);
  options.receivers = static_cast<int32_t>(coordination.receivers.size());
  options.embedded = coordination.embedded;
  return options;
}

constexpr Nanoseconds kLongPause = kSecond;        // between two ticks, of which there are several a second
constexpr Nanoseconds kAnswerTakes = 2 * kSecond;  // of a loader that has tried again for balancer.retry_s

class CoordinatorImpl final : public Coordinator {
 public:
  CoordinatorImpl(const CoordinatorOptions& options, const Clock& clock, Send send, Notice notice,
                  std::function<void()> wake)
      : options_(options),
        clock_(clock),
        send_(std::move(send)),
        notice_(std::move(notice)),
        balancer_(balancer_options(options)),
        background_([wake = std::move(wake)] {
          if (wake) wake();
        }),
        splits_(
            {options.receivers.size(), options.loaders.size(), options.chunk_samples, options.embedded, options.hosts,
             balancer_options(options).lost_after_ns,
             static_cast<Nanoseconds>(options.balancer.all_lost_wait_s() * 1e9),
             std::max(options.listing_ns, balancer_options(options).retry_for_ns + kAnswerTakes)},
            clock, [this](PeerId peer, const ControlMessage& message) { answer(peer, message); },
            [this](const std::string& text) {
              if (notice_) notice_(text);
            },
            [this](Fingerprint fingerprint) { return has_lease_streams(fingerprint); }, background_),
        agreement_(options.receivers.size()) {
    if (!options.balancer.log.empty()) {
      log_.open(options.balancer.log, std::ios::trunc);
      if (!log_) {
        throw Error(ErrorKind::runtime,
                    system_error_text("cannot write the balancer's log '" + options.balancer.log + "'"),
                    "check balancer.log");
      }
      log_ << log_first_line(balancer_options(options));
    }
  }

  void handle(PeerId peer, const ControlMessage& message) override {
    const Stopwatch stopwatch{clock_, figures_.busy_ns};
    handle_message(peer, message);
  }
  void handle_message(PeerId peer, const ControlMessage& message) {
    if (fenced(peer, message)) return;
    heard_ns_[peer] = clock_.now();
    std::visit(overloaded{
                   [&](const LoaderHello& m) {
                     joined_.insert(peer);
                     back_again(peer);
                     const int threads = std::max(1, m.threads);
                     threads_[peer] = threads;
                     splits_.loader_joined(peer);
                     apply(LoaderJoined{peer, m.depth, m.chunk_buffers, node_of(peer), m.gpus ? 1 : 0, threads});
                     let_some_leave();
                   },
                   [&](const LoaderLeaving& m) {
                     leaving_[peer] = {m.reason, clock_.now()};
                     let_some_leave();
                   },
                   [&](const Alive&) {
                     apply(LoaderAlive{peer});
                     let_some_leave();
                   },
                   [&](const LeasesAhead& m) {
                     apply(LoaderAhead{peer, std::max(0, m.leases)});
                   },
                   [&](const OpenSplit& m) { open_split(peer, m); },
                   [&](const SplitClosed& m) {
                     close_split(peer, m);
                     splits_.forget_closed();
                     let_some_leave();
                   },
                   [&](const SplitPrepared& m) {
                     splits_.prepared(peer, m);
                     say_held(peer, m.fingerprint);
                     let_some_leave();
                   },
                   [&](const SizesTold& m) { splits_.sizes_told(peer, m); },
                   [&](const OpenLeaseStream& m) { open_lease_stream(peer, m); },
                   [&](const BatchBufferFree& m) {
                     if (waits(m.lease_stream, m)) return;
                     batch_buffer_free(m);
                   },
                   [&](const CursorAt& m) {
                     if (waits(m.lease_stream, m)) return;
                     if (streams_.count(m.lease_stream) == 0) return;
                     auto& batches = streams_.at(m.lease_stream).batches;
                     batches.erase(batches.begin(), batches.lower_bound(m.cursor));
                     apply(CursorMoved{m.lease_stream, m.cursor, m.waiting});
                   },
                   [&](const CloseLeaseStream& m) { close_lease_stream(m.lease_stream); },
                   [&](const ProgramsAt& m) { programs_at(peer, m.living); },
                   [&](const ChunkDone& m) {
                     apply(ChunkProduced{peer, m.lease, m.busy_ns, m.bytes, m.pixels, m.held_ns});
                   },
                   [&](const ChunkUndone& m) {
                     apply(ChunkFailed{peer, m.lease, m.reason});
                   },
                   [&](const ChunkDamaged& m) {
                     if (given_up_.count(m.loader) == 0) apply(ChunkFailed{m.loader, m.lease, m.reason});
                   },
                   [&](const ChunkBufferFree& m) {
                     apply(ChunkBufferFreed{peer, m.receiver});
                   },
                   [&](const ChunkTaken& m) {
                     if (streams_.count(m.lease.lease_stream) != 0) apply(ChunkAccepted{m.lease});
                   },
                   [&](const auto&) {
                     throw Error(ErrorKind::peer_lost,
                                 "rank " + std::to_string(peer) + " sent the coordinator a message that is not for it",
                                 "all ranks must run the same version of penstock");
                   },
               },
               message);
    splits_.forget_closed();
  }

  void peer_lost(PeerId peer, const std::string& reason, bool dead) override {
    if (dead_.count(peer) != 0 || (!dead && given_up_.count(peer) != 0)) return;
    const bool news = given_up_.erase(peer) == 0;
    if (dead) {
      dead_.insert(peer);
    } else {
      given_up_.insert(peer);
      send_(peer, GivenUp{++incarnations_[peer]});
    }
    if (news) lose(peer, reason, dead);
    for (const PeerId receiver : options_.receivers) send_(receiver, LoaderGone{peer, dead});
  }

  void reported(PeerId peer) override {
    if (drained_.erase(peer) == 0) return;
    ++leave_count_;
    if (left_.size() == kMostListed) left_.pop_front();
    left_.push_back(name(peer) + ": " + leaving_[peer].reason + "; " + seconds_text(clock_.now() - begun_ns_) +
                    " after the start");
    dead_.insert(peer);  // as far as anybody still has to do with it
    forget(peer, "left: " + leaving_[peer].reason);
    send_(peer, Goodbye{true, 0, "", false});
    for (const PeerId receiver : options_.receivers) send_(receiver, LoaderGone{peer, true, true});
  }

  // Where this process stood still itself, what others said meanwhile is read first: nobody is silent for that. One Tick
  // is left out for it and never two in a row, or an event loop whose turns all take that long would never miss anybody.
  void tick() override {
    const Stopwatch stopwatch{clock_, figures_.busy_ns};
    const Nanoseconds now = clock_.now();
    const bool stood_still = now - std::exchange(last_tick_ns_, now) > kLongPause;
    left_out_ = stood_still && !left_out_;
    if (left_out_) return;
    splits_.tick();
    say_who_cannot_read();
    end_waits_for_dead();
    apply(Tick{});
    // While serving, no lease stream may be open for days, so nothing would show that no loader is left until the next
    // program waited in vain.
    if (!options_.serving || !joined_.empty() || losses_.empty() || !all_lost_.empty()) return;
    const Nanoseconds since = now - losses_.back().at_ns;
    if (since < balancer_options(options_).all_lost_ns) return;
    all_lost_ = "no loader is left, and none joined within " + seconds_text(since) + last_loss_text();
  }

  bool resume() override {
    const Stopwatch stopwatch{clock_, figures_.busy_ns};
    splits_.resume();
    let_some_leave();
    const size_t before = reading_.size() + planning_.size();
    if (before == 0) return false;
    for (auto it = reading_.begin(); it != reading_.end();) {
      if (!is_ready(it->asked)) {
        ++it;
        continue;
      }
      const Reading one = std::move(*it);
      it = reading_.erase(it);
      finish_opening(one);
    }
    std::vector<LeaseStreamId> ids;
    for (const auto& [id, one] : planning_) ids.push_back(id);
    for (const LeaseStreamId id : ids) try_planned(id);
    splits_.forget_closed();
    return reading_.size() + planning_.size() < before;
  }

  std::optional<Nanoseconds> idle_since() const override { return idle_since_; }
  std::vector<PeerId> living_loaders() const override { return {joined_.begin(), joined_.end()}; }
  bool any_away() const override { return !given_up_.empty() || !dead_.empty() || balancer_.any_apart(); }
  std::string all_lost() const override { return all_lost_; }
  nlohmann::json balance() const override { return balance_report(balancer_, options_.nodes); }
  Figures figures() const override {
    Figures figures = figures_;
    for (const auto& [loader, f] : balancer_.figures()) {
      figures.regranted += f.regranted;
      figures.hedged += f.hedged;
    }
    for (const Loss& loss : losses_) figures.lost.push_back(text_of(loss));
    figures.left = {left_.begin(), left_.end()};
    for (const auto& [loader, incarnation] : incarnations_) {
      if (joined_.count(loader) != 0) figures.back.push_back(name(loader));
    }
    figures.losses = loss_count_;
    figures.leaves = leave_count_;
    return figures;
  }

 private:
  // What a call from outside takes counts as coordinating.
  struct Stopwatch {
    const Clock& clock;
    Nanoseconds& sum;
    const Nanoseconds begun = clock.now();
    ~Stopwatch() { sum += clock.now() - begun; }
  };

  struct Loss {
    PeerId loader = 0;
    std::string reason;
    Nanoseconds at_ns = 0;  // of the clock
    int64_t chunks = 0;     // that it had, and others made
    std::optional<Nanoseconds> back_at_ns;
  };

  std::string text_of(const Loss& loss) const {
    std::string text = name(loss.loader) + ": " + loss.reason + "; " + seconds_text(loss.at_ns - begun_ns_) +
                       " after the start, with " + std::to_string(loss.chunks) +
                       (loss.chunks == 1 ? " chunk" : " chunks") + " in hand";
    if (loss.back_at_ns) text += "; back after " + seconds_text(*loss.back_at_ns - loss.at_ns);
    return text;
  }
  std::string last_loss_text() const {
    return "; the last one was " + name(losses_.back().loader) + ", lost: " + losses_.back().reason;
  }
  int64_t regranted_of(PeerId loader) const {
    const auto figures = balancer_.figures();
    const auto it = figures.find(loader);
    return it == figures.end() ? 0 : it->second.regranted;
  }

  // Messages of a loader that was given up are ignored until it joins again as its next incarnation.
  bool fenced(PeerId peer, const ControlMessage& message) {
    if (given_up_.count(peer) == 0) return dead_.count(peer) != 0;
    const auto* hello = std::get_if<LoaderHello>(&message);
    return hello == nullptr || hello->incarnation != incarnations_[peer];
  }

  void forget(PeerId peer, const std::string& reason) {
    threads_.erase(peer);
    draining_.erase(peer);
    drained_.erase(peer);
    last_loss_ns_ = clock_.now();
    if (joined_.erase(peer) != 0) apply(LoaderLost{peer, reason});
    splits_.loader_lost(peer);
    splits_.forget_closed();
  }

  // A dead rank never joins again (fenced()), so where all are dead on_all_lost: wait ends when fail does.
  void end_waits_for_dead() {
    const bool waits = options_.balancer.on_all_lost == AllLostPolicy::wait;
    const bool any_may_come = std::any_of(options_.loaders.begin(), options_.loaders.end(),
                                          [&](PeerId loader) { return dead_.count(loader) == 0; });
    if (!waits || any_may_come || !joined_.empty() || losses_.empty()) return;
    if (clock_.now() - last_loss_ns_ < BalancerOptions().all_lost_ns) return;
    const std::string why =
        "no loader is left, and none can come back, because their processes have ended" + last_loss_text();
    splits_.nobody_returns();
    std::vector<LeaseStreamId> ids;
    for (const auto& [id, stream] : streams_) ids.push_back(id);
    for (const LeaseStreamId id : ids) {
      fail_lease_stream({id, why, {}});
      apply(LeaseStreamClosed{id});
    }
    if (options_.serving && all_lost_.empty()) all_lost_ = why;
  }

  // One that was heard of since: one that is stopped just now may never come back.
  bool another_stays(PeerId leaves, Nanoseconds since) const {
    return std::any_of(joined_.begin(), joined_.end(), [&](PeerId other) {
      return other != leaves && draining_.count(other) == 0 && heard_ns_.at(other) >= since;
    });
  }

  // Loaders leave one after the other, and only while others stay that can read the same samples.
  void let_some_leave() {
    if (leaving_.empty()) return;
    for (const auto& [peer, asked] : leaving_) {
      if (joined_.count(peer) == 0 || draining_.count(peer) != 0) continue;
      if (!another_stays(peer, asked.at_ns)) continue;
      if (splits_.is_last_holder(peer, draining_)) continue;
      draining_.insert(peer);
      if (notice_) {
        notice_(name(peer) + " leaves (" + asked.reason + "); the other loaders take its work");
      }
      apply(LoaderDraining{peer});
    }
  }
  void drained(PeerId peer) {
    drained_.insert(peer);
    send_(peer, Leave{leaving_[peer].reason});
  }

  std::string name(PeerId loader) const { return loader_name(loader, options_.embedded, options_.hosts); }

  void lose(PeerId peer, const std::string& reason, bool dead) {
    const int64_t before = regranted_of(peer);
    forget(peer, reason);
    ++loss_count_;
    if (losses_.size() == kMostListed) losses_.pop_front();
    losses_.push_back({peer, reason, clock_.now(), regranted_of(peer) - before, std::nullopt});
    if (!notice_ || options_.embedded) return;
    notice_("lost " + name(peer) + ": " + reason +
            (joined_.empty()
                 ? "; no loader is left"
                 : "; the other loaders make what it had" + std::string(dead ? "" : ", and it may come back")));
  }

  void back_again(PeerId peer) {
    if (given_up_.erase(peer) == 0) return;
    const auto loss =
        std::find_if(losses_.rbegin(), losses_.rend(), [&](const Loss& one) { return one.loader == peer; });
    if (loss != losses_.rend()) loss->back_at_ns = clock_.now();
    if (notice_) notice_(name(peer) + " is back and takes work again");
  }

  int node_of(PeerId peer) const {
    return static_cast<size_t>(peer) < options_.nodes.size() ? options_.nodes[static_cast<size_t>(peer)] : 0;
  }

  // A split whose sampler's file is being read, once for all that open it.
  struct Reading {
    Fingerprint described = 0;
    std::shared_future<SplitAsked> asked;
    std::vector<std::pair<PeerId, OpenSplit>> openings;
  };
  // An iteration whose plan is being made, and what was said of it meanwhile.
  struct Planning {
    PeerId receiver = 0;
    OpenLeaseStream m;
    std::vector<ControlMessage> later;
  };

  void open_split(PeerId receiver, const OpenSplit& m) {
    try {
      SplitAsked asked = splits_.parse(m);
      if (!asked.reads) return opened_split(receiver, m, std::move(asked));
      const Fingerprint described = asked.described;
      auto same = std::find_if(reading_.begin(), reading_.end(),
                               [&](const Reading& one) { return one.described == described; });
      if (same == reading_.end()) {
        std::function<SplitAsked()> read = [asked = std::move(asked)] { return read_numbers(asked); };
        same = reading_.insert(same, {described, background_.run(std::move(read)), {}});
      }
      same->openings.emplace_back(receiver, m);
    } catch (const Error& error) {
      send_(receiver, SplitRefused{m.split, error.exit_code(), error.message(), error.remedy()});
    }
  }
  void finish_opening(const Reading& one) {
    for (const auto& [receiver, m] : one.openings) {
      try {
        opened_split(receiver, m, one.asked.get());
      } catch (const Error& error) {
        send_(receiver, SplitRefused{m.split, error.exit_code(), error.message(), error.remedy()});
      }
    }
  }
  void close_split(PeerId receiver, const SplitClosed& m) {
    for (Reading& one : reading_) {
      const size_t found = std::erase_if(one.openings, [&](const auto& opening) {
        return opening.first == receiver && opening.second.split == m.split;
      });
      if (found > 0) return;
    }
    splits_.close({receiver, m.split});
  }

  // Forwards what the splits answer. A program whose split no loader is left for ends, and it is the loss that ends the
  // job. Where programs come and go, tick() sees to that.
  void answer(PeerId peer, const ControlMessage& message) {
    const auto* refused = std::get_if<SplitRefused>(&message);
    const bool lost = refused != nullptr && refused->error_kind == static_cast<int32_t>(ErrorKind::peer_lost);
    if (lost && !options_.serving) all_lost_ = refused->error;
    send_(peer, message);
  }

  void opened_split(PeerId receiver, const OpenSplit& m, SplitAsked asked) {
    const ReplicaAgreement::Program who{receiver, m.replica, m.program};
    const std::string& name = asked.resolved.name;
    if (const auto complaint = agreement_.opened(who, name, m.opening, m.json)) {
      send_(receiver, SplitRefused{m.split, static_cast<int32_t>(ErrorKind::config), *complaint,
                                   "give every trainer the same job file and overrides"});
      return;
    }
    const size_t program = agreement_.program_number(who, name);
    splits_.open({receiver, m.split}, program, m, std::move(asked));
  }

  bool has_lease_streams(Fingerprint fingerprint) const {
    return std::any_of(streams_.begin(), streams_.end(),
                       [&](const auto& item) { return item.second.fingerprint == fingerprint; }) ||
           std::any_of(planning_.begin(), planning_.end(),
                       [&](const auto& item) { return item.second.m.fingerprint == fingerprint; });
  }

  int32_t choose_chunk(const OpenedSplit& split) const {
    if (options_.chunk_samples > 0) return split.max_chunk_samples;
    int64_t threads = 0;
    for (const auto& [loader, its] : threads_) threads += its;
    return chunk_samples_for(split.resolved.split.batch_size, std::ssize(options_.receivers), threads,
                             split.max_chunk_samples);
  }

  void open_lease_stream(PeerId receiver, const OpenLeaseStream& m) {
    OpenedSplit* found = splits_.find(m.fingerprint);
    if (found == nullptr) {
      send_(receiver,
            LeaseStreamFailed{m.lease_stream, static_cast<int32_t>(ErrorKind::usage), "the split was not opened", ""});
      return;
    }
    OpenedSplit& split = *found;
    const auto complaint = m.again ? std::nullopt
                                   : agreement_.began({receiver, m.replica, m.program}, split.resolved.name, m.opening,
                                                      m.epoch, m.first_step);
    if (complaint) {
      send_(receiver,
            LeaseStreamFailed{m.lease_stream, static_cast<int32_t>(ErrorKind::usage), *complaint,
                              "resume every trainer from the same state, and call set_epoch() alike in all of them"});
      return;
    }
    planning_[m.lease_stream] = {receiver, m, {}};
    try_planned(m.lease_stream);
  }

  // True: the iteration's plan is still being made; the message is kept, and handled when the plan is there.
  bool waits(LeaseStreamId id, const ControlMessage& message) {
    const auto it = planning_.find(id);
    if (it == planning_.end()) return false;
    it->second.later.push_back(message);
    return true;
  }

  // Opens the lease stream if its plan is there.
  void try_planned(LeaseStreamId id) {
    Planning& asked = planning_.at(id);
    std::shared_ptr<const Plan> plan;
    OpenedSplit* const split = splits_.find(asked.m.fingerprint);
    try {
      if (split->local() && split->disks.placement(split->prepared.dataset_size, background_) == nullptr) return;
      if (split->resolved.split.sampler.program) {
        plan = program_plan(split->resolved, asked.m.order, split->prepared.dataset_size, asked.m.epoch);
      } else if ((plan = split->plans.of(asked.m.epoch)) == nullptr) {
        return;
      }
    } catch (const Error& error) {
      send_(asked.receiver, LeaseStreamFailed{id, error.exit_code(), error.message(), error.remedy()});
      planning_.erase(id);
      return;
    }
    const Planning planned = std::move(asked);
    planning_.erase(id);
    begin_lease_stream(planned.receiver, planned.m, *split, std::move(plan));
    for (const ControlMessage& message : planned.later) handle_message(planned.receiver, message);
  }

  void begin_lease_stream(PeerId receiver, const OpenLeaseStream& m, OpenedSplit& split,
                          std::shared_ptr<const Plan> plan) {
    LeaseStream stream;
    stream.fingerprint = m.fingerprint;
    stream.receiver = receiver;
    stream.plan = std::move(plan);
    if (split.resolved.split.sampler.program) stream.of_replicas = split.num_replicas;
    stream.replica = m.replica;
    stream.epoch = m.epoch;
    stream.gpu_reader = m.gpu_reader;
    stream.chunk_samples = choose_chunk(split);
    if (split.local()) stream.placement = split.disks.placement(split.prepared.dataset_size, background_);
    const bool by_holder = stream.placement != nullptr;
    stream.some_left_out = !by_holder && std::any_of(joined_.begin(), joined_.end(),
                                                     [&](PeerId loader) { return split.same_list.count(loader) == 0; });
    const bool by_group = by_holder || stream.some_left_out;
    const int64_t steps = stream.plan->steps();
    if (m.first_step >= steps) return;  // an iteration of no steps: it was only to be compared
    const auto chunks = [&](int64_t step) {
      return static_cast<int32_t>((stream.plan->batch_length(step) + stream.chunk_samples - 1) / stream.chunk_samples);
    };
    LeaseStreamOpened opened;
    opened.lease_stream = m.lease_stream;
    opened.receiver = receiver;
    opened.node = node_of(receiver);
    opened.first_step = m.first_step;
    opened.steps = steps;
    opened.chunks_per_step = chunks(0);
    opened.chunks_last_step = chunks(steps - 1);
    opened.payload_bytes = split.prepared.sample_bytes * stream.chunk_samples;
    send_(receiver, LeaseStreamReady{m.lease_stream, stream.chunk_samples, by_holder});
    streams_[m.lease_stream] = std::move(stream);
    splits_.iteration_begins();
    apply(opened);
    if (!by_group) return;
    const std::set<PeerId> joined = joined_;
    for (const PeerId loader : joined) say_held(loader, m.fingerprint, m.lease_stream);
  }

  // Tells the balancer what the loader can read of the split's lease streams, or of one of them: nothing where the
  // loader could not open the split, or has not yet.
  void say_held(PeerId loader, Fingerprint fingerprint, std::optional<LeaseStreamId> one = {}) {
    OpenedSplit* const split = splits_.find(fingerprint);
    if (split == nullptr || joined_.count(loader) == 0) return;
    if (!split->local()) {
      if (split->same_list.count(loader) != 0) say_open(loader, fingerprint, one);
      return;
    }
    const Readable readable = split->disks.of(loader);
    if (one && readable == nullptr) return;  // it will answer
    std::vector<SamplesHeld> events;
    for (const auto& [id, stream] : streams_) {
      if (stream.fingerprint != fingerprint || (one && *one != id)) continue;
      events.push_back(
          {id, loader, readable == nullptr ? std::vector<int64_t>() : stream.placement->held_by(readable)});
    }
    for (const SamplesHeld& event : events) apply(event);
  }
  // For a split that every loader can read all of, once it has it open.
  void say_open(PeerId loader, Fingerprint fingerprint, std::optional<LeaseStreamId> one) {
    std::vector<SamplesHeld> events;
    for (const auto& [id, stream] : streams_) {
      if (stream.fingerprint != fingerprint || !stream.some_left_out || (one && *one != id)) continue;
      events.push_back({id, loader, {LeaseStream::kWhole}});
    }
    for (const SamplesHeld& event : events) apply(event);
  }
  // When all loaders that had such a split open are lost, the balancer fails its lease streams once it knows that none of
  // the others can read it. That one cannot is said as late as that, because it may still list its files, or be trying
  // again. The wait has a limit, SplitRegistryOptions::listing_ns, and people are told of it.
  void say_who_cannot_read() {
    if (clock_.now() - last_loss_ns_ < balancer_options(options_).all_lost_ns) return;
    std::vector<SamplesHeld> events;
    std::set<std::string> waiting;  // once, however many trainers have the split open
    for (auto& [id, stream] : streams_) {
      if (!stream.some_left_out) continue;
      const OpenedSplit* const split = splits_.find(stream.fingerprint);
      if (split == nullptr || !split->same_list.empty()) continue;
      bool waits = false;
      for (const PeerId loader : joined_) {
        if (splits_.will_answer(loader, stream.fingerprint)) {
          waits = true;
        } else {
          events.push_back({id, loader, {}});
        }
      }
      if (!waits || std::exchange(stream.wait_named, true)) continue;
      waiting.insert("split '" + split->resolved.name + "' waits until one of the loaders that live has opened it: " +
                     splits_.why_not_open(stream.fingerprint));
    }
    for (const std::string& text : waiting) {
      if (notice_) notice_(text);
    }
    for (const SamplesHeld& event : events) apply(event);
  }

  void batch_buffer_free(const BatchBufferFree& m) {
    const auto it = streams_.find(m.lease_stream);
    if (it == streams_.end()) return;
    LeaseStream& stream = it->second;
    BatchBufferReserved reserved{m.lease_stream, m.step};
    if (const OpenedSplit* split = splits_.find(stream.fingerprint); split != nullptr) {
      reserved.chunk_bytes = stream.chunk_bytes(m.lease_stream, m.step, split->sizes);
    }
    reserved.groups = stream.groups(m.step);
    apply(reserved);
  }

  void programs_at(PeerId receiver, int32_t living) {
    programs_[receiver] = living;
    const bool any = std::any_of(programs_.begin(), programs_.end(), [](const auto& item) { return item.second > 0; });
    if (any) {
      idle_since_.reset();
      return;
    }
    idle_since_ = clock_.now();
    agreement_.forget();
    splits_.programs_gone();
  }

  void close_lease_stream(LeaseStreamId id) {
    planning_.erase(id);
    if (streams_.erase(id) != 0) apply(LeaseStreamClosed{id});
  }

  void apply(const Event& event) {
    const int64_t now = clock_.now();
    const std::vector<Action> actions = balancer_.step(now, event);
    if (log_.is_open() && !(log_ << log_lines(++logged_, now, event, actions) << std::flush)) {
      log_.close();  // a record of the job is not worth the job
      if (notice_) {
        notice_("cannot write the balancer's log '" + options_.balancer.log +
                "' any more; it ends here, and the job goes on (is its disk full?)");
      }
    }
    // Loaders are sent what was decided first. The other actions cause further events, which may close lease streams: a
    // grant that was sent after those would be dropped, and its chunk buffer would never be free again.
    for (const Action& action : actions) {
      if (const auto* a = std::get_if<Grant>(&action)) grant(*a);
      if (const auto* a = std::get_if<Revoke>(&action)) send_(a->loader, LeaseRevoked{a->lease});
    }
    for (const Action& action : actions) {
      std::visit(overloaded{
                     [](const Grant&) {},
                     [](const Revoke&) {},
                     [&](const LoaderDrained& a) { drained(a.loader); },
                     [&](const GiveUpLoader& a) { peer_lost(a.loader, a.reason, false); },
                     [&](const FailLeaseStream& a) { fail_lease_stream(a); },
                 },
                 action);
    }
  }

  void grant(const Grant& a) {
    const auto it = streams_.find(a.lease.lease_stream);
    if (it == streams_.end()) return;
    LeaseStream& stream = it->second;
    const BatchPlan& batch = stream.batch(a.lease.step);
    const std::vector<int32_t> rows = stream.rows(a.lease, std::ssize(batch));
    LeaseGranted lease;
    lease.lease = a.lease;
    lease.fingerprint = stream.fingerprint;
    lease.epoch = stream.epoch;
    lease.replica = stream.replica;
    lease.receiver = stream.receiver;
    lease.first_row = rows.front();
    lease.gpu_reader = is_remake(a.lease) ? 0 : stream.gpu_reader;  // nobody is to read what is only compared
    lease.compared = a.compared;
    for (const int32_t row : rows) lease.samples.push_back(batch[static_cast<size_t>(row)]);
    ++figures_.granted;
    send_(a.loader, lease);
  }

  void fail_lease_stream(const FailLeaseStream& a) {
    const auto it = streams_.find(a.lease_stream);
    if (it == streams_.end()) return;
    const bool unreadable = a.unreadable.lease_stream != 0;
    const ErrorKind kind = joined_.empty() || unreadable ? ErrorKind::peer_lost : ErrorKind::runtime;
    std::string reason = unreadable ? unreadable_samples(it->second, a.unreadable) + ": " + a.reason : a.reason;
    if (unreadable && it->second.some_left_out) {
      const std::string why = splits_.why_not_open(it->second.fingerprint);
      reason += "; the loaders that live have not opened the split" + (why.empty() ? why : ": " + why);
    }
    if (joined_.empty() || unreadable) all_lost_ = reason;
    const PeerId receiver = it->second.receiver;
    streams_.erase(it);
    send_(receiver, LeaseStreamFailed{a.lease_stream, static_cast<int32_t>(kind), reason, ""});
  }

  std::string unreadable_samples(LeaseStream& stream, const LeaseKey& lease) {
    const BatchPlan& batch = stream.batch(lease.step);
    const std::vector<int32_t> rows = stream.rows(lease, std::ssize(batch));
    const OpenedSplit* const split = splits_.find(stream.fingerprint);
    std::string text = "sample " + std::to_string(batch[static_cast<size_t>(rows.front())].index);
    if (split != nullptr) text += " of split '" + split->resolved.name + "'";
    const size_t others = rows.size() - 1;
    if (others > 0) {
      text += " and " + std::to_string(others) + (others == 1 ? " other" : " others") + " of step " +
              std::to_string(lease.step);
    }
    return text;
  }

  CoordinatorOptions options_;
  const Clock& clock_;
  Send send_;
  const Notice notice_;
  Balancer balancer_;
  std::ofstream log_;
  int64_t logged_ = 0;  // events
  // A loader is in one of these sets, or has not said hello yet:
  //
  //   joined --silent--> given up --LoaderHello of its next incarnation--> joined
  //      '-----------------'--- its process ended, or it left in good order ---> dead
  std::set<PeerId> joined_;
  std::set<PeerId> given_up_;
  std::set<PeerId> dead_;
  // Loaders that have joined and asked to leave, with the reason; those that drain; those that hold nothing any more.
  struct Leaving {
    std::string reason;
    Nanoseconds at_ns = 0;  // it asked
  };
  std::map<PeerId, Leaving> leaving_;
  std::set<PeerId> draining_;
  std::set<PeerId> drained_;
  std::deque<std::string> left_;
  int64_t leave_count_ = 0;
  std::map<PeerId, Nanoseconds> heard_ns_;
  std::map<PeerId, int32_t> incarnations_;  // of loaders that were given up: the one that may join
  std::deque<Loss> losses_;
  int64_t loss_count_ = 0;
  Nanoseconds last_loss_ns_ = 0;  // of a loader, also of one that left
  const Nanoseconds begun_ns_ = clock_.now();
  Nanoseconds last_tick_ns_ = begun_ns_;
  bool left_out_ = false;          // the last Tick was
  std::map<PeerId, int> threads_;  // of the loaders that have joined
  BackgroundWork background_;
  std::list<Reading> reading_;
  std::map<LeaseStreamId, Planning> planning_;
  SplitRegistry splits_;
  ReplicaAgreement agreement_;
  std::string all_lost_;
  std::map<PeerId, int32_t> programs_;  // that live at each receiver
  std::optional<Nanoseconds> idle_since_;
  std::map<LeaseStreamId, LeaseStream> streams_;
  Figures figures_;
};

}  // namespace

std::unique_ptr<Coordinator> make_coordinator(const CoordinatorOptions& options, const Clock& clock,
                                              Coordinator::Send send, Coordinator::Notice notice,
                                              std::function<void()> wake) {
  return std::make_unique<CoordinatorImpl>(options, clock, std::move(send), std::move(notice), std::move(wake));
}

}  // namespace penstock
