#include "runtime/balancer/balancer.h"

#include <algorithm>

#include "runtime/balancer/balancer_impl.h"
#include "runtime/base/error.h"

namespace penstock {

namespace {

void require(bool good, const std::string& message) {
  if (!good) throw Error(ErrorKind::usage, "balancer: " + message, "this is a fault of the balancer's owner");
}

}  // namespace

Balancer::Impl::Impl(const BalancerOptions& options) : options_(options), loaders_(options.receivers) {
  require(options.lease_timeout_ns > 0 && options.lost_after_ns > 0, "timeouts must be positive");
  require(options.all_lost_ns >= 0, "all_lost_ns must not be negative");
  require(options.max_attempts > 0, "max_attempts must be positive");
  require(options.receivers >= 0, "receivers must not be negative");
}

std::vector<Action> Balancer::Impl::step(int64_t now_ns, const Event& event) {
  now_ = std::max(now_, now_ns);
  actions_.clear();
  std::visit([this](const auto& e) { on(e); }, event);
  if (!remakes_wanted_.empty()) grant_remakes();
  say_who_has_drained();
  if (options_.policy == BalancerOptions::Policy::random) dispatch_random();
  return std::move(actions_);
}

std::map<LoaderId, Balancer::LoaderFigures> Balancer::Impl::figures() const {
  std::map<LoaderId, LoaderFigures> result = figures_;
  for (const auto& [id, loader] : loaders_.all()) note_figures(result[id], loader);
  return result;
}

bool Balancer::Impl::any_apart() const {
  return !apart_.empty();
}

Balancer::CostFigures Balancer::Impl::cost(int32_t executor_class) const {
  const CostModel& model = finish_.model(executor_class);
  return {model.samples(), model.mean_ns(), model.fixed_ns(), model.ns_per_byte(), model.ns_per_pixel()};
}

std::vector<Balancer::LinkFigures> Balancer::Impl::links() const {
  std::vector<LinkFigures> result;
  for (const auto& [link, f] : finish_.links.figures()) {
    const double bytes_per_s = f.ns_per_byte > 0 ? 1e9 / f.ns_per_byte : 0;
    result.push_back({link.from, link.to, f.chunks, f.bytes, bytes_per_s, f.latency_ns, f.peak_bytes_per_s});
  }
  return result;
}

void Balancer::Impl::on(const LoaderJoined& e) {
  require(
      e.depth > 0 && e.chunk_buffers > 0 && e.threads >= 0,
      "loader " + std::to_string(e.loader) + " joins without depth or chunk buffers, or with fewer threads than none");
  if (loaders_.find(e.loader) != nullptr) lose(e.loader, "joined again");
  LoaderState& loader = loaders_.join(e, now_);
  any_loader_ever_ = true;
  finish_.fleet_changed();
  figures_[e.loader];
  check_at(loader, now_ + stalled_after());
  dispatch_loader(loader);
}

void Balancer::Impl::on(const LoaderAlive& e) {
  note_alive(e.loader);
}

void Balancer::Impl::on(const LoaderLost& e) {
  lose(e.loader, e.reason);
}

void Balancer::Impl::on(const LoaderDraining& e) {
  LoaderState* loader = loaders_.find(e.loader);
  if (loader == nullptr) return;
  finish_.fleet_changed();
  loader->draining = true;  // first: one that is heard again after a silence would be granted something
  draining_.insert(e.loader);
  note_alive(e.loader);
  loaders_.refresh(*loader);
  if (left_to_others_) dispatch_all();
}

void Balancer::Impl::on(const LoaderAhead& e) {
  require(e.leases >= 0, "loader " + std::to_string(e.loader) + " wants fewer leases than none");
  LoaderState* loader = note_alive(e.loader);
  if (loader == nullptr) return;
  constexpr int32_t kMostAhead = 1 << 16;  // more than any loader has chunk buffers; leases are added up in 32 bits
  loader->ahead = std::min(e.leases, kMostAhead);
  loaders_.refresh(*loader);
  dispatch_loader(*loader);
}

void Balancer::Impl::on(const ChunkProduced& e) {
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
    chunk.late = false;
    start_timer(e.lease, chunk, lateness(chunk));
    observe_time(State::leased, now_ - chunk.granted_ns);
  } else if (!made) {
    loaders_.revoked_answered(*loader, e.lease);
  }
  loaders_.refresh(*loader);  // the speed changed
  dispatch_loader(*loader);
}

void Balancer::Impl::on(const ChunkFailed& e) {
  LoaderState* loader = note_alive(e.loader);
  if (loader == nullptr) return;
  if (++loader->failures_in_a_row >= kFailuresBeforePause) pause(*loader);

  LeaseStreamState* stream = streams_.find(e.lease.lease_stream);
  if (is_remake(e.lease)) {
    if (stream != nullptr) loaders_.finish(*loader, stream->opened.receiver, e.lease);
    remakes_.erase(e.lease);
  }
  ChunkState* chunk = stream == nullptr ? nullptr : held_chunk(*stream, e.lease);
  if (chunk == nullptr || chunk->leased_to != e.loader || !loaders_.finish(*loader, stream->opened.receiver, e.lease)) {
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

void Balancer::Impl::on(const ChunkBufferFreed& e) {
  LoaderState* loader = loaders_.find(e.loader);
  if (loader == nullptr) return;
  loaders_.chunk_buffer_freed(*loader, e.receiver);
  apart_.erase({e.receiver, e.loader});
  dispatch_loader(*loader);
}

void Balancer::Impl::on(const LeaseStreamOpened& e) {
  const std::string name = "lease stream " + std::to_string(e.lease_stream);
  require(streams_.find(e.lease_stream) == nullptr, name + " is opened twice");
  require(e.receiver >= 0 && e.receiver < INT32_MAX - 1, name + " has a negative receiver");
  require(e.first_step >= 0 && e.first_step <= e.steps, name + " has no range of steps");
  require(e.chunks_per_step > 0 && e.chunks_last_step > 0, name + " has steps without chunks");
  finish_.opened(streams_.open(e), now_);
  loaders_.receiver_seen(e.receiver);
  loaders_.set_live_receivers(streams_.live_receivers());
}

void Balancer::Impl::on(const BatchBufferReserved& e) {
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

void Balancer::Impl::on(const SamplesHeld& e) {
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

void Balancer::Impl::on(const CursorMoved& e) {
  LeaseStreamState* stream = streams_.find(e.lease_stream);
  if (stream == nullptr) return;
  stream->cursor = e.cursor;
  stream->client_waits = e.waiting;
  streams_.rekey(*stream);
}

void Balancer::Impl::on(const LeaseStreamClosed& e) {
  LeaseStreamState* stream = streams_.find(e.lease_stream);
  if (stream != nullptr) close(*stream);
}

void Balancer::Impl::on(const ChunkAccepted& e) {
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
    if (live == e.lease && chunk->state == State::sent) observe_time(State::sent, now_ - chunk->made_ns);
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

std::string loader_name(LoaderId loader, bool embedded, const std::vector<std::string>& hosts) {
  if (embedded) return "the embedded loader";
  const auto at = static_cast<size_t>(loader);
  return "rank " + std::to_string(loader) + " (loader" + (at < hosts.size() ? ", host " + hosts[at] : "") + ")";
}

std::string seconds_text(int64_t ns) {
  const int64_t tenths = (ns + 50'000'000) / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
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
