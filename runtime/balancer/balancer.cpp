#include "runtime/balancer/balancer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "runtime/balancer/finish_times.h"
#include "runtime/balancer/lease_stream_registry.h"
#include "runtime/balancer/lease_times.h"
#include "runtime/balancer/loader_registry.h"
#include "runtime/base/error.h"

namespace penstock {

namespace {

using State = ChunkState::State;

constexpr int kFailuresBeforePause = 3;
constexpr int kMostDoublings = 5;  // of a chunk's lease timeout: 32 times
constexpr int64_t kShortestLateness = 250'000'000;
constexpr int64_t kLateness = 3;  // times what 99 of 100 leases take
// One hedge in so many grants.
constexpr uint64_t kHedgeEvery = 50;
constexpr uint64_t kHedgeEveryUnderFaults = 20;
constexpr int64_t kFaultsLast = 60'000'000'000;
constexpr int64_t kFirstRest = 100'000'000;
constexpr int64_t kLongestRest = 5'000'000'000;
constexpr int kMostRestDoublings = 6;

std::string seconds(int64_t ns) {
  const int64_t tenths = (ns + 50'000'000) / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

void require(bool good, const std::string& message) {
  if (!good) throw Error(ErrorKind::usage, "balancer: " + message, "this is a fault of the balancer's owner");
}

// Counter-based, so that a replay draws the same whatever was asked before.
uint64_t splitmix64(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

// At the end of every event no waiting chunk is admitted by any loader that does not leave it to others (under policy
// `random` by no loader at all). So an event need only look at what it made possible: a loader with new room against the
// lease streams in order, new chunks of a lease stream against the loaders in order. Moving a cursor makes nothing
// possible, it only re-keys. What a loader left to others is looked at again at every Tick.
class Balancer::Impl {
 public:
  explicit Impl(const BalancerOptions& options) : options_(options), loaders_(options.receivers) {
    require(options.lease_timeout_ns > 0 && options.lost_after_ns > 0, "timeouts must be positive");
    require(options.all_lost_ns >= 0, "all_lost_ns must not be negative");
    require(options.max_attempts > 0, "max_attempts must be positive");
    require(options.receivers >= 0, "receivers must not be negative");
  }

  std::vector<Action> step(int64_t now_ns, const Event& event) {
    now_ = std::max(now_, now_ns);
    actions_.clear();
    std::visit([this](const auto& e) { on(e); }, event);
    if (!remakes_wanted_.empty()) grant_remakes();
    say_who_has_drained();
    if (options_.policy == BalancerOptions::Policy::random) dispatch_random();
    return std::move(actions_);
  }

  std::map<LoaderId, LoaderFigures> figures() const {
    std::map<LoaderId, LoaderFigures> result = figures_;
    for (const auto& [id, loader] : loaders_.all()) note_figures(result[id], loader);
    return result;
  }

  bool any_apart() const { return !apart_.empty(); }

  CostFigures cost(int32_t executor_class) const {
    const CostModel& model = finish_.model(executor_class);
    return {model.samples(), model.mean_ns(), model.fixed_ns(), model.ns_per_byte(), model.ns_per_pixel()};
  }

  std::vector<LinkFigures> links() const {
    std::vector<LinkFigures> result;
    for (const auto& [link, f] : finish_.links.figures()) {
      const double bytes_per_s = f.ns_per_byte > 0 ? 1e9 / f.ns_per_byte : 0;
      result.push_back({link.from, link.to, f.chunks, f.bytes, bytes_per_s, f.latency_ns, f.peak_bytes_per_s});
    }
    return result;
  }

 private:
  // ---- events of loaders -----------------------------------------------------------------------------------------
  void on(const LoaderJoined& e) {
    require(e.depth > 0 && e.chunk_buffers > 0 && e.threads >= 0,
            "loader " + std::to_string(e.loader) +
                " joins without depth or chunk buffers, or with fewer threads than none");
    if (loaders_.find(e.loader) != nullptr) lose(e.loader, "joined again");
    LoaderState& loader = loaders_.join(e, now_);
    any_loader_ever_ = true;
    finish_.fleet_changed();
    figures_[e.loader];
    check_at(loader, now_ + stalled_after());
    dispatch_loader(loader);
  }

  void on(const LoaderAlive& e) { note_alive(e.loader); }

  void on(const LoaderLost& e) { lose(e.loader, e.reason); }

  void on(const LoaderDraining& e) {
    LoaderState* loader = loaders_.find(e.loader);
    if (loader == nullptr) return;
    finish_.fleet_changed();
    loader->draining = true;  // first: one that is heard again after a silence would be granted something
    draining_.insert(e.loader);
    note_alive(e.loader);
    loaders_.refresh(*loader);
    if (left_to_others_) dispatch_all();
  }

  void on(const LoaderAhead& e) {
    require(e.leases >= 0, "loader " + std::to_string(e.loader) + " wants fewer leases than none");
    LoaderState* loader = note_alive(e.loader);
    if (loader == nullptr) return;
    constexpr int32_t kMostAhead = 1 << 16;  // more than any loader has chunk buffers; leases are added up in 32 bits
    loader->ahead = std::min(e.leases, kMostAhead);
    loaders_.refresh(*loader);
    dispatch_loader(*loader);
  }

  void on(const ChunkProduced& e) {
    LoaderState* loader = note_alive(e.loader);
    if (loader == nullptr) return;
    LoaderFigures& figures = figures_[e.loader];
    ++figures.chunks;
    figures.busy_ns += std::max<int64_t>(0, e.busy_ns);
    LeaseStreamState* stream = streams_.find(e.lease.lease_stream);
    const ChunkState* leased = stream == nullptr || is_remake(e.lease) ? nullptr : held_chunk(*stream, e.lease);
    finish_.produced(*loader, stream, e, leased == nullptr ? -1 : leased->granted_ns, now_);
    loader->failures_in_a_row = 0;

    const bool made = stream != nullptr && loaders_.made(*loader, stream->opened.receiver, e.lease);
    if (made && !is_remake(e.lease)) {
      ChunkState& chunk = *streams_.chunk(*stream, e.lease.step, e.lease.chunk);
      chunk.state = State::sent;
      chunk.made_ns = now_;
      chunk.held_ns = e.held_ns;
      streams_.dequeue(*stream, e.lease.step, e.lease.chunk, chunk);  // it had expired, but here it comes
      start_timer(e.lease, chunk, doubled(options_.lease_timeout_ns, chunk));
      observe_time(now_ - chunk.granted_ns);
    } else if (!made) {
      loaders_.revoked_answered(*loader, e.lease);
    }
    loaders_.refresh(*loader);  // the speed changed
    dispatch_loader(*loader);
  }

  void on(const ChunkFailed& e) {
    LoaderState* loader = note_alive(e.loader);
    if (loader == nullptr) return;
    if (++loader->failures_in_a_row >= kFailuresBeforePause) pause(*loader);

    LeaseStreamState* stream = streams_.find(e.lease.lease_stream);
    if (is_remake(e.lease)) {
      if (stream != nullptr) loaders_.finish(*loader, stream->opened.receiver, e.lease);
      remakes_.erase(e.lease);
    }
    ChunkState* chunk = stream == nullptr ? nullptr : held_chunk(*stream, e.lease);
    if (chunk == nullptr || chunk->leased_to != e.loader ||
        !loaders_.finish(*loader, stream->opened.receiver, e.lease)) {
      loaders_.revoked_answered(*loader, e.lease);
      dispatch_loader(*loader);
      return;
    }
    stop_timer(e.lease, *chunk);
    leave_link(*stream, *chunk);
    chunk->state = State::waiting;
    if (chunk->failures++ == 0) chunk->first_failed_ns = now_;
    ++chunk->failures_in_a_row;
    chunk->failed_by.push_back(loader->serial);
    const std::string reason = name(e.loader) + ": " + e.reason;
    failed_chunks_[place_of(e.lease)] = reason;
    if (chunk->failures_in_a_row >= options_.max_attempts || hopeless(*stream, *chunk)) {
      rest_or_fail(*stream, e.lease, *chunk, reason);
    } else {
      ++figures_[e.loader].regranted;
      streams_.enqueue(*stream, e.lease.step, e.lease.chunk, *chunk);
      dispatch_lease_stream(*stream);
    }
    dispatch_loader(*loader);
  }

  void on(const ChunkBufferFreed& e) {
    LoaderState* loader = loaders_.find(e.loader);
    if (loader == nullptr) return;
    loaders_.chunk_buffer_freed(*loader, e.receiver);
    apart_.erase({e.receiver, e.loader});
    dispatch_loader(*loader);
  }

  // ---- events of receivers ---------------------------------------------------------------------------------------
  void on(const LeaseStreamOpened& e) {
    const std::string name = "lease stream " + std::to_string(e.lease_stream);
    require(streams_.find(e.lease_stream) == nullptr, name + " is opened twice");
    require(e.receiver >= 0 && e.receiver < INT32_MAX - 1, name + " has a negative receiver");
    require(e.first_step >= 0 && e.first_step <= e.steps, name + " has no range of steps");
    require(e.chunks_per_step > 0 && e.chunks_last_step > 0, name + " has steps without chunks");
    finish_.opened(streams_.open(e), now_);
    loaders_.receiver_seen(e.receiver);
    loaders_.set_live_receivers(streams_.live_receivers());
  }

  void on(const BatchBufferReserved& e) {
    LeaseStreamState* stream = streams_.find(e.lease_stream);
    if (stream == nullptr) return;
    const std::string name = "lease stream " + std::to_string(e.lease_stream) + ", step " + std::to_string(e.step);
    require(e.step >= stream->opened.first_step && e.step < stream->opened.steps, name + " is outside of its range");
    const size_t chunks = e.groups.empty() ? static_cast<size_t>(stream->chunks_of(e.step)) : e.groups.size();
    require(e.chunk_bytes.empty() || e.chunk_bytes.size() == chunks, name + " needs the bytes of each chunk");
    for (const int64_t bytes : e.chunk_bytes) require(bytes >= 0, name + " has chunks of negative size");
    for (const int64_t group : e.groups) require(group >= 0, name + " has a negative group");
    if (stream->waiting.empty()) stream->moved_ns = now_;
    if (streams_.reserve(*stream, e.step, e.chunk_bytes, e.groups)) dispatch_lease_stream(*stream);
  }

  void on(const SamplesHeld& e) {
    LeaseStreamState* stream = streams_.find(e.lease_stream);
    LoaderState* loader = loaders_.find(e.loader);
    if (stream == nullptr || loader == nullptr) return;
    for (const int64_t group : e.groups) {
      require(group >= 0, "loader " + std::to_string(e.loader) + " holds a negative group");
    }
    set_held(*stream, e.loader, e.groups);
    finish_.fleet_changed();
    dispatch_loader(*loader);
  }

  void on(const CursorMoved& e) {
    LeaseStreamState* stream = streams_.find(e.lease_stream);
    if (stream == nullptr) return;
    stream->cursor = e.cursor;
    stream->client_waits = e.waiting;
    streams_.rekey(*stream);
  }

  void on(const LeaseStreamClosed& e) {
    LeaseStreamState* stream = streams_.find(e.lease_stream);
    if (stream != nullptr) close(*stream);
  }

  void on(const ChunkAccepted& e) {
    LeaseStreamState* stream = streams_.find(e.lease.lease_stream);
    if (stream == nullptr) return;
    if (is_remake(e.lease)) return remake_accepted(*stream, e.lease);
    ChunkState* chunk = streams_.chunk(*stream, e.lease.step, e.lease.chunk);
    if (chunk == nullptr || chunk->state == State::done) return;
    stop_timer(e.lease, *chunk);
    stop_rest(e.lease, *chunk);
    streams_.dequeue(*stream, e.lease.step, e.lease.chunk, *chunk);
    LoaderState* holder = chunk->state == State::waiting ? nullptr : loaders_.find(chunk->leased_to);
    if (holder != nullptr) {
      LeaseKey live = e.lease;
      live.generation = chunk->generation;
      if (live == e.lease) apart_.erase({stream->opened.receiver, holder->id});
      // An older generation was accepted: what the holder still makes is not needed. The same one was accepted: it is
      // made, even where the loader's own message is still on its way.
      if (live == e.lease && chunk->compared) remakes_wanted_[place_of(live)] = {holder->id, chunk->group};
      if (live == e.lease) arrived(*stream, *chunk);
      if (live != e.lease && chunk->state == State::leased) {
        revoke(*stream, live, *holder);
      } else {
        loaders_.finish(*holder, stream->opened.receiver, live);
      }
    }
    leave_link(*stream, *chunk);
    failed_chunks_.erase(place_of(e.lease));
    streams_.done(*stream, e.lease.step, *chunk);  // `chunk` is gone with its step
    if (holder != nullptr) dispatch_loader(*holder);
  }

  // ---- time ------------------------------------------------------------------------------------------------------
  void on(const Tick&) {
    bool changed = check_silence();
    changed = end_pauses() || changed;
    changed = end_rests() || changed;
    changed = expire_leases() || changed;
    if (finish_.update_slow(loaders_)) {
      finish_.fleet_changed();
      changed = true;
    }
    changed = std::exchange(left_to_others_, false) || changed;
    if (any_loader_ever_ && loaders_.all().empty() && now_ - last_loss_ns_ >= options_.all_lost_ns) {
      while (!streams_.all().empty()) {
        fail(streams_.all().begin()->second, "no loader is left, and none joined within " +
                                                 seconds(now_ - last_loss_ns_) + "; the last one was " + last_loss_);
      }
    }
    fail_unreadable();
    if (changed) dispatch_all();
  }

  // Chunks that none of the loaders left can read: the last that could was lost a while ago.
  void fail_unreadable() {
    if (loaders_.all().empty() || now_ - last_loss_ns_ < options_.all_lost_ns) return;
    std::vector<std::pair<LeaseStreamId, LeaseKey>> found;
    for (const auto& [id, stream] : streams_.all()) {
      if (stream.said.empty() || stream.said.size() < loaders_.all().size()) continue;
      for (const auto& [step, bytes, index] : stream.waiting) {
        const ChunkState& chunk = stream.steps.at(step).chunks[static_cast<size_t>(index)];
        if (chunk.state != State::waiting || has_reader(stream, chunk.group)) continue;
        found.push_back({id, {id, step, index, chunk.generation}});
        break;
      }
    }
    for (const auto& [id, lease] : found) {
      LeaseStreamState& stream = *streams_.find(id);
      const int64_t group = streams_.chunk(stream, lease.step, lease.chunk)->group;
      const std::string last =
          group < std::ssize(stream.holders) ? stream.holders[static_cast<size_t>(group)].last_lost : std::string();
      fail(stream, "no loader is left that has it on its disks" + (last.empty() ? last : "; the last one was " + last),
           lease);
    }
  }

  int64_t stalled_after() const { return std::max<int64_t>(1, options_.lost_after_ns / 4); }

  void check_at(LoaderState& loader, int64_t at_ns) {
    loader.next_check_ns = at_ns;
    checks_.emplace(at_ns, loader.id);
  }

  // Each loader has one entry in checks_; hearing it costs nothing, the entry is only moved on when it comes up.
  bool check_silence() {
    bool any = false;
    while (!checks_.empty() && checks_.begin()->first <= now_) {
      LoaderState& loader = *loaders_.find(checks_.begin()->second);
      checks_.erase(checks_.begin());
      const int64_t silent = now_ - loader.last_received_ns;
      if (silent >= options_.lost_after_ns) {
        loader.given_up = true;
        finish_.fleet_changed();
        actions_.push_back(GiveUpLoader{loader.id, "silent for " + seconds(silent)});
      } else if (silent >= stalled_after()) {
        loader.stalled = true;
        finish_.fleet_changed();
        last_stall_ns_ = now_;
        any = release_held(loader) || any;
        check_at(loader, loader.last_received_ns + options_.lost_after_ns);
      } else {
        check_at(loader, loader.last_received_ns + stalled_after());
      }
      loaders_.refresh(loader);
    }
    return any;
  }

  // What a loader holds that stands still may go to others at once; it keeps it until one takes it.
  bool release_held(const LoaderState& loader) {
    const std::vector<LeaseKey> held = loader.live_leases();
    for (const LeaseKey& lease : held) {
      if (is_remake(lease)) continue;
      LeaseStreamState& stream = *streams_.find(lease.lease_stream);
      ChunkState& chunk = *streams_.chunk(stream, lease.step, lease.chunk);
      stop_timer(lease, chunk);
      ++chunk.expiries;
      streams_.enqueue(stream, lease.step, lease.chunk, chunk);
    }
    return !held.empty();
  }

  LoaderState* note_alive(LoaderId id) {
    LoaderState* loader = loaders_.find(id);
    if (loader == nullptr) return nullptr;
    loader->last_received_ns = now_;
    if (loader->stalled && !loader->given_up) {
      loader->stalled = false;
      finish_.fleet_changed();
      checks_.erase({loader->next_check_ns, id});
      check_at(*loader, now_ + stalled_after());
      loaders_.refresh(*loader);
      dispatch_loader(*loader);
    }
    return loader;
  }

  void pause(LoaderState& loader) {
    const int doublings = std::min(loader.failures_in_a_row - kFailuresBeforePause, 4);
    if (loader.paused_until_ns != 0) pauses_.erase({loader.paused_until_ns, loader.id});
    loader.paused_until_ns = now_ + std::max<int64_t>(1, options_.lost_after_ns / 16) * (int64_t{1} << doublings);
    pauses_.emplace(loader.paused_until_ns, loader.id);
    finish_.fleet_changed();
    loaders_.refresh(loader);
    if (left_to_others_) dispatch_all();
  }

  bool end_pauses() {
    bool any = false;
    for (; !pauses_.empty() && pauses_.begin()->first <= now_; any = true) {
      LoaderState& loader = *loaders_.find(pauses_.begin()->second);
      pauses_.erase(pauses_.begin());
      loader.paused_until_ns = 0;
      finish_.fleet_changed();
      loaders_.refresh(loader);
    }
    return any;
  }

  // All loaders may try the chunk again, those that failed it too.
  bool end_rests() {
    bool any = false;
    for (; !rests_.empty() && rests_.begin()->first <= now_; any = true) {
      const LeaseKey place = rests_.begin()->second;
      LeaseStreamState& stream = *streams_.find(place.lease_stream);
      ChunkState& chunk = *streams_.chunk(stream, place.step, place.chunk);
      stop_rest(place, chunk);
      chunk.failures_in_a_row = 0;
      chunk.failed_by.clear();
      streams_.enqueue(stream, place.step, place.chunk, chunk);
    }
    return any;
  }

  void stop_rest(const LeaseKey& lease, ChunkState& chunk) {
    if (chunk.rests_until_ns < 0) return;
    rests_.erase({chunk.rests_until_ns, place_of(lease)});
    chunk.rests_until_ns = -1;
  }

  // For a chunk that waits, and that no loader may try now.
  void rest_or_fail(LeaseStreamState& stream, const LeaseKey& lease, ChunkState& chunk, const std::string& reason) {
    const int64_t over_ns = chunk.first_failed_ns + options_.retry_for_ns;
    if (now_ >= over_ns) {
      fail_chunk(stream, lease, chunk, reason);
      return;
    }
    streams_.dequeue(stream, lease.step, lease.chunk, chunk);
    const int64_t rest_ns = std::min(kLongestRest, kFirstRest << std::min(chunk.rests++, kMostRestDoublings));
    chunk.rests_until_ns = std::min(now_ + rest_ns, over_ns);
    rests_.emplace(chunk.rests_until_ns, place_of(lease));
  }

  bool expire_leases() {
    bool any = false;
    for (; !timers_.empty() && timers_.begin()->first <= now_; any = true) {
      const LeaseKey lease = timers_.begin()->second;
      LeaseStreamState& stream = *streams_.find(lease.lease_stream);
      ChunkState& chunk = *streams_.chunk(stream, lease.step, lease.chunk);
      stop_timer(lease, chunk);
      if (now_ - since_ns(chunk) < doubled(options_.lease_timeout_ns, chunk)) {
        if (!chunk.late) times_.observe(now_ - chunk.granted_ns);  // it takes that long at least
        if (!may_hedge(stream, chunk)) {
          chunk.late = true;  // it is looked at again, because with every grant the budget grows
          const int64_t again = now_ - since_ns(chunk) + lateness(chunk);
          start_timer(lease, chunk, std::min(again, doubled(options_.lease_timeout_ns, chunk)));
          continue;
        }
        ++hedges_;
        ++figures_[chunk.leased_to].hedged;
      } else if (chunk.state == State::sent) {
        apart_.insert({stream.opened.receiver, chunk.leased_to});
      }
      ++chunk.expiries;
      streams_.enqueue(stream, lease.step, lease.chunk, chunk);  // it keeps its lease until another loader takes it
    }
    return any;
  }

  bool may_hedge(const LeaseStreamState& stream, const ChunkState& chunk) const {
    if (!has_reader_besides(stream, chunk.group, chunk.leased_to)) return false;
    const bool faults = (last_loss_ns_ != 0 && now_ - last_loss_ns_ < kFaultsLast) ||
                        (last_stall_ns_ != 0 && now_ - last_stall_ns_ < kFaultsLast);
    return (hedges_ + 1) * (faults ? kHedgeEveryUnderFaults : kHedgeEvery) <= grants_;
  }
  // Since when its state is as it is.
  static int64_t since_ns(const ChunkState& chunk) {
    return chunk.state == State::sent ? chunk.made_ns : chunk.granted_ns;
  }
  static int64_t doubled(int64_t wait_limit, const ChunkState& chunk) {
    for (int i = std::min(chunk.expiries, kMostDoublings); i > 0 && wait_limit < INT64_MAX / 4; --i) wait_limit *= 2;
    return wait_limit;
  }

  // From the grant until its chunk is late, by what leases usually take.
  int64_t lateness(const ChunkState& chunk) const {
    const int64_t p99_ns = times_.p99_ns();
    const int64_t most = doubled(options_.lease_timeout_ns, chunk);
    return p99_ns == 0 ? most : std::min(most, doubled(std::max(kShortestLateness, kLateness * p99_ns), chunk));
  }
  void observe_time(int64_t took_ns) {
    times_.observe(took_ns);
    if (times_known_ || times_.p99_ns() == 0) return;
    times_known_ = true;
    // Leases that were granted before this was known may be late, too.
    const std::set<std::pair<int64_t, LeaseKey>> running = timers_;
    for (const auto& [at_ns, place] : running) {
      LeaseStreamState& stream = *streams_.find(place.lease_stream);
      ChunkState& chunk = *streams_.chunk(stream, place.step, place.chunk);
      if (chunk.state == State::leased) start_timer(place, chunk, lateness(chunk));
    }
  }

  void start_timer(const LeaseKey& lease, ChunkState& chunk, int64_t wait_limit) {
    stop_timer(lease, chunk);
    const int64_t since = since_ns(chunk);
    chunk.expires_ns = since > INT64_MAX - wait_limit ? INT64_MAX : since + wait_limit;
    timers_.emplace(chunk.expires_ns, place_of(lease));
  }

  void stop_timer(const LeaseKey& lease, ChunkState& chunk) {
    if (chunk.expires_ns < 0) return;
    timers_.erase({chunk.expires_ns, place_of(lease)});
    chunk.expires_ns = -1;
  }

  // ---- ends ------------------------------------------------------------------------------------------------------
  void lose(LoaderId id, const std::string& reason) {
    LoaderState* loader = loaders_.find(id);
    if (loader == nullptr) return;
    const std::vector<LeaseKey> held = loader->live_leases();
    checks_.erase({loader->next_check_ns, id});
    if (loader->paused_until_ns != 0) pauses_.erase({loader->paused_until_ns, id});
    note_figures(figures_[id], *loader);
    loaders_.remove(id);
    finish_.fleet_changed();
    draining_.erase(id);
    std::erase_if(apart_, [id](const auto& pair) { return pair.second == id; });
    for (const LeaseKey& lease : held) {
      if (is_remake(lease)) {
        remakes_.erase(lease);
        continue;
      }
      LeaseStreamState& stream = *streams_.find(lease.lease_stream);
      ChunkState& chunk = *streams_.chunk(stream, lease.step, lease.chunk);
      stop_timer(lease, chunk);
      leave_link(stream, chunk);
      chunk.state = State::waiting;
      streams_.enqueue(stream, lease.step, lease.chunk, chunk);
      ++figures_[id].regranted;
    }
    last_loss_ns_ = now_;
    last_loss_ = name(id) + ", lost: " + reason;
    for (auto& [stream_id, stream] : streams_.all()) forget_held(stream, id, last_loss_);
    fail_hopeless();
    dispatch_all();
  }

  std::string name(LoaderId loader) const { return loader_name(loader, options_.embedded); }

  // True when loaders are left that can read the chunk, but each of them has failed it since it rested.
  bool hopeless(const LeaseStreamState& stream, const ChunkState& chunk) const {
    for (const auto& [id, loader] : loaders_.all()) {
      if (!failed_by(chunk, loader) && may_read(stream, chunk.group, id)) return false;
    }
    return has_reader(stream, chunk.group);
  }
  bool has_reader(const LeaseStreamState& stream, int64_t group) const {
    return has_reader_besides(stream, group, /*loader=*/-1);
  }
  bool has_reader_besides(const LeaseStreamState& stream, int64_t group, LoaderId loader) const {
    return std::any_of(loaders_.all().begin(), loaders_.all().end(),
                       [&](const auto& item) { return item.first != loader && may_read(stream, group, item.first); });
  }

  void fail_hopeless() {
    const std::map<LeaseKey, std::string> failed_chunks = failed_chunks_;  // failing a lease stream erases from it
    for (const auto& [place, reason] : failed_chunks) {
      LeaseStreamState* stream = streams_.find(place.lease_stream);
      if (stream == nullptr) continue;
      ChunkState& chunk = *streams_.chunk(*stream, place.step, place.chunk);
      const bool waits = chunk.state == State::waiting && chunk.rests_until_ns < 0;
      if (waits && hopeless(*stream, chunk)) rest_or_fail(*stream, place, chunk, reason);
    }
  }

  void fail_chunk(LeaseStreamState& stream, const LeaseKey& lease, const ChunkState& chunk, const std::string& reason) {
    fail(stream, "chunk " + std::to_string(lease.chunk) + " of step " + std::to_string(lease.step) + " failed " +
                     std::to_string(chunk.failures) + (chunk.failures == 1 ? " time" : " times") +
                     (chunk.rests > 0 ? " within " + seconds(now_ - chunk.first_failed_ns) : "") +
                     (chunk.failures_in_a_row >= options_.max_attempts ? "" : " and no other loader is left") +
                     "; last, " + reason);
  }

  void fail(LeaseStreamState& stream, const std::string& reason, const LeaseKey& unreadable = {}) {
    actions_.push_back(FailLeaseStream{stream.id(), reason, unreadable});
    close(stream);
  }

  void close(LeaseStreamState& stream) {
    const LeaseStreamId id = stream.id();
    for (auto& [step, reserved] : stream.steps) {
      for (size_t i = 0; i < reserved.chunks.size(); ++i) {
        ChunkState& chunk = reserved.chunks[i];
        const LeaseKey lease{id, step, static_cast<int32_t>(i), chunk.generation};
        stop_timer(lease, chunk);
        stop_rest(lease, chunk);
        leave_link(stream, chunk);
        LoaderState* holder = loaders_.find(chunk.leased_to);
        if (holder == nullptr) continue;
        if (chunk.state == State::leased) revoke(stream, lease, *holder);
        if (chunk.state == State::sent) loaders_.finish(*holder, stream.opened.receiver, lease);
      }
    }
    forget_remakes(stream);
    erase_stream(failed_chunks_, id);
    const int32_t live_before = streams_.live_receivers();
    streams_.close(id);
    finish_.fleet_changed();
    if (streams_.live_receivers() == live_before) return;
    loaders_.set_live_receivers(streams_.live_receivers());  // and everybody's quota grows
    dispatch_all();
  }

  template <class Map>
  static void erase_stream(Map& map, LeaseStreamId id) {
    map.erase(map.lower_bound(LeaseKey{id, INT64_MIN, INT32_MIN, 0}),
              map.upper_bound(LeaseKey{id, INT64_MAX, INT32_MAX, UINT32_MAX}));
  }

  // ---- chunks that are made twice --------------------------------------------------------------------------------
  bool is_to_be_compared(const LeaseStreamState& stream, const ChunkState& chunk) const {
    return options_.remake_every > 0 && grants_ % static_cast<uint64_t>(options_.remake_every) == 0 &&
           has_reader_besides(stream, chunk.group, chunk.leased_to);
  }

  void grant_remakes() {
    for (auto it = remakes_wanted_.begin(); it != remakes_wanted_.end();) {
      LeaseStreamState& stream = *streams_.find(it->first.lease_stream);
      const ChunkState unknown;  // it is done, and nothing is kept of it
      LoaderState* loader = loaders_.best(
          stream.opened.receiver, stream.opened.node,
          [&](const LoaderState& l) {
            return l.id != it->second.made_by && may_read(stream, it->second.group, l.id) && !apart(stream, l);
          },
          [&](const LoaderState& l) { return finish_.finish_ns(l, stream, unknown, now_); });
      if (loader == nullptr) {
        ++it;
        continue;
      }
      LeaseKey lease = it->first;
      it = remakes_wanted_.erase(it);
      lease.generation = kRemakeBit | (++remake_generation_ & ~kRemakeBit);
      remakes_[lease] = loader->id;
      ++hedges_;
      const HeldLease held{lease, finish_.work_ns(*loader, stream, unknown)};
      loaders_.grant(*loader, stream.opened.receiver, held, ++grants_);
      actions_.push_back(Grant{loader->id, stream.opened.receiver, lease, lease.step - stream.cursor, true});
    }
  }

  void remake_accepted(const LeaseStreamState& stream, const LeaseKey& lease) {
    const auto it = remakes_.find(lease);
    if (it == remakes_.end()) return;
    LoaderState* holder = loaders_.find(it->second);
    remakes_.erase(it);
    if (holder == nullptr) return;
    loaders_.finish(*holder, stream.opened.receiver, lease);
    dispatch_loader(*holder);
  }

  void forget_remakes(const LeaseStreamState& stream) {
    erase_stream(remakes_wanted_, stream.id());
    for (const auto& [lease, loader] : remakes_) {
      LoaderState* holder = lease.lease_stream == stream.id() ? loaders_.find(loader) : nullptr;
      if (holder == nullptr) continue;
      if (holder->has_leased(lease)) {
        revoke(stream, lease, *holder);
      } else {
        loaders_.finish(*holder, stream.opened.receiver, lease);
      }
    }
    erase_stream(remakes_, stream.id());
  }

  void say_who_has_drained() {
    std::erase_if(draining_, [this](LoaderId id) {
      const LoaderState& loader = *loaders_.find(id);
      const bool drained =
          loader.leased.empty() && loader.sent.empty() && loader.revoked == 0 && loader.chunk_buffers_used == 0;
      if (drained) actions_.push_back(LoaderDrained{id});
      return drained;
    });
  }

  void revoke(const LeaseStreamState& stream, const LeaseKey& lease, LoaderState& holder) {
    loaders_.revoke(holder, stream.opened.receiver, lease);
    actions_.push_back(Revoke{holder.id, lease});
  }

  // ---- grants ----------------------------------------------------------------------------------------------------
  static bool failed_by(const ChunkState& chunk, const LoaderState& loader) {
    return std::find(chunk.failed_by.begin(), chunk.failed_by.end(), loader.serial) != chunk.failed_by.end();
  }

  // Apart from room and quota: may this loader make this chunk?
  bool allowed(const LeaseStreamState& stream, const ChunkState& chunk, const LoaderState& loader) const {
    if (chunk.state != State::waiting && chunk.leased_to == loader.id) return false;  // expired, and it has it already
    if (failed_by(chunk, loader) || !may_read(stream, chunk.group, loader.id)) return false;
    if (!apart(stream, loader)) return true;
    // Only where nobody else may make it: what is cut off may be another way than this one.
    return std::none_of(loaders_.all().begin(), loaders_.all().end(), [&](const auto& item) {
      const LoaderState& other = item.second;
      const bool works = !other.stalled && !other.given_up && !other.draining;
      return works && !failed_by(chunk, other) && may_read(stream, chunk.group, other.id) && !apart(stream, other);
    });
  }

  bool apart(const LeaseStreamState& stream, const LoaderState& loader) const {
    return !apart_.empty() && apart_.count({stream.opened.receiver, loader.id}) != 0;
  }

  void grant(LeaseStreamState& stream, int64_t step, int32_t index, ChunkState& chunk, LoaderState& loader) {
    LeaseKey lease{stream.id(), step, index, chunk.generation};
    if (chunk.state != State::waiting) {  // expired
      LoaderState& holder = *loaders_.find(chunk.leased_to);
      ++figures_[holder.id].regranted;
      if (chunk.state == State::leased) {
        revoke(stream, lease, holder);
      } else {
        loaders_.finish(holder, stream.opened.receiver, lease);
      }
    }
    leave_link(stream, chunk);
    lease.generation = ++chunk.generation;
    chunk.state = State::leased;
    chunk.leased_to = loader.id;
    chunk.granted_ns = now_;
    chunk.held_ns = -1;
    chunk.late = false;
    chunk.from_node = loader.node;
    finish_.links.granted({chunk.from_node, stream.opened.node}, stream.opened.payload_bytes);
    stream.moved_ns = now_;
    start_timer(lease, chunk, lateness(chunk));
    stream.last_grant = ++grants_;
    chunk.compared = chunk.compared || is_to_be_compared(stream, chunk);
    loaders_.grant(loader, stream.opened.receiver, {lease, finish_.work_ns(loader, stream, chunk)}, grants_);
    streams_.dequeue(stream, step, index, chunk);
    streams_.rekey(stream);
    actions_.push_back(Grant{loader.id, stream.opened.receiver, lease, step - stream.cursor, chunk.compared});
  }

  // Granted before, and failed or late: whoever may make it makes it.
  static bool has_history(const ChunkState& chunk) { return chunk.generation > 0; }

  // How many chunks of the lease stream, from this one on, the loader leaves to others; none once these have not taken
  // anything for a while.
  int64_t left_to_others(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk) {
    constexpr int64_t kLongest_ns = 1'000'000'000;
    if (now_ - stream.moved_ns >= kLongest_ns || has_history(chunk)) return 0;
    if (finish_.pulls(loader, stream, chunk, loaders_, now_)) return 0;  // asked with every grant
    const std::function<bool(LoaderId)> may_make = [&](LoaderId id) {
      return may_read(stream, chunk.group, id) && apart_.count({stream.opened.receiver, id}) == 0;
    };
    return finish_.left_to_others(loader, stream, chunk, {loaders_, streams_, may_make}, now_);
  }

  // The lease stream's most urgent chunk that some loader admits.
  bool grant_from(LeaseStreamState& stream) {
    std::vector<int64_t> refused;     // groups
    std::map<int64_t, int64_t> left;  // to loaders without room: so many of the waiting chunks, for each group
    int64_t place = 0;
    for (const auto& [step, bytes, index] : stream.waiting) {
      ChunkState& chunk = *streams_.chunk(stream, step, index);
      if (std::find(refused.begin(), refused.end(), chunk.group) != refused.end()) continue;
      const auto known = left.find(chunk.group);
      if (++place <= (known == left.end() ? 0 : known->second) && !has_history(chunk)) continue;
      const auto finish_ns = [&](const LoaderState& l) { return finish_.finish_ns(l, stream, chunk, now_); };
      const auto admits = [&](const LoaderState& l) { return allowed(stream, chunk, l) && !link_is_full(l, stream); };
      LoaderState* loader = loaders_.best(stream.opened.receiver, stream.opened.node, admits, finish_ns);
      if (loader != nullptr) {
        if (known == left.end()) left[chunk.group] = left_to_others(*loader, stream, chunk);
        if (place <= left[chunk.group] && !has_history(chunk)) {
          // Another loader may have room, though it would finish later.
          const auto pulls = [&](const LoaderState& l) {
            return admits(l) && finish_.pulls(l, stream, chunk, loaders_, now_);
          };
          loader = loaders_.best(stream.opened.receiver, stream.opened.node, pulls, finish_ns);
        }
        if (loader != nullptr) {
          grant(stream, step, index, chunk, *loader);
          return true;
        }
        left_to_others_ = true;
        continue;
      }
      // Only a chunk with a history, or of another group, is refused by a loader that would take the next one.
      if (chunk.state != State::waiting || !chunk.failed_by.empty()) continue;
      if (chunk.group < 0) return false;
      refused.push_back(chunk.group);
    }
    return false;
  }

  bool grant_to(LoaderState& loader, LeaseStreamState& stream) {
    if (!loaders_.admits(loader, stream.opened.receiver) || link_is_full(loader, stream)) return false;
    int64_t place = 0;
    std::map<int64_t, int64_t> left;  // of the waiting chunks, to others, for each group
    for (const auto& [step, bytes, index] : stream.waiting) {
      ChunkState& chunk = *streams_.chunk(stream, step, index);
      if (!allowed(stream, chunk, loader)) continue;
      const auto [known, is_first] = left.try_emplace(chunk.group, 0);
      if (is_first) known->second = left_to_others(loader, stream, chunk);
      if (++place <= known->second && !has_history(chunk)) {
        left_to_others_ = true;
        continue;
      }
      grant(stream, step, index, chunk, loader);
      return true;
    }
    return false;
  }

  // When something arrives over it, its loader is looked at again; the others of its node at the next Tick.
  bool link_is_full(const LoaderState& loader, const LeaseStreamState& stream) {
    const bool full = finish_.link_is_full(loader, stream);
    left_to_others_ = left_to_others_ || full;
    return full;
  }

  // ---- links -----------------------------------------------------------------------------------------------------
  void leave_link(const LeaseStreamState& stream, ChunkState& chunk) {
    if (chunk.from_node < 0) return;
    finish_.links.dropped({chunk.from_node, stream.opened.node}, stream.opened.payload_bytes);
    chunk.from_node = -1;
  }
  void arrived(const LeaseStreamState& stream, ChunkState& chunk) {
    if (chunk.from_node < 0) return;
    const int64_t ready_ns =
        chunk.held_ns < 0 ? now_ : chunk.granted_ns + chunk.held_ns;  // unknown: nothing is learned
    finish_.links.arrived({chunk.from_node, stream.opened.node}, stream.opened.payload_bytes, ready_ns, now_);
    chunk.from_node = -1;
  }

  static void note_figures(LoaderFigures& figures, const LoaderState& loader) {
    figures.speed = loader.speed.value();
    figures.slow = loader.slow;
  }

  void dispatch_lease_stream(LeaseStreamState& stream) {
    if (options_.policy == BalancerOptions::Policy::random) return;
    while (!loaders_.nobody_has_room() && grant_from(stream)) {
    }
  }

  // A grant makes nothing else possible and moves its lease stream back in the order, so one pass over the order is
  // enough.
  template <class Room, class TryLeaseStream>
  void pass_over_ready(const Room& room_left, const TryLeaseStream& try_lease_stream) {
    auto at = streams_.ready().begin();
    while (at != streams_.ready().end() && room_left()) {
      const LeaseStreamState::ReadyKey key = *at;
      try_lease_stream(*streams_.find(std::get<4>(key)));
      at = streams_.ready().upper_bound(key);  // the lease stream's own key is a later one now, or it was refused
    }
  }

  // What is to be compared goes first: it is one chunk in thousands, and would never come up where loaders are short.
  void dispatch_loader(LoaderState& loader) {
    if (!remakes_wanted_.empty()) grant_remakes();
    if (options_.policy == BalancerOptions::Policy::random) return;
    pass_over_ready([&loader] { return loader.has_room; },
                    [this, &loader](LeaseStreamState& stream) { grant_to(loader, stream); });
  }

  void dispatch_all() {
    if (options_.policy == BalancerOptions::Policy::random) return;
    pass_over_ready([this] { return !loaders_.nobody_has_room(); },
                    [this](LeaseStreamState& stream) { grant_from(stream); });
  }

  // For tests: any admitted pair, so that nothing can come to rely on the order. Slow on purpose of simplicity.
  void dispatch_random() {
    struct Pair {
      LeaseStreamState* stream;
      int64_t step;
      int32_t index;
      LoaderId loader;
    };
    while (true) {
      std::vector<Pair> pairs;
      for (auto& [id, stream] : streams_.all()) {
        for (const auto& [step, bytes, index] : stream.waiting) {
          const ChunkState& chunk = *streams_.chunk(stream, step, index);
          for (const auto& [loader_id, loader] : loaders_.all()) {
            if (loaders_.admits(loader, stream.opened.receiver) && allowed(stream, chunk, loader)) {
              pairs.push_back({&stream, step, index, loader_id});
            }
          }
        }
      }
      if (pairs.empty()) return;
      const Pair& pick = pairs[splitmix64(options_.random_seed, draws_++) % pairs.size()];
      grant(*pick.stream, pick.step, pick.index, *streams_.chunk(*pick.stream, pick.step, pick.index),
            *loaders_.find(pick.loader));
    }
  }

  // ---- names -----------------------------------------------------------------------------------------------------
  static LeaseKey place_of(LeaseKey lease) {
    lease.generation = 0;
    return lease;
  }

  ChunkState* held_chunk(LeaseStreamState& stream, const LeaseKey& lease) {
    ChunkState* chunk = streams_.chunk(stream, lease.step, lease.chunk);
    if (chunk == nullptr || chunk->generation != lease.generation) return nullptr;
    return chunk->state == State::leased || chunk->state == State::sent ? chunk : nullptr;
  }

  const BalancerOptions options_;
  int64_t now_ = 0;
  LoaderRegistry loaders_;
  LeaseStreamRegistry streams_;
  FinishTimes finish_;
  bool left_to_others_ = false;                    // by some loader, since the last Tick
  std::map<LoaderId, LoaderFigures> figures_;      // of lost loaders too
  std::map<LeaseKey, std::string> failed_chunks_;  // chunks that failed, by generation 0, with the last reason
  std::set<std::pair<int64_t, LeaseKey>> timers_;  // when leases expire, by generation 0
  std::set<std::pair<int64_t, LeaseKey>> rests_;   // until when failed chunks rest, by generation 0
  std::set<std::pair<int64_t, LoaderId>> checks_;  // when to look at a loader's silence
  std::set<std::pair<int64_t, LoaderId>> pauses_;  // until when a failing loader gets nothing
  bool any_loader_ever_ = false;
  LeaseTimes times_;
  bool times_known_ = false;  // enough of them to say when a lease is late
  uint64_t hedges_ = 0;
  struct FirstMade {
    LoaderId made_by = 0;
    int64_t group = -1;
  };
  std::map<LeaseKey, FirstMade> remakes_wanted_;  // by generation 0
  std::map<LeaseKey, LoaderId> remakes_;          // granted, and to whom
  uint32_t remake_generation_ = 0;
  std::set<LoaderId> draining_;  // that have not been said to have drained
  // What this loader made for that receiver did not arrive in time, and nothing has since: they may not reach each other.
  std::set<std::pair<ReceiverId, LoaderId>> apart_;
  int64_t last_stall_ns_ = 0;  // 0: no loader ever stood still
  int64_t last_loss_ns_ = 0;
  std::string last_loss_;
  uint64_t grants_ = 0;
  uint64_t draws_ = 0;
  std::vector<Action> actions_;
};

std::string loader_name(LoaderId loader, bool embedded, const std::vector<std::string>& hosts) {
  if (embedded) return "the embedded loader";
  const auto at = static_cast<size_t>(loader);
  return "rank " + std::to_string(loader) + " (loader" + (at < hosts.size() ? ", host " + hosts[at] : "") + ")";
}

Balancer::Balancer(const BalancerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Balancer::~Balancer() = default;
Balancer::Balancer(Balancer&&) noexcept = default;
Balancer& Balancer::operator=(Balancer&&) noexcept = default;

std::vector<Action> Balancer::step(int64_t now_ns, const Event& event) {
  return impl_->step(now_ns, event);
}
bool Balancer::any_apart() const {
  return impl_->any_apart();
}
std::map<LoaderId, Balancer::LoaderFigures> Balancer::figures() const {
  return impl_->figures();
}
Balancer::CostFigures Balancer::cost(int32_t executor_class) const {
  return impl_->cost(executor_class);
}
std::vector<Balancer::LinkFigures> Balancer::links() const {
  return impl_->links();
}

}  // namespace penstock
