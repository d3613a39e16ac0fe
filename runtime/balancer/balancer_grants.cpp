#include <algorithm>
#include <functional>

#include "runtime/balancer/balancer_impl.h"

namespace penstock {

namespace {

// Counter-based, so that a replay draws the same whatever was asked before.
uint64_t splitmix64(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

bool Balancer::Impl::is_to_be_compared(const LeaseStreamState& stream, const ChunkState& chunk) const {
  return options_.remake_every > 0 && grants_ % static_cast<uint64_t>(options_.remake_every) == 0 &&
         has_reader_besides(stream, chunk.group, chunk.leased_to);
}

void Balancer::Impl::grant_remakes() {
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

void Balancer::Impl::remake_accepted(const LeaseStreamState& stream, const LeaseKey& lease) {
  const auto it = remakes_.find(lease);
  if (it == remakes_.end()) return;
  LoaderState* holder = loaders_.find(it->second);
  remakes_.erase(it);
  if (holder == nullptr) return;
  loaders_.finish(*holder, stream.opened.receiver, lease);
  dispatch_loader(*holder);
}

void Balancer::Impl::forget_remakes(const LeaseStreamState& stream) {
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

void Balancer::Impl::say_who_has_drained() {
  std::erase_if(draining_, [this](LoaderId id) {
    const LoaderState& loader = *loaders_.find(id);
    const bool drained =
        loader.leased.empty() && loader.sent.empty() && loader.revoked == 0 && loader.chunk_buffers_used == 0;
    if (drained) actions_.push_back(LoaderDrained{id});
    return drained;
  });
}

void Balancer::Impl::revoke(const LeaseStreamState& stream, const LeaseKey& lease, LoaderState& holder) {
  loaders_.revoke(holder, stream.opened.receiver, lease);
  actions_.push_back(Revoke{holder.id, lease});
}

bool Balancer::Impl::failed_by(const ChunkState& chunk, const LoaderState& loader) {
  return std::find(chunk.failed_by.begin(), chunk.failed_by.end(), loader.serial) != chunk.failed_by.end();
}

// Apart from room and quota: may this loader make this chunk?
bool Balancer::Impl::allowed(const LeaseStreamState& stream, const ChunkState& chunk, const LoaderState& loader) const {
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

bool Balancer::Impl::apart(const LeaseStreamState& stream, const LoaderState& loader) const {
  return !apart_.empty() && apart_.count({stream.opened.receiver, loader.id}) != 0;
}

void Balancer::Impl::grant(LeaseStreamState& stream, int64_t step, int32_t index, ChunkState& chunk,
                           LoaderState& loader) {
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
bool Balancer::Impl::has_history(const ChunkState& chunk) {
  return chunk.generation > 0;
}

// How many chunks of the lease stream, from this one on, the loader leaves to others; none once these have not taken
// anything for a while.
int64_t Balancer::Impl::left_to_others(const LoaderState& loader, const LeaseStreamState& stream,
                                       const ChunkState& chunk) {
  constexpr int64_t kLongest_ns = 1'000'000'000;
  if (now_ - stream.moved_ns >= kLongest_ns || has_history(chunk)) return 0;
  if (finish_.pulls(loader, stream, chunk, loaders_, now_)) return 0;  // asked with every grant
  const std::function<bool(LoaderId)> may_make = [&](LoaderId id) {
    return may_read(stream, chunk.group, id) && apart_.count({stream.opened.receiver, id}) == 0;
  };
  return finish_.left_to_others(loader, stream, chunk, {loaders_, streams_, may_make}, now_);
}

// The lease stream's most urgent chunk that some loader admits.
bool Balancer::Impl::grant_from(LeaseStreamState& stream) {
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

bool Balancer::Impl::grant_to(LoaderState& loader, LeaseStreamState& stream) {
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
bool Balancer::Impl::link_is_full(const LoaderState& loader, const LeaseStreamState& stream) {
  const bool full = finish_.link_is_full(loader, stream);
  left_to_others_ = left_to_others_ || full;
  return full;
}

void Balancer::Impl::leave_link(const LeaseStreamState& stream, ChunkState& chunk) {
  if (chunk.from_node < 0) return;
  finish_.links.dropped({chunk.from_node, stream.opened.node}, stream.opened.payload_bytes);
  chunk.from_node = -1;
}

void Balancer::Impl::arrived(const LeaseStreamState& stream, ChunkState& chunk) {
  if (chunk.from_node < 0) return;
  const int64_t ready_ns = chunk.held_ns < 0 ? now_ : chunk.granted_ns + chunk.held_ns;  // unknown: nothing is learned
  finish_.links.arrived({chunk.from_node, stream.opened.node}, stream.opened.payload_bytes, ready_ns, now_);
  chunk.from_node = -1;
}

void Balancer::Impl::note_figures(LoaderFigures& figures, const LoaderState& loader) {
  figures.speed = loader.speed.value();
  figures.slow = loader.slow;
}

void Balancer::Impl::dispatch_lease_stream(LeaseStreamState& stream) {
  if (options_.policy == BalancerOptions::Policy::random) return;
  while (!loaders_.nobody_has_room() && grant_from(stream)) {
  }
}

// What is to be compared goes first: it is one chunk in thousands, and would never come up where loaders are short.
void Balancer::Impl::dispatch_loader(LoaderState& loader) {
  if (!remakes_wanted_.empty()) grant_remakes();
  if (options_.policy == BalancerOptions::Policy::random) return;
  pass_over_ready([&loader] { return loader.has_room; },
                  [this, &loader](LeaseStreamState& stream) { grant_to(loader, stream); });
}

void Balancer::Impl::dispatch_all() {
  if (options_.policy == BalancerOptions::Policy::random) return;
  pass_over_ready([this] { return !loaders_.nobody_has_room(); },
                  [this](LeaseStreamState& stream) { grant_from(stream); });
}

// For tests: any admitted pair, so that nothing can come to rely on the order. Slow on purpose of simplicity.
void Balancer::Impl::dispatch_random() {
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

}  // namespace penstock
