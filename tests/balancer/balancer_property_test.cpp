// Thousands of random little worlds: loaders of random speed that are killed, stall, fail, freeze, come back; receivers
// that stop for a while and lease streams that break off; messages that take their time. An auditor keeps its own books
// of batch buffers, chunk buffers, quotas, leases and refuses any grant that breaks an invariant of balancer.h; and
// everything that can finish must finish. In every third world loaders have some of the samples only.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/balancer/event_log.h"

namespace penstock {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kEndOfTheWorld = 400'000 * kMs;

using ChunkName = std::tuple<LeaseStreamId, int64_t, int32_t>;

ChunkName name_of(const LeaseKey& lease) {
  return {lease.lease_stream, lease.step, lease.chunk};
}

// Knows only what events and actions say. Throws a text at the first broken promise.
class Auditor {
 public:
  explicit Auditor(const BalancerOptions& options) : options_(options) {}

  void told(int64_t now_ns, const Event& event) {
    now_ns_ = now_ns;
    if (const auto* e = std::get_if<LoaderJoined>(&event)) {
      loaders_[e->loader] = {*e, {}, false, 0};
      drained_.erase(e->loader);
    }
    if (const auto* e = std::get_if<LoaderDraining>(&event)) {
      if (loaders_.count(e->loader) != 0) draining_.insert(e->loader);
    }
    if (const auto* e = std::get_if<LoaderAhead>(&event)) {
      const auto loader = loaders_.find(e->loader);
      if (loader != loaders_.end()) loader->second.ahead = e->leases;
    }
    if (const auto* e = std::get_if<LoaderLost>(&event)) {
      loaders_.erase(e->loader);
      std::erase_if(held_, [e](const auto& item) { return item.first.second == e->loader; });
      draining_.erase(e->loader);
      std::erase_if(remakes_, [&](const auto& item) { return item.second.loader == e->loader; });
      for (auto lease = live_.begin(); lease != live_.end();) {
        lease = lease->second.loader == e->loader ? live_.erase(lease) : std::next(lease);
      }
      for (auto& [chunk, failed] : failed_by_) failed.erase(e->loader);
    }
    if (const auto* e = std::get_if<LeaseStreamOpened>(&event)) streams_[e->lease_stream] = *e;
    if (const auto* e = std::get_if<LeaseStreamClosed>(&event)) close(e->lease_stream);
    if (const auto* e = std::get_if<BatchBufferReserved>(&event)) {
      batch_buffers_.insert({e->lease_stream, e->step});
      for (size_t i = 0; i < e->groups.size(); ++i)
        groups_[{e->lease_stream, e->step, static_cast<int32_t>(i)}] = e->groups[i];
    }
    if (const auto* e = std::get_if<SamplesHeld>(&event)) {
      held_[{e->lease_stream, e->loader}] = {e->groups.begin(), e->groups.end()};
    }
    if (const auto* e = std::get_if<ChunkAccepted>(&event)) {
      if (is_remake(e->lease)) {
        remakes_.erase(e->lease);
        return;
      }
      accepted_.insert(name_of(e->lease));
      const auto live = live_.find(name_of(e->lease));
      if (live == live_.end()) return;
      if (live->second.generation == e->lease.generation) accepted_from_[name_of(e->lease)] = live->second.loader;
      if (live->second.generation == e->lease.generation || live->second.made) {
        live_.erase(live);
      } else {
        must_revoke_.insert(live->first);
      }
    }
    if (const auto* e = std::get_if<ChunkProduced>(&event)) {
      if (const auto remake = remakes_.find(e->lease); remake != remakes_.end()) remake->second.made = true;
      const auto live = live_.find(name_of(e->lease));
      if (live != live_.end() && live->second.generation == e->lease.generation) live->second.made = true;
    }
    if (const auto* e = std::get_if<ChunkFailed>(&event)) {
      remakes_.erase(e->lease);
      const auto live = live_.find(name_of(e->lease));
      if (live == live_.end() || live->second.generation != e->lease.generation) return;
      live_.erase(live);
      failed_by_[name_of(e->lease)].insert(e->loader);
      last_failed_ns_[name_of(e->lease)] = now_ns;
      first_failed_ns_.emplace(name_of(e->lease), now_ns);
    }
    if (const auto* e = std::get_if<ChunkBufferFreed>(&event)) {
      const auto loader = loaders_.find(e->loader);
      if (loader != loaders_.end() && --loader->second.chunk_buffers[e->receiver] == 0)
        loader->second.chunk_buffers.erase(e->receiver);
    }
  }

  void decided(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (const auto* a = std::get_if<Grant>(&action)) granted(*a);
      if (const auto* a = std::get_if<LoaderDrained>(&action)) {
        expect(draining_.erase(a->loader) == 1, "a loader has drained that was not to, or twice");
        expect(loaders_.at(a->loader).chunk_buffers.empty(), "a loader that has drained still has chunk buffers out");
        for (const auto& [name, lease] : live_)
          expect(lease.loader != a->loader, "a loader has drained and holds a lease");
        drained_.insert(a->loader);
      }
      if (const auto* a = std::get_if<Revoke>(&action); a != nullptr && is_remake(a->lease)) {
        expect(remakes_.erase(a->lease) == 1, "a second copy is revoked that is not live");
      } else if (a != nullptr) {
        const auto live = live_.find(name_of(a->lease));
        expect(live != live_.end() && live->second.generation == a->lease.generation &&
                   live->second.loader == a->loader && !live->second.made,
               "a lease is revoked that is not live");
        must_revoke_.erase(live->first);
        live_.erase(live);
      }
      if (const auto* a = std::get_if<GiveUpLoader>(&action)) {
        const auto loader = loaders_.find(a->loader);
        expect(loader != loaders_.end() && !loader->second.given_up, "a loader is given up twice");
        loader->second.given_up = true;
      }
      if (const auto* a = std::get_if<FailLeaseStream>(&action)) {
        expect(streams_.count(a->lease_stream) == 1, "a lease stream fails that is not open");
        expect(!a->reason.empty(), "a lease stream fails without a reason");
        streams_.erase(a->lease_stream);
        closing_.insert(a->lease_stream);
      }
    }
    expect(must_revoke_.empty(), "an accepted chunk's other lease is not revoked");
    for (const LeaseStreamId stream : closing_) {
      for (const auto& [lease, live] : remakes_) {
        expect(lease.lease_stream != stream || live.made, "a closed lease stream's second copy is not revoked");
      }
      std::erase_if(remakes_, [stream](const auto& item) { return item.first.lease_stream == stream; });
      for (auto lease = live_.begin(); lease != live_.end();) {
        const bool of_lease_stream = std::get<0>(lease->first) == stream;
        expect(!of_lease_stream || lease->second.made, "a closed lease stream's lease is not revoked");
        lease = of_lease_stream ? live_.erase(lease) : std::next(lease);
      }
    }
    closing_.clear();
  }

  int64_t chunk_buffers_in_use() const {
    int64_t sum = 0;
    for (const auto& [id, loader] : loaders_) sum += used(loader);
    return sum;
  }

 private:
  struct Loader {
    LoaderJoined joined;
    std::map<ReceiverId, int32_t> chunk_buffers;
    bool given_up;
    int32_t ahead;
  };
  struct Live {
    LoaderId loader;
    uint32_t generation;
    bool made;
  };

  static void expect(bool good, const char* promise) {
    if (!good) throw std::string(promise);
  }
  static int32_t used(const Loader& loader) {
    int32_t sum = 0;
    for (const auto& [receiver, chunk_buffers] : loader.chunk_buffers) sum += chunk_buffers;
    return sum;
  }

  void close(LeaseStreamId stream) {
    streams_.erase(stream);
    closing_.insert(stream);
  }

  void granted(const Grant& grant) {
    const auto stream = streams_.find(grant.lease.lease_stream);
    expect(stream != streams_.end(), "a grant for a lease stream that is not open");
    expect(stream->second.receiver == grant.receiver, "a grant for the wrong receiver");
    expect(batch_buffers_.count({grant.lease.lease_stream, grant.lease.step}) == 1, "a grant without a batch buffer");
    const ChunkName chunk = name_of(grant.lease);
    expect(draining_.count(grant.loader) == 0 && drained_.count(grant.loader) == 0, "a grant for a loader that drains");
    const auto group = groups_.find(chunk);
    expect(group == groups_.end() || held_[{grant.lease.lease_stream, grant.loader}].count(group->second) == 1,
           "a grant for a loader that has not said that it can read the chunk");
    if (is_remake(grant.lease)) {
      expect(options_.remake_every > 0 && grant.compared, "a second copy that nobody compares");
      expect(accepted_from_.count(chunk) == 1 && accepted_from_[chunk] != grant.loader,
             "a second copy of a chunk that was not accepted, or by who made the first");
      expect(remade_.insert(chunk).second, "a third copy");
      remakes_[grant.lease] = {grant.loader, grant.lease.generation, false};
      return take_chunk_buffer(grant);
    }
    expect(accepted_.count(chunk) == 0, "a grant of an accepted chunk");
    const auto live = live_.find(chunk);
    expect(live == live_.end() || live->second.made, "two live leases of a chunk");
    expect(live == live_.end() || live->second.loader != grant.loader, "a late chunk goes to its own holder again");
    uint32_t& generation = generations_[chunk];
    expect(grant.lease.generation == generation + 1, "a grant without a new generation");
    generation = grant.lease.generation;
    const bool rested = now_ns_ - last_failed_ns_[chunk] >= 100 * kMs;
    const bool last_try = now_ns_ >= first_failed_ns_[chunk] + options_.retry_for_ns;
    if (options_.retry_for_ns > 0 && (rested || last_try)) failed_by_[chunk].clear();
    expect(failed_by_[chunk].count(grant.loader) == 0, "a chunk goes again to a loader that failed it");

    live_[chunk] = {grant.loader, grant.lease.generation, false};
    take_chunk_buffer(grant);
  }

  void take_chunk_buffer(const Grant& grant) {
    const auto at = loaders_.find(grant.loader);
    expect(at != loaders_.end() && !at->second.given_up, "a grant for a loader that is gone");
    Loader& loader = at->second;
    int32_t making = 0;
    for (const auto& [name, lease] : live_) making += lease.loader == grant.loader && !lease.made ? 1 : 0;
    for (const auto& [key, lease] : remakes_) making += lease.loader == grant.loader && !lease.made ? 1 : 0;
    expect(making <= loader.joined.depth + loader.ahead, "more leases than the loader is deep");

    std::set<ReceiverId> live_receivers;
    for (const auto& [id, opened] : streams_) live_receivers.insert(opened.receiver);
    const int32_t receivers = static_cast<int32_t>(live_receivers.size());
    const int32_t quota = (loader.joined.chunk_buffers + receivers - 1) / receivers;
    const int32_t held = ++loader.chunk_buffers[grant.receiver];
    expect(held == 1 || held <= quota, "more chunk buffers than the receiver's quota");
    const int32_t free = loader.joined.chunk_buffers - used(loader);
    expect(free >= 0, "a grant without a chunk buffer");
    if (options_.receivers > 0 && loader.joined.chunk_buffers >= options_.receivers) {
      expect(free >= options_.receivers - static_cast<int32_t>(loader.chunk_buffers.size()),
             "a receiver without a chunk buffer is blocked");
    }
  }

  const BalancerOptions options_;
  std::map<ChunkName, int64_t> groups_;
  std::map<std::pair<LeaseStreamId, LoaderId>, std::set<int64_t>> held_;
  std::map<LoaderId, Loader> loaders_;
  std::map<LeaseStreamId, LeaseStreamOpened> streams_;
  std::set<std::pair<LeaseStreamId, int64_t>> batch_buffers_;
  std::set<ChunkName> accepted_;
  std::map<ChunkName, Live> live_;
  std::map<LeaseKey, Live> remakes_;
  std::map<ChunkName, LoaderId> accepted_from_;
  std::set<ChunkName> remade_;
  std::set<LoaderId> draining_;
  std::set<LoaderId> drained_;
  std::map<ChunkName, uint32_t> generations_;
  std::map<ChunkName, std::set<LoaderId>> failed_by_;
  std::map<ChunkName, int64_t> first_failed_ns_;
  std::map<ChunkName, int64_t> last_failed_ns_;
  int64_t now_ns_ = 0;
  std::set<ChunkName> must_revoke_;
  std::set<LeaseStreamId> closing_;
};

struct Totals {
  int64_t events = 0, grants = 0, revokes = 0, give_ups = 0, failed_lease_streams = 0, finished_lease_streams = 0,
          losses = 0;
  int64_t late_copies = 0, failures = 0, broken_off = 0, made_twice = 0, drained = 0, unreadable = 0;
};

// One world with manual time. The owner (trainer 0's receiver) is this class; loaders and receivers talk to it by
// messages.
class World {
 public:
  World(uint64_t seed, Totals& totals) : random_(seed), totals_(totals), local_(seed % 3 == 0) {
    options_.lease_timeout_ns = 3000 * kMs;
    options_.lost_after_ns = options_.all_lost_ns = 1000 * kMs;
    const int32_t receivers = pick(1, 4);
    options_.receivers = chance(70) ? receivers : 0;
    if (chance(25)) options_.policy = BalancerOptions::Policy::random;
    options_.random_seed = seed;
    hopeful_ = chance(80);  // loader 0 lives for ever and never fails
    if (hopeful_) options_.max_attempts = 1000;
    if (chance(50)) options_.retry_for_ns = pick(1, 5000) * kMs;
    if (chance(50)) options_.remake_every = pick(1, 8);
    failing_percent_ = chance(30) ? pick(1, 40) : 0;
    freezing_percent_ = chance(20) ? pick(1, 10) : 0;
    keep_log_ = chance(10);
    if (keep_log_) log_ = log_first_line(options_);
    balancer_ = std::make_unique<Balancer>(options_);
    auditor_ = std::make_unique<Auditor>(options_);

    loaders_.resize(static_cast<size_t>(pick(1, 5)));
    for (size_t i = 0; i < loaders_.size(); ++i) {
      Loader& loader = loaders_[i];
      loader.id = static_cast<LoaderId>(i);
      loader.executors = pick(1, 3);
      loader.depth = loader.executors * 2;
      loader.chunk_buffers = pick(1, 10);
      loader.node = pick(0, 2);
      loader.chunk_ns = pick(1, 200) * kMs;
      for (int64_t group = 0; local_ && group < kGroups; ++group) {
        if ((i == 0 && hopeful_) || chance(50)) loader.holds.push_back(group);
      }
      after(i == 0 ? 0 : pick(0, 1500) * kMs, [this, i] { join(i); });
      if (i == 0 && hopeful_) {
        if (chance(30)) stall_at(i, pick(0, 3000), pick(1, 900));
        continue;
      }
      if (chance(35)) after(pick(0, 4000) * kMs, [this, i] { kill(i); });
      if (chance(20)) {
        after(pick(0, 4000) * kMs, [this, i] {
          if (loaders_[i].running && loaders_[i].member) send(loaders_[i], LoaderDraining{loaders_[i].id});
        });
      }
      if (chance(30)) stall_at(i, pick(0, 4000), pick(100, 6000));
    }
    receivers_.resize(static_cast<size_t>(receivers));
    for (size_t p = 0; p < receivers_.size(); ++p) {
      receivers_[p].node = pick(0, 2);
      receivers_[p].streams_to_come = pick(1, 3);
      after(pick(0, 1000) * kMs, [this, p] { open_lease_stream(p); });
      if (chance(25)) {
        after(pick(0, 3000) * kMs, [this, p] { receivers_[p].stopped_until = now_ + pick(100, 5000) * kMs; });
      }
    }
    after(0, [this] { tick(); });
  }

  void run() {
    while (!all_over()) {
      if (agenda_.empty() || now_ > kEndOfTheWorld) throw std::string("the world is stuck");
      next();
    }
    // What is on its way arrives; then no chunk buffer may be missing.
    // Longer than two chunks in a row whose executor hangs, as a revocation may overtake its grant.
    const int64_t end = now_ + 40'000 * kMs;
    while (!agenda_.empty() && agenda_.begin()->first.first <= end) next();
    if (auditor_->chunk_buffers_in_use() != 0) throw std::string("chunk buffers are in use when all is over");
    if (keep_log_) {
      const std::string difference = replay_log(log_).difference;
      if (!difference.empty()) throw "replay: " + difference;
    }
  }

  bool hopeful() const { return hopeful_; }

 private:
  struct Loader {
    LoaderId id = 0;
    int executors = 1, depth = 2, chunk_buffers = 4, node = 0;
    int64_t chunk_ns = kMs;
    std::vector<int64_t> holds;  // groups of samples, where the world is local
    int life = 0;                // counts up with each death or loss, so that what an earlier life says is not heard
    bool running = false;        // the process
    bool member = false;         // for the owner
    bool told = false;           // it has said what it holds
    int64_t stalled_until = 0;
    std::deque<Grant> queue;
    int busy = 0;
    int64_t last_arrival = 0;
  };
  struct Receiver {
    int node = 0;
    int streams_to_come = 0;
    int64_t stopped_until = 0;
    int64_t last_arrival = 0;
    // The open lease stream.
    bool open = false;
    LeaseStreamOpened lease_stream;
    int batch_buffers = 2;
    int64_t next_batch_buffer = 0;
    int64_t cursor = 0;
    bool computing = false;
    bool waiting = false;
    std::map<int64_t, std::set<int32_t>> arrived;
  };

  int pick(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  void at(int64_t time, std::function<void()> what) {
    agenda_.emplace(std::make_pair(time, ++sequence_), std::move(what));
  }
  void after(int64_t delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }
  void next() {
    now_ = agenda_.begin()->first.first;
    const std::function<void()> what = std::move(agenda_.begin()->second);
    agenda_.erase(agenda_.begin());
    what();
  }
  bool all_over() const {
    return std::all_of(receivers_.begin(), receivers_.end(),
                       [](const Receiver& p) { return !p.open && p.streams_to_come == 0; });
  }

  // ---- owner ------------------------------------------------------------------------------------------------------
  void post(const Event& event) {
    decide(event);
    const auto* opened = std::get_if<LeaseStreamOpened>(&event);
    if (!local_ || opened == nullptr) return;
    open_.insert(opened->lease_stream);
    for (const Loader& loader : loaders_) {
      if (loader.member && loader.told) decide(SamplesHeld{opened->lease_stream, loader.id, loader.holds});
    }
  }
  void decide(const Event& event) {
    ++totals_.events;
    auditor_->told(now_, event);
    const std::vector<Action> actions = balancer_->step(now_, event);
    if (keep_log_) log_ += log_lines(++logged_, now_, event, actions);
    auditor_->decided(actions);
    for (const Action& action : actions) {
      if (const auto* a = std::get_if<Grant>(&action)) {
        ++totals_.grants;
        totals_.made_twice += is_remake(a->lease) ? 1 : 0;
        send_to_loader(a->loader, [this, grant = *a](Loader& loader) {
          loader.queue.push_back(grant);
          begin_work(loader);
        });
      } else if (const auto* b = std::get_if<Revoke>(&action)) {
        ++totals_.revokes;
        send_to_loader(b->loader, [this, lease = b->lease](Loader& loader) {
          const auto found = std::find_if(loader.queue.begin(), loader.queue.end(),
                                          [&lease](const Grant& g) { return g.lease == lease; });
          if (found == loader.queue.end()) return;  // begun, or made: its result will come
          const ReceiverId receiver = found->receiver;
          loader.queue.erase(found);
          send(loader, ChunkBufferFreed{loader.id, receiver});
        });
      } else if (const auto* c = std::get_if<GiveUpLoader>(&action)) {
        ++totals_.give_ups;
        after(0, [this, id = c->loader] { lose(static_cast<size_t>(id), "given up"); });
      } else if (const auto* e = std::get_if<LoaderDrained>(&action)) {
        ++totals_.drained;
        after(0, [this, id = e->loader] { lose(static_cast<size_t>(id), "left"); });
      } else if (const auto* d = std::get_if<FailLeaseStream>(&action)) {
        ++totals_.failed_lease_streams;
        totals_.unreadable += d->unreadable.lease_stream != 0 ? 1 : 0;
        if (hopeful_) throw "a lease stream fails although a loader lives: " + d->reason;
        after(0, [this, id = d->lease_stream] {
          for (Receiver& receiver : receivers_) {
            if (receiver.open && receiver.lease_stream.lease_stream == id)
              receiver.open = false, receiver.streams_to_come = 0;
          }
        });
      }
    }
  }
  void tick() {
    post(Tick{});
    after(100 * kMs, [this] { tick(); });
  }
  void lose(size_t i, const std::string& why) {
    Loader& loader = loaders_[i];
    if (!loader.member) return;
    loader.member = false;
    ++loader.life;
    ++totals_.losses;
    const bool stalled = loader.running;
    loader.running = false;
    loader.queue.clear();
    post(LoaderLost{loader.id, why});
    // Given up, it starts again when it wakes up; killed, it may be started again.
    if (stalled || chance(50)) at(std::max(now_, loader.stalled_until) + pick(1, 2000) * kMs, [this, i] { join(i); });
  }

  // ---- loaders ----------------------------------------------------------------------------------------------------
  void join(size_t i) {
    Loader& loader = loaders_[i];
    if (loader.running || loader.member) return;
    loader.running = loader.member = true;
    loader.busy = 0;
    loader.queue.clear();
    post(LoaderJoined{loader.id, loader.depth, loader.chunk_buffers, loader.node});
    loader.told = false;
    if (local_) {
      // It looks at its disks first.
      after(pick(0, 300) * kMs, [this, &loader, life = loader.life] {
        if (loader.life != life || !loader.member) return;
        loader.told = true;
        for (const LeaseStreamId stream : open_) decide(SamplesHeld{stream, loader.id, loader.holds});
      });
    }
    heartbeat(i, loader.life);
  }
  void heartbeat(size_t i, int life) {
    Loader& loader = loaders_[i];
    if (loader.life != life || !loader.running) return;
    if (now_ >= loader.stalled_until) send(loader, LoaderAlive{loader.id});
    if (now_ >= loader.stalled_until && chance(5)) send(loader, LoaderAhead{loader.id, pick(0, 6)});
    after(100 * kMs, [this, i, life] { heartbeat(i, life); });
  }
  void stall_at(size_t i, int from_ms, int for_ms) {
    after(from_ms * kMs, [this, i, for_ms] { loaders_[i].stalled_until = now_ + for_ms * kMs; });
  }
  void kill(size_t i) {
    Loader& loader = loaders_[i];
    if (!loader.running) return;
    loader.running = false;
    loader.queue.clear();
    // The hang-up may be seen at once, late, or not at all; then its silence is.
    if (chance(70))
      after(pick(0, 1500) * kMs, [this, i, life = loader.life] {
        if (loaders_[i].life == life) lose(i, "killed");
      });
  }
  void send_to_loader(LoaderId id, std::function<void(Loader&)> handle) {
    const size_t i = static_cast<size_t>(id);
    const int life = loaders_[i].life;
    deliver(i, life, now_ + pick(0, 20) * kMs, std::move(handle));
  }
  void deliver(size_t i, int life, int64_t when, std::function<void(Loader&)> handle) {
    at(when, [this, i, life, handle = std::move(handle)] {
      Loader& loader = loaders_[i];
      if (loader.life != life || !loader.running) return;
      if (now_ < loader.stalled_until) return deliver(i, life, loader.stalled_until, handle);
      handle(loader);
    });
  }
  // A loader's messages to the owner keep their order.
  void send(Loader& loader, const Event& event) {
    loader.last_arrival = std::max(loader.last_arrival, now_ + pick(0, 20) * kMs);
    at(loader.last_arrival, [this, &loader, life = loader.life, event] {
      if (loader.life == life && loader.member) post(event);
    });
  }
  void begin_work(Loader& loader) {
    while (loader.busy < loader.executors && !loader.queue.empty()) {
      const Grant grant = loader.queue.front();
      loader.queue.pop_front();
      ++loader.busy;
      int64_t takes = loader.chunk_ns * pick(50, 150) / 100;
      const bool trusted = loader.id == 0 && hopeful_;
      if (!trusted && chance(freezing_percent_)) takes += 15'000 * kMs;  // one executor hangs, the rest does not
      const bool fails = !trusted && chance(failing_percent_);
      deliver(static_cast<size_t>(loader.id), loader.life, now_ + takes, [this, grant, takes, fails](Loader& self) {
        --self.busy;
        if (fails) {
          ++totals_.failures;
          send(self, ChunkFailed{self.id, grant.lease, "EIO"});
          send(self, ChunkBufferFreed{self.id, grant.receiver});
        } else {
          send(self, ChunkProduced{self.id, grant.lease, takes, pick(1, 1000), pick(1, 1000)});
          arrive(static_cast<size_t>(grant.receiver), now_ + pick(0, 40) * kMs, grant.lease, self.id, self.life);
        }
        begin_work(self);
      });
    }
  }

  // ---- receivers --------------------------------------------------------------------------------------------------
  void report(size_t p, const Event& event, LoaderId loader = -1, int life = 0) {
    Receiver& receiver = receivers_[p];
    receiver.last_arrival = std::max(receiver.last_arrival, now_ + (p == 0 ? 0 : pick(0, 20) * kMs));
    at(receiver.last_arrival, [this, event, loader, life] {
      // a chunk buffer of an earlier life
      if (loader >= 0 && loaders_[static_cast<size_t>(loader)].life != life) return;
      post(event);
    });
  }
  void open_lease_stream(size_t p) {
    Receiver& receiver = receivers_[p];
    if (receiver.streams_to_come == 0) return;
    --receiver.streams_to_come;
    receiver.open = true;
    const int64_t first = pick(0, 3);
    receiver.lease_stream = LeaseStreamOpened{
        ++streams_, static_cast<ReceiverId>(p), receiver.node, first, first + pick(1, 6), pick(1, 5), pick(1, 3)};
    receiver.batch_buffers = pick(2, 3);
    receiver.next_batch_buffer = receiver.cursor = first;
    receiver.computing = receiver.waiting = false;
    receiver.arrived.clear();
    report(p, receiver.lease_stream);
    reserve(p);
    consume(p);
    if (chance(15)) {
      after(pick(1, 3000) * kMs, [this, p, id = receiver.lease_stream.lease_stream] {
        if (!receivers_[p].open || receivers_[p].lease_stream.lease_stream != id) return;
        ++totals_.broken_off;
        end_lease_stream(p);
      });
    }
  }
  void end_lease_stream(size_t p) {
    Receiver& receiver = receivers_[p];
    receiver.open = false;
    report(p, LeaseStreamClosed{receiver.lease_stream.lease_stream});
    if (receiver.streams_to_come > 0) after(pick(0, 500) * kMs, [this, p] { open_lease_stream(p); });
  }
  int32_t chunks_of(const Receiver& receiver, int64_t step) const {
    return step == receiver.lease_stream.steps - 1 ? receiver.lease_stream.chunks_last_step
                                                   : receiver.lease_stream.chunks_per_step;
  }
  void reserve(size_t p) {
    Receiver& receiver = receivers_[p];
    for (; receiver.next_batch_buffer < receiver.lease_stream.steps &&
           receiver.next_batch_buffer < receiver.cursor + receiver.batch_buffers;
         ++receiver.next_batch_buffer) {
      BatchBufferReserved reserved{receiver.lease_stream.lease_stream, receiver.next_batch_buffer, {}, {}};
      if (chance(50))
        reserved.chunk_bytes.assign(static_cast<size_t>(chunks_of(receiver, receiver.next_batch_buffer)), pick(0, 9));
      for (int32_t i = 0; local_ && i < chunks_of(receiver, receiver.next_batch_buffer); ++i) {
        reserved.groups.push_back(pick(0, kGroups - 1));
      }
      report(p, reserved);
      if (chance(5)) report(p, reserved);  // said twice
    }
  }
  void arrive(size_t p, int64_t when, LeaseKey lease, LoaderId loader, int life) {
    at(when, [this, p, lease, loader, life] {
      Receiver& receiver = receivers_[p];
      if (now_ < receiver.stopped_until) return arrive(p, receiver.stopped_until, lease, loader, life);
      const bool of_stream = receiver.open && receiver.lease_stream.lease_stream == lease.lease_stream;
      const bool twice = is_remake(lease);
      const bool wanted = of_stream && !twice && lease.step >= receiver.cursor &&
                          receiver.arrived[lease.step].insert(lease.chunk).second;
      totals_.late_copies += wanted || twice ? 0 : 1;
      if (of_stream && twice) report(p, ChunkAccepted{lease});
      if (wanted) report(p, ChunkAccepted{lease});
      report(p, ChunkBufferFreed{loader, static_cast<ReceiverId>(p)}, loader, life);
      if (wanted) consume(p);
    });
  }
  void consume(size_t p) {
    Receiver& receiver = receivers_[p];
    if (!receiver.open || receiver.computing) return;
    if (receiver.cursor == receiver.lease_stream.steps) {
      ++totals_.finished_lease_streams;
      return end_lease_stream(p);
    }
    if (static_cast<int32_t>(receiver.arrived[receiver.cursor].size()) < chunks_of(receiver, receiver.cursor)) {
      if (!receiver.waiting) report(p, CursorMoved{receiver.lease_stream.lease_stream, receiver.cursor, true});
      receiver.waiting = true;
      return;
    }
    receiver.computing = true;
    receiver.waiting = false;
    report(p, CursorMoved{receiver.lease_stream.lease_stream, receiver.cursor + 1, false});
    compute(p, receiver.lease_stream.lease_stream, now_ + pick(0, 300) * kMs);
  }
  void compute(size_t p, LeaseStreamId id, int64_t until) {
    at(until, [this, p, id] {
      Receiver& receiver = receivers_[p];
      if (!receiver.open || receiver.lease_stream.lease_stream != id) return;
      if (now_ < receiver.stopped_until) return compute(p, id, receiver.stopped_until);
      receiver.arrived.erase(receiver.cursor);
      ++receiver.cursor;
      receiver.computing = false;
      reserve(p);
      consume(p);
    });
  }

  static constexpr int kGroups = 3;
  std::mt19937_64 random_;
  Totals& totals_;
  const bool local_;
  std::set<LeaseStreamId> open_;  // lease streams, those that are over too
  BalancerOptions options_;
  bool hopeful_ = true;
  int failing_percent_ = 0;
  int freezing_percent_ = 0;
  bool keep_log_ = false;
  std::string log_;
  int64_t logged_ = 0;
  std::unique_ptr<Balancer> balancer_;
  std::unique_ptr<Auditor> auditor_;
  int64_t now_ = 0;
  uint64_t sequence_ = 0;
  LeaseStreamId streams_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> agenda_;
  std::vector<Loader> loaders_;
  std::vector<Receiver> receivers_;
};

TEST_CASE("random worlds: every promise is kept, every lease stream finishes while a loader lives") {
  const uint64_t first_seed = 1'000'000;
  const bool full = std::getenv("PENSTOCK_FULL") != nullptr;
  const uint64_t worlds = full ? 4000 : 1200;
  MESSAGE("seeds " << first_seed << " to " << first_seed + worlds - 1);
  Totals totals;
  for (uint64_t seed = first_seed; seed < first_seed + worlds; ++seed) {
    try {
      World world(seed, totals);
      world.run();
    } catch (const std::string& broken) {
      FAIL("seed " << seed << ": " << broken);
    }
  }
  MESSAGE("events " << totals.events << ", grants " << totals.grants << ", revokes " << totals.revokes << ", losses "
                    << totals.losses << ", given up " << totals.give_ups << ", late copies " << totals.late_copies
                    << ", failures " << totals.failures << ", broken off " << totals.broken_off << ", finished "
                    << totals.finished_lease_streams << ", failed " << totals.failed_lease_streams << ", made twice "
                    << totals.made_twice << ", drained " << totals.drained << ", unreadable " << totals.unreadable);
  // The worlds have seen what they are for; of fewer worlds a quarter of it.
  const int64_t part = full ? 1 : 4;
  CHECK(totals.finished_lease_streams * part > 5000);
  CHECK(totals.failed_lease_streams * part > 50);
  CHECK(totals.losses * part > 1000);
  CHECK(totals.give_ups * part > 100);
  CHECK(totals.revokes * part > 500);
  CHECK(totals.late_copies * part > 100);
  CHECK(totals.failures * part > 1000);
  CHECK(totals.broken_off * part > 300);
  CHECK(totals.made_twice * part > 3000);
  CHECK(totals.drained * part > 300);
  CHECK(totals.unreadable * part > 30);
}

}  // namespace
}  // namespace penstock
