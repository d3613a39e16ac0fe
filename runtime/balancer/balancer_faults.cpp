#include <algorithm>

#include "runtime/balancer/balancer_impl.h"

namespace penstock {

namespace {

constexpr int kMostDoublings = 5;  // of a chunk's lease timeout: 32 times
constexpr int64_t kShortestLateness = 250'000'000;
constexpr int64_t kShortestTransit = 1'000'000'000;  // a link may have many chunks before this one
constexpr int64_t kLateness = 3;                     // times what 99 of 100 leases, or chunks on their way, take
// One hedge in so many grants.
constexpr uint64_t kHedgeEvery = 50;
constexpr uint64_t kHedgeEveryUnderFaults = 20;
constexpr int64_t kFaultsLast = 60'000'000'000;
constexpr int64_t kFirstRest = 100'000'000;
constexpr int64_t kLongestRest = 5'000'000'000;
constexpr int kMostRestDoublings = 6;

}  // namespace

void Balancer::Impl::on(const Tick&) {
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
                                               seconds_text(now_ - last_loss_ns_) + "; the last one was " + last_loss_);
    }
  }
  fail_unreadable();
  if (changed) dispatch_all();
}

// Chunks that none of the loaders left can read: the last that could was lost a while ago.
void Balancer::Impl::fail_unreadable() {
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

int64_t Balancer::Impl::stalled_after() const {
  return std::max<int64_t>(1, options_.lost_after_ns / 4);
}

void Balancer::Impl::check_at(LoaderState& loader, int64_t at_ns) {
  loader.next_check_ns = at_ns;
  checks_.emplace(at_ns, loader.id);
}

// Each loader has one entry in checks_; hearing it costs nothing, the entry is only moved on when it comes up.
bool Balancer::Impl::check_silence() {
  bool any = false;
  while (!checks_.empty() && checks_.begin()->first <= now_) {
    LoaderState& loader = *loaders_.find(checks_.begin()->second);
    checks_.erase(checks_.begin());
    const int64_t silent = now_ - loader.last_received_ns;
    if (silent >= options_.lost_after_ns) {
      loader.given_up = true;
      finish_.fleet_changed();
      actions_.push_back(GiveUpLoader{loader.id, "silent for " + seconds_text(silent)});
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
bool Balancer::Impl::release_held(const LoaderState& loader) {
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

LoaderState* Balancer::Impl::note_alive(LoaderId id) {
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

void Balancer::Impl::pause(LoaderState& loader) {
  const int doublings = std::min(loader.failures_in_a_row - kFailuresBeforePause, 4);
  if (loader.paused_until_ns != 0) pauses_.erase({loader.paused_until_ns, loader.id});
  loader.paused_until_ns = now_ + std::max<int64_t>(1, options_.lost_after_ns / 16) * (int64_t{1} << doublings);
  pauses_.emplace(loader.paused_until_ns, loader.id);
  finish_.fleet_changed();
  loaders_.refresh(loader);
  if (left_to_others_) dispatch_all();
}

bool Balancer::Impl::end_pauses() {
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
bool Balancer::Impl::end_rests() {
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

void Balancer::Impl::stop_rest(const LeaseKey& lease, ChunkState& chunk) {
  if (chunk.rests_until_ns < 0) return;
  rests_.erase({chunk.rests_until_ns, place_of(lease)});
  chunk.rests_until_ns = -1;
}

// For a chunk that waits, and that no loader may try now.
void Balancer::Impl::rest_or_fail(LeaseStreamState& stream, const LeaseKey& lease, ChunkState& chunk,
                                  const std::string& reason) {
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

bool Balancer::Impl::expire_leases() {
  bool any = false;
  for (; !timers_.empty() && timers_.begin()->first <= now_; any = true) {
    const LeaseKey lease = timers_.begin()->second;
    LeaseStreamState& stream = *streams_.find(lease.lease_stream);
    ChunkState& chunk = *streams_.chunk(stream, lease.step, lease.chunk);
    stop_timer(lease, chunk);
    // Until something arrives: what is cut off is the way between the two.
    if (chunk.state == State::sent) apart_.insert({stream.opened.receiver, chunk.leased_to});
    if (now_ - since_ns(chunk) < doubled(options_.lease_timeout_ns, chunk)) {
      if (!chunk.late) observe_time(chunk.state, now_ - since_ns(chunk));  // at least
      if (!may_hedge(stream, chunk)) {
        chunk.late = true;  // it is looked at again, because with every grant the budget grows
        const int64_t again = now_ - since_ns(chunk) + lateness(chunk);
        start_timer(lease, chunk, std::min(again, doubled(options_.lease_timeout_ns, chunk)));
        continue;
      }
      ++hedges_;
      ++figures_[chunk.leased_to].hedged;
    }
    ++chunk.expiries;
    streams_.enqueue(stream, lease.step, lease.chunk, chunk);  // it keeps its lease until another loader takes it
  }
  return any;
}

bool Balancer::Impl::may_hedge(const LeaseStreamState& stream, const ChunkState& chunk) const {
  if (!has_reader_besides(stream, chunk.group, chunk.leased_to)) return false;
  const bool faults = (last_loss_ns_ != 0 && now_ - last_loss_ns_ < kFaultsLast) ||
                      (last_stall_ns_ != 0 && now_ - last_stall_ns_ < kFaultsLast);
  return (hedges_ + 1) * (faults ? kHedgeEveryUnderFaults : kHedgeEvery) <= grants_;
}

// Since when its state is as it is.
int64_t Balancer::Impl::since_ns(const ChunkState& chunk) {
  return chunk.state == State::sent ? chunk.made_ns : chunk.granted_ns;
}

int64_t Balancer::Impl::doubled(int64_t wait_limit, const ChunkState& chunk) {
  for (int i = std::min(chunk.expiries, kMostDoublings); i > 0 && wait_limit < INT64_MAX / 4; --i) wait_limit *= 2;
  return wait_limit;
}

// Since its state is as it is, until the chunk is late: by what leases, or chunks on their way, usually take.
int64_t Balancer::Impl::lateness(const ChunkState& chunk) const {
  const bool sent = chunk.state == State::sent;
  const int64_t p99_ns = (sent ? transits_ : times_).p99_ns();
  const int64_t shortest = sent ? kShortestTransit : kShortestLateness;
  const int64_t most = doubled(options_.lease_timeout_ns, chunk);
  return p99_ns == 0 ? most : std::min(most, doubled(std::max(shortest, kLateness * p99_ns), chunk));
}

void Balancer::Impl::observe_time(State state, int64_t took_ns) {
  LeaseTimes& times = state == State::sent ? transits_ : times_;
  const bool knew = times.known();
  times.observe(took_ns);
  if (knew || !times.known()) return;
  // Chunks that were granted, or made, before this was known may be late, too.
  const std::set<std::pair<int64_t, LeaseKey>> running = timers_;
  for (const auto& [at_ns, place] : running) {
    LeaseStreamState& stream = *streams_.find(place.lease_stream);
    ChunkState& chunk = *streams_.chunk(stream, place.step, place.chunk);
    if (chunk.state == state) start_timer(place, chunk, lateness(chunk));
  }
}

void Balancer::Impl::start_timer(const LeaseKey& lease, ChunkState& chunk, int64_t wait_limit) {
  stop_timer(lease, chunk);
  const int64_t since = since_ns(chunk);
  chunk.expires_ns = since > INT64_MAX - wait_limit ? INT64_MAX : since + wait_limit;
  timers_.emplace(chunk.expires_ns, place_of(lease));
}

void Balancer::Impl::stop_timer(const LeaseKey& lease, ChunkState& chunk) {
  if (chunk.expires_ns < 0) return;
  timers_.erase({chunk.expires_ns, place_of(lease)});
  chunk.expires_ns = -1;
}

void Balancer::Impl::lose(LoaderId id, const std::string& reason) {
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

std::string Balancer::Impl::name(LoaderId loader) const {
  return loader_name(loader, options_.embedded);
}

// True when loaders are left that can read the chunk, but each of them has failed it since it rested.
bool Balancer::Impl::hopeless(const LeaseStreamState& stream, const ChunkState& chunk) const {
  for (const auto& [id, loader] : loaders_.all()) {
    if (!failed_by(chunk, loader) && may_read(stream, chunk.group, id)) return false;
  }
  return has_reader(stream, chunk.group);
}

bool Balancer::Impl::has_reader(const LeaseStreamState& stream, int64_t group) const {
  return has_reader_besides(stream, group, /*loader=*/-1);
}

bool Balancer::Impl::has_reader_besides(const LeaseStreamState& stream, int64_t group, LoaderId loader) const {
  return std::any_of(loaders_.all().begin(), loaders_.all().end(),
                     [&](const auto& item) { return item.first != loader && may_read(stream, group, item.first); });
}

void Balancer::Impl::fail_hopeless() {
  const std::map<LeaseKey, std::string> failed_chunks = failed_chunks_;  // failing a lease stream erases from it
  for (const auto& [place, reason] : failed_chunks) {
    LeaseStreamState* stream = streams_.find(place.lease_stream);
    if (stream == nullptr) continue;
    ChunkState& chunk = *streams_.chunk(*stream, place.step, place.chunk);
    const bool waits = chunk.state == State::waiting && chunk.rests_until_ns < 0;
    if (waits && hopeless(*stream, chunk)) rest_or_fail(*stream, place, chunk, reason);
  }
}

void Balancer::Impl::fail_chunk(LeaseStreamState& stream, const LeaseKey& lease, const ChunkState& chunk,
                                const std::string& reason) {
  fail(stream, "chunk " + std::to_string(lease.chunk) + " of step " + std::to_string(lease.step) + " failed " +
                   std::to_string(chunk.failures) + (chunk.failures == 1 ? " time" : " times") +
                   (chunk.rests > 0 ? " within " + seconds_text(now_ - chunk.first_failed_ns) : "") +
                   (chunk.failures_in_a_row >= options_.max_attempts ? "" : " and no other loader is left") +
                   "; last, " + reason);
}

void Balancer::Impl::fail(LeaseStreamState& stream, const std::string& reason, const LeaseKey& unreadable) {
  actions_.push_back(FailLeaseStream{stream.id(), reason, unreadable});
  close(stream);
}

void Balancer::Impl::close(LeaseStreamState& stream) {
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

}  // namespace penstock
