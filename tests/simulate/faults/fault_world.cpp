#include "tests/simulate/faults/fault_world.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/source.h"
#include "runtime/job/job.h"
#include "runtime/loader/loader.h"
#include "runtime/protocol/messages.h"
#include "runtime/receiver/receiver.h"
#include "runtime/sample/split_context.h"
#include "runtime/simulate/event_loop.h"
#include "runtime/simulate/seeded_random.h"
#include "tests/simulate/faults/sim_client.h"
#include "tests/simulate/faults/sim_executor.h"
#include "tests/simulate/faults/sim_network.h"
#include "transport/unix_socket.h"

namespace penstock {
namespace {

constexpr Nanoseconds kTick = 100 * kMillisecond;
constexpr Nanoseconds kEndOfTheWorld = 600 * kSecond;

// Samples that have names and labels, and whose bytes nobody reads.
class NumberedSource final : public Source {
 public:
  NumberedSource(int64_t size, const IndexRanges& readable) : size_(size), readable_(readable) {
    for (int i = 0; i < 10; ++i) classes_.push_back("class" + std::to_string(i));
  }
  int64_t size() const override { return size_; }
  ReadableSamples readable() const override { return {readable_, "other nodes' samples"}; }
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override { return "sample" + std::to_string(index); }
  int64_t label(int64_t index) const override { return sim_label(index); }
  const std::vector<std::string>& class_names() const override { return classes_; }
  int64_t encoded_size(int64_t) const override { return 1000; }
  SampleStatus read(int64_t, std::vector<std::byte>&) const override {
    throw Error(ErrorKind::usage, "a simulated sample has no encoded bytes");
  }
  Sum128 fingerprint() const override { return hash128(std::to_string(size_)); }

 private:
  int64_t size_;
  IndexRanges readable_;
  FieldTable fields_{{"image", FieldKind::image, DType::uint8, {}}, {"label", FieldKind::tensor, DType::int64, {}}};
  std::vector<std::string> classes_;
};

struct Fault {
  enum class Kind : uint8_t { kill, stop, cut_both, cut_to, cut_from, slow, failing, damage, leave, disk };
  static constexpr int64_t kKinds = 10;
  Kind kind = Kind::kill;
  PeerId loader = 0;
  Nanoseconds at = 0;
  Nanoseconds lasts = 0;
  std::optional<Nanoseconds> seen_after;  // of a death
};

const char* name_of(Fault::Kind kind) {
  constexpr const char* names[] = {"kill", "stop",    "cut both", "cut to", "cut from",
                                   "slow", "failing", "damage",   "leave",  "disk"};
  return names[static_cast<size_t>(kind)];
}

// Everything that a seed decides before the world begins. What concerns the stream is drawn first, and is the same with
// and without faults.
struct Script {
  int receivers = 1;
  int loaders = 2;
  int64_t batch_size = 4;
  int64_t steps = 4;
  int chunk_samples = 2;
  int chunk_buffers = 8;
  int threads = 1;
  int prefetch = 2;
  int hold = 0;
  std::vector<std::vector<SimClient::Epoch>> epochs;  // by receiver
  Nanoseconds step_ns = 0;
  Nanoseconds chunk_ns = 0;
  Nanoseconds lost_after = 0;
  Nanoseconds wait = 0;  // of the job, for lost loaders; 0: it does not wait
  bool in_place = true;
  int slow_percent = 2;
  int64_t receiver_stops = 0;
  int64_t remake_every = 0;
  std::optional<PeerId> wrong;  // a loader that computes wrongly
  std::vector<Fault> faults;
  Nanoseconds spare_joins_at = 0;
  PeerId healthy = 0;             // a loader without faults, where there is one
  std::vector<IndexRanges> held;  // by loader: samples that it can read

  int ranks() const { return receivers + loaders; }
  int64_t samples() const { return batch_size * steps * receivers; }
};

// Many loaders' threads, with many leases, learn what a chunk takes. Then all of them take forty times as long for a while:
// more leases are late at once than the budget of hedges allows.
void make_lateness_common(Script& s, SeededRandom& random, bool faults) {
  s.batch_size = 32;
  s.steps = random.between(30, 60);
  s.chunk_samples = 1;
  for (auto& epochs : s.epochs) epochs = {SimClient::Epoch{}};
  s.chunk_buffers = 64;
  s.threads = 32;
  s.prefetch = 3;
  s.step_ns = 10 * kMillisecond;
  s.chunk_ns = random.between(10, 30) * kMillisecond;
  s.remake_every = 0;
  s.spare_joins_at = 0;
  const Nanoseconds at = random.between(200, 400) * kMillisecond;
  for (PeerId loader = s.receivers; faults && loader < s.ranks(); ++loader) {
    s.faults.push_back({Fault::Kind::slow, loader, at, random.between(50, 500) * kMillisecond, {}});
  }
}

// All fall silent within a quarter of lost_after and for twice as long at least, so that all are given up before the
// first comes back. The job's wait begins with the last loss, so whoever is silent no longer than that is in time.
void lose_all_for_a_while(Script& s, SeededRandom& random, Nanoseconds lasts) {
  s.spare_joins_at = 0;
  s.wait = random.between(4, 12) * s.lost_after;
  s.healthy = s.receivers + static_cast<PeerId>(random.below(s.loaders));
  const bool before_opening = random.chance(50);
  const Nanoseconds first = random.below(before_opening ? 100 * kMicrosecond : lasts / 4);
  for (PeerId loader = s.receivers; loader < s.ranks(); ++loader) {
    Fault fault{Fault::Kind::kill, loader, first, 0, {}};
    if (!before_opening) fault.at += random.below(s.lost_after / 4);
    if (loader == s.healthy || random.chance(40)) {
      fault.kind = random.chance(50) ? Fault::Kind::cut_both : Fault::Kind::stop;
      fault.lasts = random.between(2 * s.lost_after, s.wait);
    } else if (random.chance(50)) {
      fault.seen_after = random.below(50) * kMillisecond;
    }
    s.faults.push_back(fault);
  }
}

Script draw_script(SeededRandom& random, const FaultWorld::Options& options) {
  Script s;
  s.receivers = static_cast<int>(random.between(1, 3));
  s.batch_size = random.between(1, 3) * 2;
  const bool is_long = random.chance(20);  // enough leases to learn what they take
  s.steps = is_long ? random.between(30, 80) : random.between(2, 8);
  s.chunk_samples = static_cast<int>(random.between(1, s.batch_size));
  const int64_t epochs = random.between(1, 3);
  for (int r = 0; r < s.receivers; ++r) s.epochs.emplace_back(static_cast<size_t>(epochs));
  for (int64_t e = 0; e + 1 < epochs; ++e) {
    if (!random.chance(25)) continue;
    for (auto& of_receiver : s.epochs) of_receiver[static_cast<size_t>(e)].batches = random.between(1, s.steps);
  }

  s.loaders = static_cast<int>(random.between(options.all_lost ? 1 : 2, 4));
  s.healthy = s.ranks() - 1;
  s.chunk_buffers = static_cast<int>(random.between(s.receivers, 12));
  s.threads = static_cast<int>(random.between(1, 3));
  s.prefetch = static_cast<int>(random.between(1, 3));
  s.hold = static_cast<int>(random.between(0, 1));
  s.in_place = random.chance(60) && !options.damaged_chunks;
  s.step_ns = random.between(1, is_long ? 40 : 200) * kMillisecond;
  s.chunk_ns = random.between(1, 40) * kMillisecond;
  s.lost_after = random.between(5, 30) * 100 * kMillisecond;
  if (random.chance(20)) s.spare_joins_at = random.between(1, 30) * 100 * kMillisecond;
  if (random.chance(60)) s.remake_every = random.between(2, 20);
  if (options.wrong) {
    s.remake_every = random.between(1, 5);
    s.wrong = s.receivers + static_cast<PeerId>(random.below(s.loaders));
  }
  if (options.late) make_lateness_common(s, random, options.faults);
  if (!options.faults || options.late) return s;
  const Nanoseconds lasts = 200 * kMillisecond + 2 * s.step_ns * s.steps * epochs;
  if (options.returns) {
    s.spare_joins_at = 0;
    s.chunk_buffers = static_cast<int>(random.between(s.receivers, 4));
    s.chunk_ns = random.between(1, 4) * kMillisecond;
    s.slow_percent = 25;
    s.lost_after = random.between(20, 30) * 100 * kMillisecond;
    if (random.chance(80)) s.in_place = true;
    for (int64_t i = 0; i < 8; ++i) {
      const PeerId loader = s.receivers + static_cast<PeerId>(random.below(s.loaders - 1));
      const Nanoseconds cut = s.lost_after + random.between(2, 10) * s.lost_after / 10;
      const auto kind = random.chance(50) ? Fault::Kind::cut_both : Fault::Kind::damage;
      s.faults.push_back({kind, loader, 3 * s.lost_after * i + random.below(s.lost_after / 2), cut, {}});
    }
    return s;
  }
  if (options.waits) {
    lose_all_for_a_while(s, random, lasts);
    return s;
  }
  if (options.damaged_chunks) {
    s.spare_joins_at = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const PeerId loader = s.receivers + static_cast<PeerId>(random.below(s.loaders));
      s.faults.push_back({Fault::Kind::damage, loader, lasts * i / 3, 0, {}});
    }
    return s;
  }
  const int64_t count = random.between(1, is_long ? 12 : 6);
  const PeerId healthy = s.receivers + static_cast<PeerId>(random.below(s.loaders));
  s.healthy = healthy;
  if (healthy == s.ranks() - 1) s.spare_joins_at = 0;
  for (int64_t i = 0; i < count && s.loaders > 1; ++i) {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(random.below(Fault::kKinds));
    do {
      fault.loader = s.receivers + static_cast<PeerId>(random.below(s.loaders));
    } while (fault.loader == healthy);
    fault.at = random.below(lasts);
    fault.lasts = random.chance(50) ? random.between(1, 10) * s.lost_after / 4 : random.between(1, 300) * kMillisecond;
    if (random.chance(75)) fault.seen_after = random.below(50) * kMillisecond;
    s.faults.push_back(fault);
  }
  if (options.all_lost) {
    for (int l = 0; l < s.loaders; ++l) {
      Fault fault;
      fault.loader = s.receivers + l;
      fault.at = random.below(lasts / 4 + 1);
      if (random.chance(50)) fault.seen_after = random.below(50) * kMillisecond;
      s.faults.push_back(fault);
    }
  }
  if (random.chance(30)) s.receiver_stops = random.between(1, 3);
  if (random.chance(30)) s.slow_percent = 40;  // what ranks say to each other crosses
  return s;
}

// The healthy loader holds all samples, others some: runs of them, as in shards; some of them nearly all or nothing.
void place_samples(Script& s, SeededRandom& random, bool local) {
  for (PeerId loader = s.receivers; loader < s.ranks(); ++loader) {
    IndexRanges& held = s.held.emplace_back();
    const int64_t shard = random.between(1, 8);
    const int64_t percent = random.between(0, 100);
    bool has = true;
    for (int64_t i = 0; i < s.samples(); ++i) {
      if (i % shard == 0) has = !local || loader == s.healthy || random.chance(percent);
      if (has) held.add(i);
    }
  }
}

std::string job_text(const Script& s, bool local) {
  return "seed: 7\nsplits:\n  train:\n    mode: train\n    dataset: {folder: /simulated" +
         std::string(local ? ", index: /simulated.index, local: true" : "") +
         "}\n"
         "    pipeline: [{CenterCrop: {size: 4}}]\n    sampler: {shuffle: true}\n    batch_size: " +
         std::to_string(s.batch_size) + "\n";
}

// By a generator of its own: the stream is the same with and without.
Script placed_script(Script s, uint64_t seed, const FaultWorld::Options& options) {
  SeededRandom random(seed + 0x10ca1);
  place_samples(s, random, options.local);
  return s;
}

// Reports have figures of the real process.
std::string describe(const Message& message) {
  ControlMessage content;
  try {
    content = decode(message);
  } catch (const Error& error) {
    return error.message();
  }
  const bool report = std::holds_alternative<ReceiverDone>(content) || std::holds_alternative<LoaderReport>(content);
  return std::to_string(content.index()) + (report ? "" : " " + hash128(message).hex());
}

}  // namespace

class FaultWorld::Impl {
 public:
  Impl(uint64_t seed, const Options& options)
      : options_(options),
        script_random_(seed),
        random_(seed + 0x5eed),
        script_(placed_script(draw_script(script_random_, options), seed, options)),
        network_(loop_, random_,
                 {script_.ranks(), script_.in_place, 200 * kMicrosecond, script_.slow_percent,
                  options.returns ? 2000 : 100, options.damaged_chunks ? 100 : 50,
                  options.logged ? [this](const std::string& what) { log(what); }
                                 : std::function<void(const std::string&)>(),
                  describe}) {
    const Job job = parse_job(job_text(script_, options.local), "job.yaml");
    split_json_ = canonical_json(resolve_split(job, "train"));
    for (int r = 0; r < script_.receivers; ++r) add_receiver(r);
    for (int l = 0; l < script_.loaders; ++l) add_loader(script_.receivers + l);
  }

  WorldResult run() {
    for (auto& rank : ranks_) begin(rank);
    for (const Fault& fault : script_.faults) loop_.at(fault.at, [this, fault] { strike(fault); });
    for (int64_t i = 0; i < script_.receiver_stops; ++i) {
      const auto receiver = static_cast<size_t>(random_.below(script_.receivers));
      const Nanoseconds lasts = random_.between(1, 40) * script_.lost_after / 100;
      stop_receiver(receiver, random_.below(4 * script_.step_ns * script_.steps), lasts);
    }
    while (result_.failure.empty() && !over() && loop_.now() < kEndOfTheWorld && loop_.step()) {
    }
    conclude();
    result_.log = log_.hex();
    result_.took_ns = loop_.now();
    return result_;
  }

 private:
  struct Rank {
    PeerId id = 0;
    std::unique_ptr<Receiver> receiver;
    std::unique_ptr<Loader> loader;
    std::unique_ptr<SimClient> client;
    Nanoseconds begins_at = 0;
    Nanoseconds stopped_until = 0;
    int64_t slowness = 1;
    bool failing = false;
    bool leaving = false;
    bool begun = false;
    bool ended = false;  // its loop has
    bool reported = false;
  };

  void log(const std::string& what) {
    if (!options_.logged) return;
    const std::string line = std::to_string(loop_.now()) + " " + what;
    log_ = hash128(log_.hex() + line);
    if (options_.text != nullptr) *options_.text += line + "\n";
  }
  void fail(const std::string& why) {
    if (result_.failure.empty()) result_.failure = why + " (at " + std::to_string(loop_.now() / kMillisecond) + " ms)";
  }

  void add_receiver(int r) {
    ReceiverOptions options;
    options.self = r;
    options.replica = options.trainer = r;
    options.num_replicas = script_.receivers;
    options.prefetch = script_.prefetch;
    options.hold = script_.hold;
    options.heartbeat_ns = script_.lost_after / 10;
    options.silence_ns = script_.lost_after;
    options.whole_job = true;
    options.clock = &loop_.clock();
    CoordinatorOptions& coordination = options.coordination;
    for (int i = 0; i < script_.ranks(); ++i) {
      (i < script_.receivers ? coordination.receivers : coordination.loaders).push_back(i);
      coordination.nodes.push_back(0);
    }
    coordination.chunk_samples = script_.chunk_samples;
    coordination.balancer = balancer();
    Rank rank;
    rank.id = r;
    rank.receiver = make_receiver(options, network_.endpoint(r));
    auto [mine, theirs] = packet_socket_pair();
    rank.receiver->adopt(std::move(theirs));
    SimClient::Script script;
    script.split_json = split_json_;
    script.batch_size = script_.batch_size;
    script.epochs = script_.epochs[static_cast<size_t>(r)];
    script.hold = script_.hold;
    script.checks = !script_.wrong;
    script.step_takes = [this] { return random_.between(1, 2 * script_.step_ns); };
    rank.client = std::make_unique<SimClient>(loop_, std::move(mine), script,
                                              [this, r] { turn(ranks_[static_cast<size_t>(r)]); });
    ranks_.push_back(std::move(rank));
    network_.on_arrival(r, [this, r] { turn(ranks_[static_cast<size_t>(r)]); });
  }

  BalancerSpec balancer() const {
    BalancerSpec spec;
    spec.lost_after_s = as_seconds(script_.lost_after);
    spec.lease_timeout_s = as_seconds(lease_timeout());
    spec.retry_s = 3600;
    spec.remake_every = script_.remake_every;
    if (script_.wait > 0) {
      spec.on_all_lost = AllLostPolicy::wait;
      spec.wait_s = as_seconds(script_.wait);
    }
    return spec;
  }
  Nanoseconds lease_timeout() const { return 3 * script_.lost_after; }

  void add_loader(PeerId id) {
    const auto at = static_cast<size_t>(id);
    LoaderOptions options;
    options.threads = script_.threads;
    options.chunk_buffers = script_.chunk_buffers;
    options.memory_bytes = int64_t{64} << 20;
    options.payload_crc = true;
    options.heartbeat_ns = script_.lost_after / 10;
    options.silence_ns = coordinator_silence_ns(balancer());
    options.read_ahead.reads = 0;
    options.index_memory_bytes = 0;
    options.seams.clock = &loop_.clock();
    const IndexRanges& held = script_.held[at - static_cast<size_t>(script_.receivers)];
    options.seams.open_split = [this, &held](const ResolvedSplit& split) {
      return SplitContext::with_source(split, std::make_unique<NumberedSource>(script_.samples(), held));
    };
    options.seams.executor = [this, at, &held] {
      SimExecutorSpec spec;
      spec.threads = script_.threads;
      spec.takes = [this, at](const ChunkWork&) {
        return random_.between(script_.chunk_ns / 2, 2 * script_.chunk_ns) * ranks_[at].slowness;
      };
      spec.fails = [this, at, &held](const ChunkWork& work) {
        for (const PlannedSample& sample : work.lease.samples) {
          if (held.contains(sample.index)) continue;
          fail("rank " + std::to_string(at) + " is to make sample " + std::to_string(sample.index) +
               ", which it cannot read");
        }
        return ranks_[at].failing || loop_.now() < disk_fails_until_ ? std::string("the disk says EIO") : std::string();
      };
      if (script_.wrong == static_cast<PeerId>(at))
        spec.spoil = [this](const ChunkWork&) { return random_.chance(50); };
      spec.done = [this, at] { turn(ranks_[at]); };
      return make_sim_executor(loop_, std::move(spec));
    };
    Rank rank;
    rank.id = id;
    rank.loader = make_loader(options, network_.endpoint(id));
    if (id == script_.ranks() - 1 && script_.loaders > 1) rank.begins_at = script_.spare_joins_at;
    ranks_.push_back(std::move(rank));
    network_.on_arrival(id, [this, at] { turn(ranks_[at]); });
  }

  void begin(Rank& rank) {
    loop_.at(rank.begins_at, [this, &rank] {
      rank.begun = true;
      rank.receiver ? rank.receiver->begin() : rank.loader->begin();
      tick(rank);
    });
  }
  void tick(Rank& rank) {
    turn(rank);
    if (!rank.ended) loop_.after(kTick, [this, &rank] { tick(rank); });
  }

  void turn(Rank& rank) {
    if (!rank.begun || rank.ended || !network_.alive(rank.id) || rank.stopped_until > loop_.now()) return;
    try {
      rank.receiver ? turn_receiver(rank) : turn_loader(rank);
    } catch (const Error& error) {
      // A loader that is cut off for long ends by itself.
      if (rank.loader && error.exit_code() == static_cast<int>(ErrorKind::peer_lost) && is_cut_[rank.id]) {
        log("loader ends " + std::to_string(rank.id));
        end_process(rank, 10 * kMillisecond);
        rank.ended = true;
        return;
      }
      fail("rank " + std::to_string(rank.id) + ": " + error.what());
    }
  }
  void turn_loader(Rank& rank) {
    if (rank.loader->turn()) return;
    rank.ended = true;
    if (rank.leaving) end_process(rank, 10 * kMillisecond);
  }
  void end_process(const Rank& rank, std::optional<Nanoseconds> seen_after) {
    network_.kill(rank.id, {seen_after});
    last_end_ = loop_.now();
  }
  void turn_receiver(Rank& rank) {
    bool moved = true;
    while (moved && !rank.receiver->ended()) {
      moved = rank.receiver->turn();
      moved = rank.client->turn() || moved;
      if (!rank.client->failure().empty()) fail("program " + std::to_string(rank.id) + ": " + rank.client->failure());
      if (rank.client->finished() && !rank.reported) {
        rank.reported = true;
        const std::string& refusal = rank.client->refusal();
        rank.receiver->finish_program(refusal.empty(), refusal, refusal.empty() ? 0 : 5);
        moved = true;
      }
    }
    rank.ended = rank.receiver->ended();
  }

  void stop_receiver(size_t receiver, Nanoseconds at, Nanoseconds lasts) {
    loop_.at(at, [this, receiver, lasts] {
      log("receiver stops " + std::to_string(receiver));
      ranks_[receiver].stopped_until = loop_.now() + lasts;
    });
  }

  void strike(const Fault& fault) {
    Rank& rank = ranks_[static_cast<size_t>(fault.loader)];
    if (!network_.alive(fault.loader) && fault.kind != Fault::Kind::disk) return;
    log(std::string(name_of(fault.kind)) + " " + std::to_string(fault.loader));
    const Nanoseconds until = loop_.now() + fault.lasts;
    const auto in_the_end = [&](std::function<void()> event) { loop_.at(until, std::move(event)); };
    switch (fault.kind) {
      case Fault::Kind::kill:
        end_process(rank, fault.seen_after);
        rank.ended = true;
        return;
      case Fault::Kind::stop:
        rank.stopped_until = std::max(rank.stopped_until, until);
        return in_the_end([this, &rank] { turn(rank); });
      case Fault::Kind::slow: rank.slowness = options_.late ? 40 : 8; return in_the_end([&rank] { rank.slowness = 1; });
      case Fault::Kind::failing: rank.failing = true; return in_the_end([&rank] { rank.failing = false; });
      case Fault::Kind::disk: disk_fails_until_ = until; return;
      case Fault::Kind::damage:
        if (options_.damaged_chunks) return network_.damage(fault.loader, 0, 1);
        if (options_.returns) return network_.damage(fault.loader, 1, 0);
        return network_.damage(fault.loader, static_cast<int>(random_.below(3)), static_cast<int>(random_.below(4)));
      case Fault::Kind::leave:
        rank.leaving = true;
        if (rank.begun && !rank.ended) rank.loader->leave("the seed says so");
        return turn(rank);
      default:
        is_cut_[fault.loader] = true;
        for (PeerId other = 0; other < script_.ranks(); ++other) {
          if (other == fault.loader) continue;
          if (fault.kind != Fault::Kind::cut_from) network_.cut(other, fault.loader, until);
          if (fault.kind != Fault::Kind::cut_to) network_.cut(fault.loader, other, until);
        }
    }
  }

  bool over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.receiver || rank.ended; });
  }

  void conclude() {
    for (const std::string& violation : network_.violations()) fail(violation);
    if (!over()) fail("the job does not end");
    if (!result_.failure.empty()) return;
    StreamSums sums;
    for (const Rank& rank : ranks_) {
      if (!rank.receiver) continue;
      const Goodbye& goodbye = rank.receiver->goodbye();
      if (options_.wrong) {
        const bool named = goodbye.reason.find("rank " + std::to_string(*script_.wrong)) != std::string::npos &&
                           goodbye.reason.find("differently") != std::string::npos;
        if (!goodbye.good && !named) fail("the job ended by another cause: " + goodbye.reason);
        result_.differences += goodbye.good ? 0 : 1;
      } else if (options_.all_lost) {
        // They may have finished before.
        if (!goodbye.good && goodbye.reason.find("no loader is left") == std::string::npos &&
            !(options_.local && goodbye.reason.find("no loader can read") != std::string::npos)) {
          fail("the job ended by another cause: " + goodbye.reason);
        }
      } else if (!goodbye.good) {
        fail("the job failed: " + goodbye.reason);
      }
      ended_by_name_ = ended_by_name_ || !goodbye.good;
      result_.batches += rank.client->batches();
      result_.longest_wait_ns = std::max(result_.longest_wait_ns, rank.client->longest_wait_ns());
      result_.waiting_openings += rank.client->opening_took_ns() >= 2 * script_.lost_after ? 1 : 0;
      add_report(parse_json(rank.receiver->report_json()), sums);
    }
    result_.hashes = sums.order.hex() + sums.pixel.hex();
    result_.none_was_left = result_.losses >= script_.loaders;
    check_times();
  }

  struct StreamSums {
    Sum128 order;
    Sum128 pixel;
  };
  void add_report(const nlohmann::json& report, StreamSums& sums) {
    result_.compared += report["compared_chunks"].get<int64_t>();
    for (const auto& [name, split] : report["splits"].items()) {
      sums.order += Sum128::from_hex(split["order_hash"].get<std::string>());
      sums.pixel += Sum128::from_hex(split["pixel_hash"].get<std::string>());
    }
    if (!report.contains("leases")) return;
    result_.granted = report["leases"]["granted"];
    result_.regranted = report["leases"]["regranted"];
    result_.hedged = report["leases"]["hedged"];
    result_.left += std::ssize(report["left_loaders"]);
    for (const std::string text : report["lost_loaders"]) {
      ++result_.losses;
      result_.returns += text.find("; back after") != std::string::npos ? 1 : 0;
    }
  }

  // One loader is healthy all the time: what the others hold is made by it when they are late, silent or dead. The
  // longest way: a loader that is silent for lost_after, or makes a chunk and cannot send it, then the healthy one's
  // queue, eight times as slow at most. Where the job waits for that one to come back, this wait is added.
  void check_times() {
    if (result_.hedged * hedge_every() > result_.granted) {
      fail(std::to_string(result_.hedged) + " hedges of " + std::to_string(result_.granted) + " grants");
    }
    if (options_.wrong) return;
    if (options_.all_lost) return check_end();
    const Nanoseconds work = script_.chunk_ns * 2 * (script_.chunk_buffers + 2) * 8;
    const Nanoseconds without_any = script_.wait > 0 ? script_.wait + script_.lost_after : 0;
    const Nanoseconds limit = lease_timeout() + script_.lost_after + without_any + work + 12 * kSecond;
    if (result_.longest_wait_ns > limit) {
      fail("a program waited " + std::to_string(result_.longest_wait_ns / kMillisecond) +
           " ms for a batch, more than " + std::to_string(limit / kMillisecond));
    }
  }
  // Lateness alone is no fault.
  int64_t hedge_every() const { return options_.late || !options_.faults ? 50 : 20; }

  // A death is detected within lost_after; `on_all_lost: fail` ends the job within five seconds more. A stopped receiver
  // is later by that, and a program sees the end when its step is over.
  void check_end() {
    if (!ended_by_name_) return;
    const Nanoseconds stops = script_.receiver_stops * 4 * script_.lost_after / 10;
    const Nanoseconds limit = last_end_ + script_.lost_after + 5 * kSecond + stops + 2 * script_.step_ns;
    if (loop_.now() > limit) {
      fail("the job ended " + std::to_string((loop_.now() - last_end_) / kMillisecond) +
           " ms after its last loader, and not within " + std::to_string((limit - last_end_) / kMillisecond));
    }
    result_.end_took_ns = loop_.now() - last_end_;
  }

  Options options_;
  SeededRandom script_random_;
  SeededRandom random_;
  const Script script_;
  EventLoop loop_;
  SimNetwork network_;
  std::string split_json_;
  std::vector<Rank> ranks_;
  std::map<PeerId, bool> is_cut_;
  Nanoseconds disk_fails_until_ = 0;
  Nanoseconds last_end_ = 0;  // of a loader's process
  bool ended_by_name_ = false;
  Sum128 log_;
  WorldResult result_;
};

FaultWorld::FaultWorld(uint64_t seed, const Options& options) : impl_(std::make_unique<Impl>(seed, options)) {}
FaultWorld::~FaultWorld() = default;
WorldResult FaultWorld::run() {
  return impl_->run();
}

}  // namespace penstock
