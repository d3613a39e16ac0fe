#include "runtime/trainer/data_loader.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/base/clock.h"
#include "runtime/base/field_value.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/config/job.h"
#include "runtime/config/sampler_file.h"
#include "runtime/config/suggest.h"
#include "runtime/observe/batch_dump.h"
#include "runtime/observe/report.h"
#include "runtime/process/launcher.h"
#include "runtime/trainer/attach.h"
#include "runtime/trainer/client_protocol.h"
#include "runtime/trainer/client_state.h"
#include "runtime/trainer/embedded.h"
#include "transport/unix_socket.h"

namespace penstock {
namespace {

// The pool's memory, mapped once and shared by all its batches: it lives as long as any of them does.
struct PoolMapping {
  SharedMemory memory;
  size_t slot_bytes = 0;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

constexpr Nanoseconds kLookEvery = 50 * kMillisecond;
// With all batches held and none ever given back; `list(loader)` need not wait for trainer.timeout_s.
constexpr Nanoseconds kHeldPatience = 5 * kSecond;

struct Place {
  int replicas = 1;
  int rank = 0;
};

// -1 for whatever is no number from 0 on.
int number_of(const std::string& text) {
  int value = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() ? value : -1;
}

// Where this process stands among the trainers when it loads for itself.
Place embedded_place(const Job& job, const DataLoaderOptions& options) {
  if (options.num_replicas || options.rank) {
    const Place place{options.num_replicas.value_or(1), options.rank.value_or(0)};
    if (place.replicas < 1 || place.rank < 0 || place.rank >= place.replicas) {
      throw Error(ErrorKind::usage, "rank " + std::to_string(place.rank) + " of " + std::to_string(place.replicas) +
                                        " replicas does not exist",
                  "give both num_replicas and rank, with 0 <= rank < num_replicas");
    }
    if (!options.places_are_ranks) return place;
    return {replicas_of(job, place.replicas), place.rank / job.roles.ranks_per_replica};
  }
  const std::string rank = environment("RANK");
  const std::string world = environment("WORLD_SIZE");
  if (!rank.empty() && !world.empty()) {
    const Place place{number_of(world), number_of(rank)};
    if (place.replicas < 1 || place.rank < 0 || place.rank >= place.replicas) {
      throw Error(ErrorKind::usage, "RANK=" + rank + " and WORLD_SIZE=" + world + " do not fit together",
                  "unset them, or start the program with torchrun or `penstock run`");
    }
    return {replicas_of(job, place.replicas), place.rank / job.roles.ranks_per_replica};
  }
  if (rank.empty() && !world.empty() && number_of(world) > 1) {
    throw Error(ErrorKind::usage, "WORLD_SIZE=" + world + " without RANK: every trainer would get the same data",
                "set RANK as well, or unset WORLD_SIZE, or pass num_replicas and rank");
  }
  const LauncherInfo launcher = detect_launcher(current_environment());
  if (launcher.many_tasks()) {
    throw Error(ErrorKind::usage,
                std::string("this program was started by ") + launcher_name(launcher.kind) +
                    " with several tasks, but nothing says which trainer it is: every task would get the same data",
                "start it with `mpirun ... penstock run job.yaml -- PROGRAM`, or set RANK and WORLD_SIZE, or pass "
                "num_replicas and rank");
  }
  return {};
}

bool wants_to_attach(const DataLoaderOptions& options) {
  if (options.attach) return *options.attach;
  const std::string told = environment(kAttachVariable);
  if (told.empty() || told == "0") return false;
  if (told == "1") return true;
  throw Error(ErrorKind::usage, std::string(kAttachVariable) + " is '" + told + "'",
              "1: attach to the `penstock serve` of the job on this host; 0: do not (the job's name is name: in its "
              "file)");
}

// Those of the command line of `penstock run` or `serve`, a JSON list, then the program's own.
std::vector<std::string> all_overrides(const std::string& first, const DataLoaderOptions& options) {
  std::vector<std::string> all;
  const auto list = nlohmann::json::parse(first, nullptr, false);
  if (list.is_array()) {
    for (const auto& item : list) {
      if (item.is_string()) all.push_back(item.get<std::string>());
    }
  }
  all.insert(all.end(), options.overrides.begin(), options.overrides.end());
  return all;
}

}  // namespace

struct BatchState {
  std::shared_ptr<DataLoaderImpl> loader;
  std::shared_ptr<PoolMapping> pool;
  std::shared_ptr<const FieldTable> field_table;
  std::shared_ptr<const SlotLayout> layout;
  bool channels_last = false;
  ClientBatch info;

  ~BatchState();
  std::byte* data() const { return pool->memory.data() + static_cast<size_t>(info.slot) * pool->slot_bytes; }
};

class DataLoaderImpl : public std::enable_shared_from_this<DataLoaderImpl> {
 public:
  // `read`: the job with these overrides, from wherever it comes.
  using ReadJob = std::function<Job(const std::vector<std::string>&)>;

  DataLoaderImpl(const ReadJob& read, const std::string& split, const DataLoaderOptions& options)
      : options_(options), owner_(::getpid()) {
    connect(read);
    resolved_ = with_sampler_file(resolve_split(job_, split));
    name_ = split;
    training_ = resolved_.split.mode == Mode::train;
    timeout_ns_ = static_cast<Nanoseconds>(job_.trainer.timeout_s * 1e9);
    if (way_ == Way::embedded) embed();
    ClientOpen open;
    open.json = canonical_json(resolved_);
    if (options.dtype) open.dtype = static_cast<int32_t>(*options.dtype);
    if (options.channels_last) open.channels_last = *options.channels_last ? 1 : 0;
    MutexLock lock(mutex_);
    say(open);
    try {
      opened_ = expect<ClientOpened>("open split '" + split + "'", /*interruptible=*/true);
    } catch (const Error&) {
      throw;
    } catch (...) {  // interrupted by while_waiting
      socket_.close();
      if (world_) EmbeddedWorld::leave(std::move(world_));
      throw;
    }
    field_table_ = std::make_shared<FieldTable>(opened_.fields);
    layout_ = std::make_shared<SlotLayout>(slot_layout(opened_.fields, opened_.batch_size));
    // Pictures alone are what nobody trains a classifier with; where other fields come along, that is what was wanted.
    if (!opened_.labelled && training_ && opened_.fields.size() == 2) {
      warnings_.push_back(no_labels() + "; its batches are pictures alone");
      unsaid_.push_back(warnings_.back());
      say_warnings();
    }
  }

  const ClientOpened& opened() const { return opened_; }
  const ResolvedSplit& resolved() const { return resolved_; }
  PlanSpec plan(int64_t order_samples = 0) const {
    const bool program = resolved_.split.sampler.program;
    PlanSpec spec = plan_spec(resolved_, program ? order_samples * opened_.num_replicas : opened_.dataset_size,
                              opened_.num_replicas);
    if (program) spec.batch_drop_last = resolved_.split.drop_last;
    return spec;
  }
  // What the program sees of a batch: labels that nobody gave are no field.
  std::vector<std::string> field_names() const {
    std::vector<std::string> names;
    for (const FieldSpec& field : opened_.fields) {
      if (opened_.labelled || field.name != kLabelField) names.push_back(field.name);
    }
    return names;
  }
  std::string no_labels() const {
    const DatasetSpec& dataset = resolved_.split.dataset;
    std::string why = "split '" + name_ + "' has no labels";
    if (dataset.is_python()) {
      why += ": the samples of " + dataset.title() + " have no 'label'";
    } else if (!dataset.is_paired()) {
      why += ": nothing in " + dataset.title() + " is called '" +
             (dataset.tar.empty() ? dataset.tfrecord.empty() ? "label" : "image/class/label" : "cls") +
             "', and dataset.label names nothing else";
    }
    return why;
  }
  int ranks_per_replica() const { return job_.roles.ranks_per_replica; }
  bool embedded() const { return world_ != nullptr; }
  bool training() const { return training_; }
  std::vector<std::string> take_warnings() {
    MutexLock lock(mutex_);
    return std::exchange(warnings_, {});
  }

  void warn(const std::string& text) {
    check_owner();
    MutexLock lock(mutex_);
    warnings_.push_back(text);
    unsaid_.push_back(text);
    say_warnings();
  }

  // Begins a pass; the number that names it.
  uint64_t start(int64_t epoch, int64_t step, std::vector<int64_t> order) {
    check_owner();
    if (std::ssize(order) > kLargestOrder) {
      throw Error(ErrorKind::usage, "the order of a pass over split '" + name_ + "' has " +
                                        std::to_string(order.size()) + " indices; at most " +
                                        std::to_string(kLargestOrder) + " are supported",
                  "write it to a file and name that as sampler.indices");
    }
    MutexLock lock(mutex_);
    say(ClientIterate{opened_.split_id, epoch, step, std::move(order)});
    const auto answer = expect<ClientStream>("begin an epoch");
    std::shared_ptr<PoolMapping>& pool = pools_[answer.pool];
    if (!pool) {
      pool = std::make_shared<PoolMapping>();
      pool->slot_bytes = answer.slot_bytes;
      pool->memory = SharedMemory::open(std::move(fd_), answer.slot_bytes * static_cast<size_t>(answer.slots),
                                        SharedMemory::Access::read_write);
    }
    return answer.stream;
  }

  // An empty batch at the end.
  Batch next(uint64_t stream) {
    check_owner();
    MutexLock lock(mutex_);
    const ClientMessage answer = answer_of(stream);
    if (std::holds_alternative<ClientEnd>(answer)) return {};
    if (const auto* failed = std::get_if<ClientFailed>(&answer)) {
      fail(failed->error_kind, failed->error, failed->remedy);
    }
    const auto* info = std::get_if<ClientBatch>(&answer);
    if (info == nullptr) unexpected();
    auto state = std::make_shared<BatchState>();
    state->loader = shared_from_this();
    state->pool = pools_.at(info->pool);
    state->field_table = field_table_;
    state->layout = layout_;
    state->channels_last = opened_.channels_last;
    state->info = *info;
    Batch batch;
    batch.state_ = std::move(state);
    return batch;
  }

  // From destructors: never throws, and says nothing in a forked child, whose socket is the parent's too.
  void release(int32_t pool, int32_t slot) noexcept {
    ++released_;
    tell_quietly(ClientRelease{pool, slot});
  }
  void stop(uint64_t stream) noexcept {
    if (::getpid() != owner_) return;
    tell_quietly(ClientStop{stream});
    try {
      MutexLock lock(outbox_mutex_);
      stopped_.insert(stream);
    } catch (...) {  // out of memory: a batch that still comes for it stays held, which is safe
    }
  }

  std::string stats() {
    check_owner();
    MutexLock lock(mutex_);
    say(ClientStats{});
    return expect<ClientStatsJson>("statistics").json;
  }
  std::string report() {
    std::vector<std::string> ranks{stats()};
    if (world_) ranks.push_back(world_->loader_report());
    return merge_reports(ranks).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  enum class Way { run, attached, embedded };

  // Meets the port, where there is one, and reads the job file: with what was said to the ranks too.
  void connect(const ReadJob& read) {
    const std::string port = environment("PENSTOCK_PORT");
    MutexLock lock(mutex_);
    if (!port.empty()) {
      way_ = Way::run;
      job_ = read(all_overrides(environment(kOverridesVariable), options_));
      const std::string name = port.front() == '@' ? port.substr(1) : port;
      UniqueFd fd = connect_patiently(name);
      if (!peer_is_us(fd.get())) {
        throw Error(ErrorKind::peer_lost, "the socket in PENSTOCK_PORT belongs to another user", "unset PENSTOCK_PORT");
      }
      socket_ = PacketSocket(std::move(fd));
      greet(socket_, environment("PENSTOCK_TOKEN"), static_cast<Nanoseconds>(job_.trainer.timeout_s * 1e9));
      return;
    }
    job_ = read(options_.overrides);
    if (!wants_to_attach(options_)) return;
    way_ = Way::attached;
    ProgramPlace place = program_place(current_environment());
    if (options_.rank) place.rank = options_.rank;
    if (options_.num_replicas) place.world_size = options_.num_replicas;
    Attached found = attach(serving_name(job_), job_, place);
    socket_ = std::move(found.socket);
    job_ = read(all_overrides(found.welcome.overrides_json, options_));
  }

  void embed() {
    const Place place = embedded_place(job_, options_);
    EmbeddedOptions embedded;
    embedded.replicas = place.replicas;
    embedded.replica = place.rank;
    world_ = EmbeddedWorld::shared(job_, embedded);
    MutexLock lock(mutex_);
    socket_ = PacketSocket(world_->connect());
    if (options_.attach || !environment(kAttachVariable).empty()) return;  // the program said what it wants
    std::string name;
    try {
      name = serving_name(job_);
    } catch (const Error&) {
      return;  // a job that cannot be served
    }
    if (!is_served(name)) return;
    const std::string text = "`penstock serve` of this job ('" + name + "') is running on host " + host_name() +
                             ", but this program loads for itself; set PENSTOCK_ATTACH=1 to be fed by it, or 0 to have "
                             "it so";
    warnings_.push_back(text);
    unsaid_.push_back(text);
    say_warnings();
  }

  // The port may be about to open.
  UniqueFd connect_patiently(const std::string& name) PENSTOCK_REQUIRES(mutex_) {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + 10 * kSecond;
    for (;;) {
      try {
        return connect_abstract(name, kLookEvery);
      } catch (const Error&) {
        if (clock.now() > deadline) throw;
      }
      if (options_.while_waiting) without_lock(options_.while_waiting);
    }
  }

  // Before any lock: one that another thread held at fork() stays locked in the child for ever.
  void check_owner() const {
    if (::getpid() == owner_) return;
    throw Error(ErrorKind::usage, "this DataLoader belongs to the process that forked",
                "make a DataLoader of the child's own");
  }

  void say(const ClientMessage& message) PENSTOCK_REQUIRES(mutex_) {
    empty_outbox();
    socket_.send(encode_client(message));
  }
  // A thread that waits in next() holds mutex_ for long: what others want to say meanwhile goes through the outbox,
  // which the waiting thread empties every few milliseconds.
  void tell_quietly(const ClientMessage& message) noexcept {
    if (::getpid() != owner_) return;
    try {
      {
        MutexLock lock(outbox_mutex_);
        outbox_.push_back(encode_client(message));
      }
      if (!mutex_.try_lock()) return;
      empty_outbox();
      mutex_.unlock();
    } catch (...) {  // out of memory: the slot stays held, which is safe
    }
  }
  void empty_outbox() PENSTOCK_REQUIRES(mutex_) {
    std::vector<Message> messages;
    {
      MutexLock lock(outbox_mutex_);
      messages.swap(outbox_);
    }
    for (const Message& message : messages) socket_.send(message);
    drop_stopped();
    socket_.write_pending();
  }

  static uint64_t stream_of(const ClientMessage& message) {
    if (const auto* batch = std::get_if<ClientBatch>(&message)) return batch->stream;
    if (const auto* end = std::get_if<ClientEnd>(&message)) return end->stream;
    if (const auto* failed = std::get_if<ClientFailed>(&message)) return failed->stream;
    return 0;
  }

  // Asks for the stream's next batch, unless that was done before and the wait was interrupted.
  ClientMessage answer_of(uint64_t stream) PENSTOCK_REQUIRES(mutex_) {
    say_warnings();
    Wait wait(timeout_ns_);
    wait.stream = stream;
    for (;;) {
      // Whoever took the lock while we let go of it may have received our answer: for a pass of its own, and then it is
      // kept here; or as its own, where threads share a pass, and then we ask for the next.
      if (auto node = early_.extract(stream)) return std::move(node.mapped());
      if (unanswered_.insert(stream).second) say(ClientNext{stream});
      std::optional<ClientMessage> answer = receive_once("the next batch", /*interruptible=*/true, wait);
      if (!answer) continue;
      const uint64_t whose = stream_of(*answer);
      if (whose == 0) return std::move(*answer);  // not one to ClientNext: the caller says so
      unanswered_.erase(whose);
      if (whose == stream) {
        released_when_held_.erase(stream);
        return std::move(*answer);
      }
      keep_for_later(whose, std::move(*answer));
    }
  }
  void keep_for_later(uint64_t stream, ClientMessage answer) PENSTOCK_REQUIRES(mutex_) {
    {
      MutexLock lock(outbox_mutex_);
      if (stopped_.count(stream) == 0) {
        early_.emplace(stream, std::move(answer));
        return;
      }
    }
    if (const auto* batch = std::get_if<ClientBatch>(&answer)) say(ClientRelease{batch->pool, batch->slot});
  }
  // A pass that ended while its answer waited here: its batch goes back.
  void drop_stopped() PENSTOCK_REQUIRES(mutex_) {
    std::vector<ClientMessage> dropped;
    {
      MutexLock lock(outbox_mutex_);
      for (auto it = early_.begin(); it != early_.end();) {
        const bool over = stopped_.count(it->first) != 0;
        if (over) dropped.push_back(std::move(it->second));
        it = over ? early_.erase(it) : std::next(it);
      }
      // Only streams with an answer under way need to be remembered.
      for (auto it = stopped_.begin(); it != stopped_.end();) {
        it = unanswered_.count(*it) == 0 ? stopped_.erase(it) : std::next(it);
      }
    }
    for (const ClientMessage& answer : dropped) {
      const auto* batch = std::get_if<ClientBatch>(&answer);
      if (batch != nullptr) socket_.send(encode_client(ClientRelease{batch->pool, batch->slot}));
    }
  }

  struct Wait {
    explicit Wait(Nanoseconds timeout_ns) : deadline(clock.now() + timeout_ns), next_look(clock.now() + kLookEvery) {}
    MonotonicClock clock;
    Nanoseconds deadline;
    Nanoseconds next_look;
    uint64_t stream = 0;
    std::optional<Nanoseconds> held_since;  // that the port has said so, in this wait
  };
  // Did the program hold all of the pass's batches when the port was asked, and has given none back since?
  bool holds_all(uint64_t stream) PENSTOCK_REQUIRES(mutex_) {
    const auto it = released_when_held_.find(stream);
    return it != released_when_held_.end() && it->second == released_;
  }
  ClientMessage receive(const std::string& what, bool interruptible) PENSTOCK_REQUIRES(mutex_) {
    Wait wait(timeout_ns_);
    for (;;) {
      if (auto message = receive_once(what, interruptible, wait)) return std::move(*message);
    }
  }
  // Nothing where a callback was called meanwhile, without the lock.
  std::optional<ClientMessage> receive_once(const std::string& what, bool interruptible, Wait& wait)
      PENSTOCK_REQUIRES(mutex_) {
    for (;;) {
      // In short turns, so that batches dropped in other threads meanwhile go back.
      Packet packet;
      empty_outbox();
      if (socket_.receive_until(packet, 5 * kMillisecond)) {
        ClientMessage message = decode_client(packet.bytes);
        if (auto* notice = std::get_if<ClientNotice>(&message)) {
          warnings_.push_back(notice->text);
          if (notice->held_stream != 0) released_when_held_[notice->held_stream] = released_;
          // Where a wait must not be left half way, the callback, which may throw, has its turn in the next one.
          unsaid_.push_back(notice->text);
          if (!interruptible) continue;
          say_warnings();
          return std::nullopt;
        }
        if (packet.fd) fd_ = std::move(packet.fd);
        return message;
      }
      if (socket_.closed()) {
        std::string why = !failure_.empty() ? failure_ : world_ ? world_->problem() : "";
        if (why.empty()) {
          why = "the port of trainer " + std::to_string(opened_.replica) +
                " on host " + host_name() +
                " went away while the program waited for " + what;
        }
        throw Error(ErrorKind::peer_lost, why, world_ ? "" : std::string("see the messages of ") + server_name());
      }
      if (holds_all(wait.stream)) {
        if (!wait.held_since) wait.held_since = wait.clock.now();
        wait.deadline = wait.clock.now() + timeout_ns_;  // the loaders' time begins when there is room
        // A program that has never given one back is not waiting for another thread of its own to do so.
        const Nanoseconds patience = released_ == 0 ? std::min(kHeldPatience, timeout_ns_) : timeout_ns_;
        if (wait.clock.now() > *wait.held_since + patience) {
          throw Error(
              ErrorKind::usage, "the program holds all batches of split '" + name_ + "', and asks for another",
              "drop batches before the next ones are asked for, copy what is to be kept (copy=True in Python), or "
              "raise trainer.hold (" +
                  std::to_string(job_.trainer.hold) + ")");
        }
      } else if (wait.clock.now() > wait.deadline) {
        failure_ = "trainer " + std::to_string(opened_.replica) + " waited " + std::to_string(timeout_ns_ / kSecond) +
                   " s for " + what + " of split '" + name_ + "'";
        // An answer that comes after all would be taken for that to the next question.
        socket_.close();
        throw Error(ErrorKind::peer_lost, failure_,
                    warnings_.empty() ? "see the loaders' messages; trainer.timeout_s sets the limit"
                                      : warnings_.back());
      }
      if (interruptible && options_.while_waiting && wait.clock.now() > wait.next_look) {
        wait.next_look = wait.clock.now() + kLookEvery;
        without_lock(options_.while_waiting);
        return std::nullopt;
      }
    }
  }
  // A callback may drop batches, ask for warnings(), or wait for a lock of the program's own.
  template <class Call>
  void without_lock(const Call& call) PENSTOCK_REQUIRES(mutex_) {
    mutex_.unlock();
    try {
      call();
    } catch (...) {
      mutex_.lock();
      throw;
    }
    mutex_.lock();
  }
  void say_warnings() PENSTOCK_REQUIRES(mutex_) {
    for (const std::string& text : std::exchange(unsaid_, {})) {
      if (options_.on_warning) without_lock([&] { options_.on_warning(text); });
    }
  }
  template <class T>
  T expect(const std::string& what, bool interruptible = false) PENSTOCK_REQUIRES(mutex_) {
    ClientMessage message = receive(what, interruptible);
    for (uint64_t whose = stream_of(message); whose != 0; whose = stream_of(message)) {
      unanswered_.erase(whose);
      keep_for_later(whose, std::move(message));
      message = receive(what, interruptible);
    }
    if (auto* wanted = std::get_if<T>(&message)) return std::move(*wanted);
    if (const auto* refused = std::get_if<ClientRefused>(&message)) {
      fail(refused->error_kind, refused->error, refused->remedy);
    }
    if (const auto* failed = std::get_if<ClientFailed>(&message)) {
      fail(failed->error_kind, failed->error, failed->remedy);
    }
    unexpected();
  }
  [[noreturn]] static void fail(int32_t kind, const std::string& error, const std::string& remedy) {
    throw Error(static_cast<ErrorKind>(kind), error, remedy);
  }
  [[noreturn]] static void unexpected() {
    throw Error(ErrorKind::peer_lost, "the port answered something else than was asked",
                "link the program against the same version of penstock as `penstock run`");
  }
  const char* server_name() const { return way_ == Way::attached ? "`penstock serve`" : "`penstock run`"; }

  DataLoaderOptions options_;
  int owner_;
  Job job_;
  ResolvedSplit resolved_;
  std::string name_;
  bool training_ = true;
  Nanoseconds timeout_ns_ = 0;
  Way way_ = Way::embedded;
  std::shared_ptr<EmbeddedWorld> world_;
  ClientOpened opened_;
  std::shared_ptr<const FieldTable> field_table_;
  std::shared_ptr<const SlotLayout> layout_;

  Mutex mutex_;
  PacketSocket socket_ PENSTOCK_GUARDED_BY(mutex_);
  UniqueFd fd_ PENSTOCK_GUARDED_BY(mutex_);  // the last one received
  std::map<int32_t, std::shared_ptr<PoolMapping>> pools_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<std::string> warnings_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<std::string> unsaid_ PENSTOCK_GUARDED_BY(mutex_);  // warnings that the callback has not heard
  std::string failure_ PENSTOCK_GUARDED_BY(mutex_);  // what ended the conversation with the port
  std::set<uint64_t> unanswered_ PENSTOCK_GUARDED_BY(mutex_);  // streams whose next batch was asked for
  std::map<uint64_t, ClientMessage> early_ PENSTOCK_GUARDED_BY(mutex_);  // answers that nobody has taken yet
  std::map<uint64_t, int64_t> released_when_held_ PENSTOCK_GUARDED_BY(mutex_);  // by stream
  Mutex outbox_mutex_;
  std::vector<Message> outbox_ PENSTOCK_GUARDED_BY(outbox_mutex_);
  std::set<uint64_t> stopped_ PENSTOCK_GUARDED_BY(outbox_mutex_);
  std::atomic<int64_t> released_ = 0;  // batches; publishes nothing

 public:
  std::optional<int64_t> next_epoch;  // set by set_epoch, used up by begin()
  int64_t last_epoch = -1;            // of the last begin()
};

BatchState::~BatchState() { loader->release(info.pool, info.slot); }

int64_t Batch::size() const { return state_->info.samples; }
int64_t Batch::epoch() const { return state_->info.epoch; }
int64_t Batch::step() const { return state_->info.step; }
int64_t Batch::num_valid() const { return state_->info.num_valid; }
const int64_t* Batch::indices() const {
  return reinterpret_cast<const int64_t*>(state_->data() + state_->layout->indices);
}
const uint8_t* Batch::valid() const { return reinterpret_cast<const uint8_t*>(state_->data() + state_->layout->valid); }
const uint8_t* Batch::substituted() const {
  return reinterpret_cast<const uint8_t*>(state_->data() + state_->layout->substituted);
}

std::vector<std::string> Batch::fields() const {
  return state_->loader->field_names();
}

size_t Batch::place_of(const std::string& name) const {
  const FieldTable& table = *state_->field_table;
  const std::vector<std::string> shown = state_->loader->field_names();
  std::string known;
  for (const std::string& one : shown) known += (known.empty() ? "'" : ", '") + one + "'";
  if (std::find(shown.begin(), shown.end(), name) != shown.end()) {
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].name == name) return i;
    }
  }
  if (name == kLabelField) {
    throw Error(ErrorKind::usage, state_->loader->no_labels(), "its batches have " + known);
  }
  throw Error(ErrorKind::usage, "a batch has no field '" + name + "'", "its fields are " + known);
}

TensorView Batch::operator[](const std::string& name) const {
  const size_t place = place_of(name);
  const FieldSpec& field = (*state_->field_table)[place];
  std::byte* data = state_->data() + state_->layout->fields[place];
  if (!field.fixed_size()) {
    throw Error(ErrorKind::usage, "field '" + name + "' has values of varying length, and no array",
                "ask for value(\"" + name + "\", i)");
  }
  if (field.kind == FieldKind::image) return image_batch_view(data, field, size(), state_->channels_last);
  return field_batch_view(data, field, size());
}

std::string_view Batch::value(const std::string& name, int64_t i) const {
  const size_t place = place_of(name);
  const FieldSpec& field = (*state_->field_table)[place];
  if (field.fixed_size()) {
    throw Error(ErrorKind::usage, "field '" + name + "' is an array", "ask for batch[\"" + name + "\"]");
  }
  if (i < 0 || i >= size()) {
    throw Error(ErrorKind::usage,
                "a batch of " + std::to_string(size()) + " samples has no sample " + std::to_string(i));
  }
  const std::byte* rooms = state_->data() + state_->layout->fields[place];
  return as_text(varying_value(field, rooms + static_cast<size_t>(i) * field.bytes_per_sample()));
}

FieldKind Batch::kind(const std::string& name) const { return (*state_->field_table)[place_of(name)].kind; }

struct BatchStream::Pass {
  std::shared_ptr<DataLoaderImpl> loader;
  uint64_t stream = 0;
  bool over = false;

  ~Pass() {
    if (loader) loader->stop(stream);
  }
};

Batch BatchStream::next() {
  if (!pass_ || pass_->over) return {};
  Batch batch = pass_->loader->next(pass_->stream);
  pass_->over = !batch;
  return batch;
}

struct BatchIterator::Place {
  BatchStream stream;
  Batch batch;  // goes before the stream does
};

bool BatchIterator::at_end() const noexcept { return !place_ || !place_->batch; }
Batch& BatchIterator::operator*() const {
  if (at_end()) throw Error(ErrorKind::usage, "there is no batch at the end of a pass");
  return place_->batch;
}
BatchIterator& BatchIterator::operator++() {
  if (at_end()) return *this;
  place_->batch = {};
  place_->batch = place_->stream.next();
  return *this;
}

DataLoader::DataLoader(const std::string& job_file, const std::string& split, const DataLoaderOptions& options)
    : DataLoader(std::make_shared<DataLoaderImpl>(
          [&](const std::vector<std::string>& overrides) { return load_job(job_file, overrides); }, split, options)) {}
DataLoader::DataLoader(std::shared_ptr<DataLoaderImpl> impl) : impl_(std::move(impl)) {}
DataLoader DataLoader::from_text(const std::string& job_text, const std::string& name, const std::string& split,
                                 const DataLoaderOptions& options) {
  return DataLoader(std::make_shared<DataLoaderImpl>(
      [&](const std::vector<std::string>& overrides) { return load_job_text(job_text, name, overrides); }, split,
      options));
}
DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

BatchStream DataLoader::start() {
  const int64_t which = epoch();
  impl_->next_epoch.reset();
  return start_at(which, 0);
}

BatchStream DataLoader::start_at(int64_t which, int64_t step) { return start_at(which, step, {}); }

BatchStream DataLoader::start_at(int64_t which, int64_t step, std::vector<int64_t> order) {
  impl_->last_epoch = which;
  BatchStream stream;
  stream.pass_ = std::make_shared<BatchStream::Pass>();
  stream.pass_->stream = impl_->start(which, step, std::move(order));
  stream.pass_->loader = impl_;
  return stream;
}

BatchIterator DataLoader::begin() {
  const int64_t which = epoch();
  impl_->next_epoch.reset();
  return begin_at(which, 0);
}

BatchIterator DataLoader::begin_at(int64_t which, int64_t step) {
  BatchIterator iterator;
  iterator.place_ = std::make_shared<BatchIterator::Place>();
  iterator.place_->stream = start_at(which, step);
  iterator.place_->batch = iterator.place_->stream.next();
  return iterator;
}

std::string DataLoader::state(int64_t epoch, int64_t step, int64_t order_samples) const {
  return state_text(impl_->resolved(), impl_->plan(order_samples), impl_->opened().dataset_fingerprint, {epoch, step});
}
Cursor DataLoader::resume(const std::string& state, int64_t order_samples) const {
  std::string warning;
  const Cursor cursor =
      resume_state(state, impl_->resolved(), impl_->plan(order_samples), impl_->opened().dataset_fingerprint, warning);
  if (!warning.empty()) impl_->warn(warning);
  return cursor;
}
std::string DataLoader::spec() const { return canonical_json(impl_->resolved()); }

void DataLoader::set_epoch(int64_t epoch) {
  if (epoch < 0) throw Error(ErrorKind::usage, "set_epoch(" + std::to_string(epoch) + "): epochs count from 0");
  impl_->next_epoch = epoch;
}
int64_t DataLoader::epoch() const noexcept {
  if (impl_->next_epoch) return *impl_->next_epoch;
  return impl_->training() ? impl_->last_epoch + 1 : 0;
}
int64_t DataLoader::size() const noexcept { return impl_->opened().steps; }
int64_t DataLoader::batch_size() const noexcept { return impl_->opened().batch_size; }
int64_t DataLoader::num_samples() const noexcept { return impl_->opened().num_samples; }
int64_t DataLoader::dataset_size() const noexcept { return impl_->opened().dataset_size; }
int DataLoader::num_replicas() const noexcept { return impl_->opened().num_replicas; }
int DataLoader::ranks_per_replica() const noexcept { return impl_->ranks_per_replica(); }
int DataLoader::rank() const noexcept { return impl_->opened().replica; }
const std::vector<std::string>& DataLoader::class_names() const noexcept { return impl_->opened().classes; }
std::vector<std::string> DataLoader::warnings() const { return impl_->take_warnings(); }
std::string DataLoader::stats_json() { return impl_->stats(); }
std::string DataLoader::report_json() { return impl_->report(); }
std::vector<std::string> DataLoader::fields() const {
  return impl_->field_names();
}
bool DataLoader::embedded() const noexcept { return impl_->embedded(); }

}  // namespace penstock
