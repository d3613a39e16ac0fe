#include "runtime/loader/loader.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/dataset/listed_files.h"
#include "runtime/loader/executor.h"
#include "runtime/loader/leases_on_the_way.h"
#include "runtime/loader/split_context.h"
#include "runtime/protocol/messages.h"
#include "runtime/protocol/silence.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

// Of closed splits: train, val and another two.
constexpr size_t kListsKept = 4;

}  // namespace

class Loader::Impl {
 public:
  Impl(const LoaderOptions& options, std::unique_ptr<Endpoint> endpoint)
      : options_(options),
        endpoint_(std::move(endpoint)),
        silence_(options.silence_ns),
        way_(2 * endpoint_->capabilities(options.coordinator).delay_ns, options.threads, options.cells),
        learnt_(options.index_memory_bytes > 0 ? std::make_shared<LearntMemory>(learnt_limit(options.memory_bytes)) : nullptr),
        ahead_(ReadAhead::make(ahead_options(options), options.files != nullptr ? *options.files : posix_file_system())),
        executor_(make_executor()) {}

  ~Impl() {
    python_stop_.request_stop();
    // Threads that wait for a read have nothing to wait for any more.
    ahead_->stop();
    // Threads first: they write into cells.
    executor_.reset();
    for (auto& [fingerprint, split] : splits_) {
      if (split.opening.joinable()) split.opening.join();
    }
    endpoint_.reset();
  }

  bool run() {
    begun_ = clock_.now();
    if (options_.silence_ns > 0) silence_.watch(options_.coordinator, begun_);
    // A chunk that a card has keeps no thread busy.
    tell(LoaderHello{options_.cells, lease_depth(options_.threads) + lanes_, options_.threads});
    for (;;) {
      Incoming incoming;
      while (endpoint_->poll(incoming)) {
        handle(incoming);
        if (ended_) return good_;
      }
      while (auto work = executor_->next_done()) finish(std::move(work));
      collect_opened();
      look_ahead();
      if (ended_ || stop_) return good_;
      beat();
      if (silence_.tick(clock_.now())) {
        throw Error(ErrorKind::peer_lost,
                    "lost trainer 0 (rank " + std::to_string(options_.coordinator) + "), which coordinates: " +
                        silence_.reason());
      }
      wait();
    }
  }

  void stop() noexcept {
    stop_ = true;
    wakeup_.set();
  }
  void watch(int fd) { watched_ = fd; }
  bool all_alive() const noexcept { return all_alive_; }
  int exit_code() const noexcept { return exit_code_; }

  std::string report_json() const {
    const ExecutorFigures f = executor_->figures();
    const double elapsed = static_cast<double>(clock_.now() - begun_) * 1e-9;
    nlohmann::json report;
    report["role"] = "loader";
    report["images"] = f.samples;
    report["encoded_bytes"] = f.encoded_bytes;
    report["sent_bytes"] = sent_bytes_.load();
    report["chunks"] = chunks_.load();
    report["threads"] = f.threads;
    report["elapsed_s"] = elapsed;
    report["busy_fraction"] = elapsed > 0 ? static_cast<double>(f.busy_ns) * 1e-9 / (elapsed * f.threads) : 0;
    report["read_s"] = static_cast<double>(f.read_ns) * 1e-9;
    report["decode_s"] = static_cast<double>(f.decode_ns) * 1e-9;
    report["augment_s"] = static_cast<double>(f.augment_ns) * 1e-9;
    report["read_ahead"] = ahead_report();
    if (learnt_) {
      const LearntFigures learnt = learnt_->figures();
      report["learnt_index"] = {{"photos", learnt.photos}, {"bytes", learnt.bytes}, {"used", learnt.used}};
    }
    if (options_.executor != ExecutorKind::cpu) report["cards"] = card_report(f);
    std::vector<std::shared_ptr<const SplitContext>> python;
    {
      MutexLock lock(python_mutex_);
      python = python_splits_;
      if (!replaced_before_.is_null()) report["python_workers_replaced"] = replaced_before_;
    }
    for (const auto& context : python) {
      const auto replaced = replaced_workers(*context);
      if (!replaced.is_null()) add_replaced(report["python_workers_replaced"][context->split().name], replaced);
    }
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    report["max_rss_mb"] = static_cast<double>(usage.ru_maxrss) / 1024.0;
    return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  std::unique_ptr<Executor> make_executor() {
    if (options_.executor != ExecutorKind::cpu) {
      try {
        auto executor = make_card_executor(options_.threads, options_.cpus, open_cards(options_.cards),
                                           options_.card_lanes, options_.on_notice, options_.cpu_fraction);
        // Not those that were wished for: a node may have fewer cards, and a card less memory.
        for (const CardFigures& card : executor->figures().cards) lanes_ += card.failure.empty() ? card.lanes : 0;
        return executor;
      } catch (const Error& error) {
        if (options_.executor == ExecutorKind::card) throw;
        no_card_ = error.message();
      }
    }
    return make_cpu_executor(options_.threads, options_.cpus);
  }

  nlohmann::json card_report(const ExecutorFigures& f) const {
    nlohmann::json list = nlohmann::json::array();
    int64_t images = 0;
    for (const CardFigures& card : f.cards) {
      images += card.images;
      nlohmann::json one{{"name", card.name},
                         {"number", card.number},
                         {"memory_mb", static_cast<double>(card.memory_bytes) / 1048576.0},
                         {"images", card.images},
                         {"batches", card.batches},
                         {"uploaded_bytes", card.uploaded_bytes},
                         {"busy_s", static_cast<double>(card.busy_ns) * 1e-9}};
      if (!card.failure.empty()) one["failed"] = card.failure;
      list.push_back(std::move(one));
    }
    nlohmann::json report{{"list", std::move(list)}, {"images", images}, {"remade", f.remade}};
    if (!no_card_.empty()) report["none"] = no_card_;
    return report;
  }

  // What a split was listed from, and what became of it.
  struct Listed {
    std::shared_ptr<const SplitContext> context;
    FileStamps stamps;
    SplitPrepared answer;
  };
  struct Split {
    std::shared_ptr<const SplitContext> context;
    FileStamps stamps;  // of what was listed
    Fingerprint described = 0;
    Fingerprint like = 0;  // that it may turn out to be the same as
    Arena arena;
    std::vector<uint32_t> free_cells;
    std::thread opening;                     // lists the dataset, so that heartbeats go on meanwhile
    std::future<void> opened;
    int32_t max_chunk_samples = 1;
    Listed fresh;  // the opening thread's, until `opened` is ready
    SplitPrepared answer;
    std::vector<LeaseGranted> early;            // came while the dataset is being listed
    bool closed = false;                        // nobody has it open: it goes with its last cell
    bool worth_keeping = true;                  // its list
  };
  struct Kept {
    Fingerprint described = 0;
    Listed listed;
  };
  // A split's list and cells, when it was opened anew while chunks were on their way: they stay until those are home.
  struct Leaving {
    std::shared_ptr<const SplitContext> context;
    Arena arena;
    std::vector<uint32_t> free_cells;
  };

  static ReadAheadOptions ahead_options(const LoaderOptions& options) {
    ReadAheadOptions ahead = options.read_ahead;
    ahead.cpus = options.cpus;
    ahead.on_notice = options.on_notice;
    ahead.memory_bytes = std::min(ahead.memory_bytes, options.memory_bytes);
    return ahead;
  }
  nlohmann::json ahead_report() const {
    const ReadAheadFigures f = ahead_->figures();
    nlohmann::json report = {{"method", f.method.empty() ? "none" : f.method},
                             {"reads", f.reads},
                             {"bytes", f.bytes},
                             {"taken", f.taken},
                             {"waited", f.waited},
                             {"early", f.early},
                             {"failed", f.failed},
                             {"dropped", f.dropped}};
    if (!f.why_threads.empty()) report["why_threads"] = f.why_threads;
    return report;
  }
  // Deep enough that the wanted number of reads can be under way behind the leases that threads work on, and that threads
  // have work while a result and the lease that answers it are on their way.
  void look_ahead() {
    const int32_t for_reads =
        ahead_->awake() ? (options_.read_ahead.reads + lease_samples_ - 1) / lease_samples_ : 0;
    const int32_t leases = std::max(for_reads, way_.leases());
    if (leases == std::exchange(leases_ahead_, leases)) return;
    tell(LeasesAhead{leases});
  }
  // Cells first; of the rest, half at most is for what is learnt.
  int64_t learnt_limit(int64_t left) const { return std::min(options_.index_memory_bytes, std::max<int64_t>(left, 0) / 2); }
  void share_memory() {
    const int64_t left = options_.memory_bytes - static_cast<int64_t>(arena_bytes_);
    ahead_->set_memory(left - learnt_limit(left));
    if (learnt_) learnt_->set_limit(learnt_limit(left));
  }

  static nlohmann::json replaced_workers(const SplitContext& context) {
    const int64_t count = context.workers()->replaced();
    if (count == 0) return nullptr;
    return {{"count", count}, {"last", context.workers()->notices()}};
  }
  static void add_replaced(nlohmann::json& sum, const nlohmann::json& more) {
    const int64_t before = sum.is_null() ? 0 : sum.at("count").get<int64_t>();
    sum = more;
    sum["count"] = before + more.at("count").get<int64_t>();
  }

  void tell(const ControlMessage& message) { endpoint_->send(options_.coordinator, encode(message)); }

  void handle(Incoming& incoming) {
    std::visit(overloaded{
                   [&](MessageArrived& m) {
                     silence_.heard(m.peer, clock_.now());
                     handle_message(decode(m.message));
                   },
                   [&](ChunkArrived& m) { endpoint_->release(m.peer, m.token); },
                   [&](CellReturned& m) { cell_returned(m); },
                   [&](PeerLost& m) {
                     if (m.peer != options_.coordinator) return;
                     throw Error(ErrorKind::peer_lost, "lost the coordinator (rank " + std::to_string(m.peer) +
                                                           "): " + m.reason);
                   },
               },
               incoming);
  }

  void handle_message(ControlMessage message) {
    std::visit(overloaded{
                   [&](PrepareSplit& m) { prepare(m); },
                   [&](SplitClosed& m) { split_closed(m); },
                   [&](LeaseGranted& m) { lease(m); },
                   [&](LeaseRevoked& m) { revoke(m.lease); },
                   [&](Alive&) {},
                   [&](Leave&) { tell(LoaderReport{report_json()}); },
                   [&](Goodbye& m) {
                     ended_ = true;
                     good_ = m.good;
                     all_alive_ = m.all_alive;
                     exit_code_ = m.exit_code;
                   },
                   [&](auto&) {
                     throw Error(ErrorKind::peer_lost, "the coordinator sent a message that is not for loaders",
                                 "all ranks must run the same version of penstock");
                   },
               },
               message);
  }

  void prepare(const PrepareSplit& m) {
    Listed before;  // a list that is there already
    if (const auto known = splits_.find(m.fingerprint); known != splits_.end()) {
      known->second.closed = false;
      if (known->second.opened.valid()) return;  // the answer is on its way
      // In use by an iteration that ended. Files may have changed since all the same.
      if (in_use(known->second.arena)) {
        before = set_aside(known);
      } else {
        retire(known);
      }
    }
    Split& split = splits_[m.fingerprint];
    split.max_chunk_samples = m.max_chunk_samples;
    split.described = fingerprint_of(m.json);
    split.like = m.like;
    // Of a split that is open, or that was closed a while ago.
    if (const auto like = splits_.find(m.like); m.like != 0 && like != splits_.end() && like->second.context) {
      before = {like->second.context, like->second.stamps, like->second.answer};
    }
    const auto kept =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.described == split.described; });
    if (m.like == 0 && kept != kept_.end()) {
      before = std::move(kept->listed);
      kept_.erase(kept);
    }
    std::promise<void> promise;
    split.opened = promise.get_future();
    split.opening = std::thread([this, &split, m, before = std::move(before), promise = std::move(promise)]() mutable {
      try {
        split.fresh = open(m, std::move(before));
        promise.set_value();
      } catch (...) {
        promise.set_exception(std::current_exception());
      }
      wakeup_.set();
    });
  }

  // In the opening thread. `before`: a list of the same description, or nothing.
  Listed open(const PrepareSplit& m, Listed before) const {
    Listed fresh;
    SplitPrepared& answer = fresh.answer;
    const auto fail = [&](int32_t kind, std::string error, std::string remedy) {
      fresh = {};
      answer.error_kind = kind;
      answer.error = std::move(error);
      answer.remedy = std::move(remedy);
    };
    try {
      FileSystem& files = ahead_->files();
      const Looked looked = before.context ? look(before.stamps, files) : Looked::changed;
      if (looked == Looked::same) {
        fresh = std::move(before);
      } else {
        if (looked == Looked::changed && m.like == 0) before = {};  // nobody needs the old one: its room is wanted
        list_anew(m, files, fresh);
        // Folders that changed and hold the same pictures; or that may have changed, and did not.
        if (before.context && before.answer.dataset_fingerprint == answer.dataset_fingerprint &&
            same_files(before.stamps, fresh.stamps)) {
          fresh.context = std::move(before.context);
          answer = std::move(before.answer);
        } else {
          before = {};
        }
      }
      answer.same = m.like != 0 && fresh.context && answer.fingerprint == m.like;
    } catch (const Error& error) {
      fail(error.exit_code(), error.message(), error.remedy());
    } catch (const std::bad_alloc&) {
      fail(static_cast<int32_t>(ErrorKind::runtime), "out of memory while the dataset was listed", "");
    } catch (const std::exception& error) {
      fail(static_cast<int32_t>(ErrorKind::runtime), error.what(), "");
    }
    answer.fingerprint = m.fingerprint;
    return fresh;
  }

  void list_anew(const PrepareSplit& m, FileSystem& files, Listed& fresh) const {
    struct Opened {
      explicit Opened(FileSystem& below) : files(below) {}
      ListedFiles files;
      std::shared_ptr<const SplitContext> context;  // reads through `files`: goes first
    };
    const auto opened = std::make_shared<Opened>(files);
    opened->context =
        SplitContext::open(split_from_json(m.json), opened->files,
                           {options_.python, options_.on_notice, python_stop_.get_token()}, options_.sources, learnt_);
    fresh.stamps = opened->files.finish();
    fresh.context = {opened, opened->context.get()};
    const Source& source = fresh.context->source();
    fresh.answer.good = true;
    fresh.answer.fingerprint = m.fingerprint;
    fresh.answer.dataset_size = source.size();
    fresh.answer.dataset_fingerprint = source.fingerprint().hex();
    fresh.answer.classes = source.class_names();
    fresh.answer.labelled = source.labelled();
    const auto extras = extra_fields(fresh.context->fields());
    fresh.answer.extra_fields.assign(extras.begin(), extras.end());
  }

  bool in_use(const Arena& arena) const {  // cells of it are out, or worked in
    return std::any_of(cell_ports_.begin(), cell_ports_.end(),
                       [&](const auto& item) { return item.first.first == arena.id; });
  }
  // The coordinator asks again after the split could not be opened, here or at another loader: the folder may have been
  // repaired, and what was listed no longer be so.
  void retire(std::map<Fingerprint, Split>::iterator split) {
    forget_arena(split->second.arena);
    forget_workers(split->second.context);
    splits_.erase(split);
  }
  // Gives its list, for a look whether it holds still; workers in Python are begun anew.
  Listed set_aside(std::map<Fingerprint, Split>::iterator it) {
    Split& split = it->second;
    Listed list;
    if (split.context->workers() == nullptr) list = {split.context, std::move(split.stamps), split.answer};
    forget_workers(split.context);
    leaving_.push_back({std::move(split.context), std::move(split.arena), std::move(split.free_cells)});
    splits_.erase(it);
    return list;
  }
  void forget_arena(const Arena& arena) {
    arena_bytes_ -= arena.memory.size();
    share_memory();
    endpoint_->forget_arena(arena.id);
  }
  void forget_workers(const std::shared_ptr<const SplitContext>& context) {
    if (!context || context->workers() == nullptr) return;
    const auto replaced = replaced_workers(*context);
    MutexLock lock(python_mutex_);
    std::erase(python_splits_, context);
    if (!replaced.is_null()) add_replaced(replaced_before_[context->split().name], replaced);
  }

  void split_closed(const SplitClosed& m) {
    const auto it = splits_.find(m.fingerprint);
    if (it == splits_.end()) return;
    it->second.closed = true;
    it->second.worth_keeping = !m.failed;
    let_closed_go();
  }
  // Lists of files are kept for a while, and with them what loader.cache_gb holds: a trainer that starts again opens
  // the same splits. Processes and cells are not.
  void let_closed_go() {
    for (auto it = splits_.begin(); it != splits_.end();) {
      const auto split = it++;
      if (!split->second.closed || split->second.opened.valid() || in_use(split->second.arena)) continue;
      if (split->second.context && split->second.context->workers() == nullptr && split->second.worth_keeping) {
        kept_.push_back(
            {split->second.described, {split->second.context, std::move(split->second.stamps), split->second.answer}});
        if (kept_.size() > kListsKept) kept_.pop_front();
      }
      retire(split);
    }
    let_kept_go();
  }
  // What closed splits hold in memory and on disk must not come on top of what living ones may have.
  void let_kept_go() {
    if (kept_.empty()) return;
    if (learnt_ && learnt_->full()) {
      for (const Kept& one : kept_) one.listed.context->learnt()->clear();
    }
    SourceBudget sum{0, 0};
    const auto add = [&](const std::shared_ptr<const SplitContext>& context) {
      if (!context) return;
      const SourceBudget taken = context->source().taken();
      sum.cache_bytes += taken.cache_bytes;
      sum.spool_bytes += taken.spool_bytes;
    };
    for (const auto& [fingerprint, split] : splits_) add(split.context);
    for (const Leaving& one : leaving_) add(one.context);
    for (const Kept& one : kept_) add(one.listed.context);
    while (!kept_.empty() &&
           (sum.cache_bytes > options_.sources.cache_bytes || sum.spool_bytes > options_.sources.spool_bytes)) {
      const SourceBudget taken = kept_.front().listed.context->source().taken();
      sum.cache_bytes -= taken.cache_bytes;
      sum.spool_bytes -= taken.spool_bytes;
      kept_.pop_front();
    }
  }

  void collect_opened() {
    for (auto it = splits_.begin(); it != splits_.end();) {
      const auto here = it++;
      Split& split = here->second;
      if (!split.opened.valid()) continue;
      if (split.opened.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
      if (waits_for_room(split)) continue;
      split.opened.get();
      split.opening.join();
      Listed fresh = std::exchange(split.fresh, {});
      SplitPrepared answer = std::move(fresh.answer);
      if (answer.same) {
        if (const auto like = splits_.find(split.like); like != splits_.end()) {
          like->second.stamps = std::move(fresh.stamps);
        }
        tell(answer);
        splits_.erase(here);
        continue;
      }
      if (answer.good) {
        split.context = std::move(fresh.context);
        split.stamps = std::move(fresh.stamps);
        try {
          if (!take_back_cells(split)) make_arena(split);
        } catch (const Error& error) {
          answer.good = false;
          answer.error_kind = error.exit_code();
          answer.error = error.message();
          answer.remedy = error.remedy();
          split.context = nullptr;  // a lease that crosses this answer finds no split here
        }
      }
      if (split.context && split.context->workers() != nullptr) {
        MutexLock lock(python_mutex_);
        python_splits_.push_back(split.context);
      }
      tell(answer);
      split.answer = answer;
      for (LeaseGranted& m : std::exchange(split.early, {})) {
        if (answer.good) {
          begin(split, std::move(m));
        } else {
          tell(ChunkUndone{m.lease, answer.error});
          tell(CellBack{m.port});  // it was counted on, though never taken
        }
      }
    }
    let_closed_go();
  }

  static size_t cell_bytes(const SplitContext& context, int32_t samples) {
    constexpr size_t page = 4096;
    return (chunk_layout(context.fields(), samples).total_bytes + page - 1) / page * page;
  }

  static bool has_cells_for(const Leaving& one, const std::shared_ptr<const SplitContext>& context, int32_t samples) {
    return one.context == context && one.arena.cell_bytes == cell_bytes(*context, samples);
  }

  // Where the list is still the same, so are the cells.
  bool take_back_cells(Split& split) {
    const auto same = std::find_if(leaving_.begin(), leaving_.end(), [&](const Leaving& one) {
      return has_cells_for(one, split.context, split.max_chunk_samples);
    });
    if (same == leaving_.end()) return false;
    split.arena = std::move(same->arena);
    split.free_cells = std::move(same->free_cells);
    leaving_.erase(same);
    return true;
  }

  // Cells that are still out may be what its own have no room beside; ports give them back, or are lost.
  bool waits_for_room(const Split& split) const {
    const std::shared_ptr<const SplitContext>& context = split.fresh.context;
    const int32_t samples = split.max_chunk_samples;
    if (leaving_.empty() || !context || split.fresh.answer.same) return false;
    const bool has_some = std::any_of(leaving_.begin(), leaving_.end(),
                                      [&](const Leaving& one) { return has_cells_for(one, context, samples); });
    const size_t total = cell_bytes(*context, samples) * static_cast<size_t>(options_.cells);
    return !has_some && static_cast<int64_t>(total + arena_bytes_) > options_.memory_bytes;
  }

  void make_arena(Split& split) {
    split.arena.cell_bytes = cell_bytes(*split.context, split.max_chunk_samples);
    const size_t total = split.arena.cell_bytes * static_cast<size_t>(options_.cells);
    if (static_cast<int64_t>(total + arena_bytes_) > options_.memory_bytes) {
      throw Error(ErrorKind::config,
                  "split '" + split.context->split().name + "' needs " + std::to_string(total >> 20) +
                      " MB of cells at each loader, and loader.memory_gb leaves " +
                      std::to_string((options_.memory_bytes - static_cast<int64_t>(arena_bytes_)) >> 20) + " MB",
                  memory_remedy(split.context->fields()));
    }
    split.arena.id = next_arena_++;
    split.arena.memory = SharedMemory::create("penstock-cells", total);
    split.arena.memory.seal_future_writes();
    arena_bytes_ += total;
    share_memory();
    endpoint_->register_arena(split.arena);
    for (uint32_t cell = 0; cell < static_cast<uint32_t>(options_.cells); ++cell) split.free_cells.push_back(cell);
  }

  static std::string memory_remedy(const FieldTable& fields) {
    size_t all = 0;
    size_t varying = 0;
    for (const FieldSpec& field : fields) {
      all += field.bytes_per_sample();
      if (!field.fixed_size()) varying += field.bytes_per_sample();
    }
    const std::string others = "raise loader.memory_gb, or lower loader.cells or loader.chunk_samples";
    if (2 * varying < all) return others;
    return "lower limits.max_field_bytes: most of it is room for texts and bytes, in each sample for the longest one; "
           "or " +
           others;
  }

  void lease(LeaseGranted& m) {
    const auto it = splits_.find(m.fingerprint);
    if (it == splits_.end() || m.samples.empty() || std::ssize(m.samples) > it->second.max_chunk_samples) {
      impossible_lease();
    }
    Split& split = it->second;
    // A loader that joins when others have opened the split is granted work at once.
    if (split.opened.valid()) {
      split.early.push_back(std::move(m));
    } else {
      begin(split, std::move(m));
    }
  }

  [[noreturn]] static void impossible_lease() {
    throw Error(ErrorKind::peer_lost, "a lease came for which this loader has no room or no split",
                "all ranks must run the same version of penstock");
  }

  void begin(Split& split, LeaseGranted m) {
    if (!split.context) {  // a lease that crossed our word that the split cannot be opened
      tell(ChunkUndone{m.lease, "the split could not be opened here"});
      tell(CellBack{m.port});
      return;
    }
    if (split.free_cells.empty()) impossible_lease();
    auto work = std::make_unique<ChunkWork>();
    work->split = split.context;
    work->cell = {split.arena.id, split.free_cells.back()};
    work->memory = split.arena.cell(split.free_cells.back());
    split.free_cells.pop_back();
    cell_ports_[{work->cell.arena, work->cell.cell}] = m.port;
    work->lease = std::move(m);
    lease_samples_ = std::max(lease_samples_, static_cast<int32_t>(work->lease.samples.size()));
    if (ahead_->awake()) {
      std::vector<int64_t> indices;
      for (const PlannedSample& sample : work->lease.samples) indices.push_back(sample.index);
      work->reads = ahead_->plan(work->split->source(), indices);
    }
    executor_->submit(std::move(work));
  }

  void revoke(const LeaseKey& lease) {
    if (auto work = executor_->withdraw(lease)) {
      ahead_->drop(work->reads);
      free_cell(work->cell);
    }
    for (auto& [fingerprint, split] : splits_) {
      const auto it = std::find_if(split.early.begin(), split.early.end(),
                                   [&](const LeaseGranted& m) { return m.lease == lease; });
      if (it == split.early.end()) continue;
      tell(CellBack{it->port});
      split.early.erase(it);
    }
  }

  void finish(std::unique_ptr<ChunkWork> work) {
    ++chunks_;
    ahead_->drop(work->reads);
    if (!work->failure.empty()) {
      tell(ChunkUndone{work->lease.lease, work->failure});
      free_cell(work->cell);
      return;
    }
    const size_t bytes = pack_chunk(work->split->fields(), std::ssize(work->lease.samples), work->memory);
    ChunkHeader header;
    header.lease = work->lease.lease;
    header.fingerprint = work->lease.fingerprint;
    header.arithmetic = static_cast<uint8_t>(arithmetic_of(work->split->split().arithmetic));
    header.epoch = work->lease.epoch;
    header.replica = work->lease.replica;
    header.first_slot = work->lease.first_slot;
    header.samples = static_cast<int32_t>(work->lease.samples.size());
    header.payload_bytes = bytes;
    if (options_.payload_crc) header.payload_crc = crc32c(work->memory, bytes);
    sent_bytes_ += static_cast<int64_t>(bytes);
    way_.made(work->busy_ns);
    endpoint_->send_chunk(work->lease.port, encode_envelope(header, work->records), work->cell, bytes);
    tell(ChunkDone{work->lease.lease, work->busy_ns, work->bytes, work->pixels});
  }

  void cell_returned(const CellReturned& m) { free_cell(m.cell); }

  void free_cell(const CellRef& cell) {
    const auto it = cell_ports_.find({cell.arena, cell.cell});
    if (it == cell_ports_.end()) return;  // not in use: freeing it again would give it to two works
    for (auto& [fingerprint, split] : splits_) {
      if (split.context && split.arena.id == cell.arena) split.free_cells.push_back(cell.cell);
    }
    for (Leaving& one : leaving_) {
      if (one.arena.id == cell.arena) one.free_cells.push_back(cell.cell);
    }
    tell(CellBack{it->second});
    cell_ports_.erase(it);
    std::erase_if(leaving_, [&](const Leaving& one) {
      const bool home = !in_use(one.arena);
      if (home) forget_arena(one.arena);
      return home;
    });
    let_closed_go();
  }

  void beat() {
    if (clock_.now() - last_beat_ < options_.heartbeat_ns) return;
    last_beat_ = clock_.now();
    tell(Alive{});
    let_kept_go();
  }

  void wait() {
    std::vector<pollfd> fds;
    endpoint_->collect_fds(fds);
    fds.push_back({executor_->done_fd(), POLLIN, 0});
    fds.push_back({wakeup_.fd(), POLLIN, 0});
    const bool watching = watched_ >= 0;
    if (watching) fds.push_back({watched_, POLLIN, 0});
    const Nanoseconds left = options_.heartbeat_ns - (clock_.now() - last_beat_);
    (void)::poll(fds.data(), fds.size(), static_cast<int>(std::max<Nanoseconds>(left / kMillisecond, 0)) + 1);
    wakeup_.clear();
    if (watching && fds.back().revents != 0) ended_ = true;
  }

  LoaderOptions options_;
  MonotonicClock clock_;
  std::unique_ptr<Endpoint> endpoint_;
  SilenceWatch silence_;
  LeasesOnTheWay way_;
  std::shared_ptr<LearntMemory> learnt_;  // nullptr: nothing is learnt
  std::shared_ptr<ReadAhead> ahead_;      // the sources read through it
  std::map<Fingerprint, Split> splits_;
  mutable Mutex python_mutex_;
  // Of splits_ those with Python workers: what report_json() looks at, in whatever thread it is called.
  std::vector<std::shared_ptr<const SplitContext>> python_splits_ PENSTOCK_GUARDED_BY(python_mutex_);
  nlohmann::json replaced_before_ PENSTOCK_GUARDED_BY(python_mutex_);  // workers of splits that are gone, by name
  std::list<Leaving> leaving_;
  std::deque<Kept> kept_;  // of splits that are closed, the last one at the end
  std::map<std::pair<uint32_t, uint32_t>, PeerId> cell_ports_;  // cells in use, and for whom
  Wakeup wakeup_;
  int lanes_ = 0;        // of all its cards
  std::string no_card_;  // why there is none, where one was wished for
  std::unique_ptr<Executor> executor_;
  std::stop_source python_stop_;
  std::atomic<bool> stop_{false};
  int watched_ = -1;
  bool ended_ = false;
  bool good_ = false;
  bool all_alive_ = false;
  int exit_code_ = 0;
  // What report_json() reads in other threads; nothing else is published by them.
  std::atomic<Nanoseconds> begun_ = clock_.now();
  Nanoseconds last_beat_ = 0;
  int32_t lease_samples_ = 1;  // of the largest lease so far
  int32_t leases_ahead_ = 0;   // that the coordinator knows of
  uint32_t next_arena_ = 1;
  size_t arena_bytes_ = 0;
  std::atomic<int64_t> sent_bytes_ = 0;
  std::atomic<int64_t> chunks_ = 0;
};

LoaderOptions loader_options(const Job& job) {
  LoaderOptions options;
  options.threads = job.loader.threads;
  // Beyond the leases being made: what is on its way to ports, or waits for a port that is busy finishing.
  options.cells = job.loader.cells > 0 ? job.loader.cells : std::max(16, 4 * lease_depth(job.loader.threads));
  options.payload_crc = job.loader.payload_crc;
  options.memory_bytes = static_cast<int64_t>(job.loader.memory_gb * 1073741824.0);
  options.executor = job.loader.executor;
  options.cpu_fraction = job.loader.cpu_fraction;
  options.cards.count = job.loader.cards;
  options.card_lanes.memory_bytes = static_cast<int64_t>(job.loader.card_memory_mb * 1048576.0);
  options.python = job.python;
  options.sources.cache_bytes = static_cast<int64_t>(job.loader.cache_gb * 1073741824.0);
  options.sources.spool_bytes = static_cast<int64_t>(job.loader.spool_gb * 1073741824.0);
  options.read_ahead.reads = job.loader.read_ahead;
  options.read_ahead.memory_bytes = static_cast<int64_t>(job.loader.read_ahead_mb * 1048576.0);
  options.read_ahead.method = job.loader.read_method;
  options.index_memory_bytes = static_cast<int64_t>(job.loader.index_memory_mb * 1048576.0);
  // For tests and comparisons: whatever the disk's speed.
  const char* const eager = std::getenv("PENSTOCK_READ_AHEAD");
  options.read_ahead.eager = eager != nullptr && std::string_view(eager) == "always";
  options.heartbeat_ns = static_cast<Nanoseconds>(job.balancer.heartbeat_s * 1e9);
  return options;
}

Loader::Loader(const LoaderOptions& options, std::unique_ptr<Endpoint> endpoint)
    : impl_(std::make_unique<Impl>(options, std::move(endpoint))) {}
Loader::~Loader() = default;
bool Loader::run() { return impl_->run(); }
void Loader::stop() noexcept { impl_->stop(); }
void Loader::watch(int fd) { impl_->watch(fd); }
bool Loader::all_alive() const noexcept { return impl_->all_alive(); }
int Loader::exit_code() const noexcept { return impl_->exit_code(); }
std::string Loader::report_json() const { return impl_->report_json(); }

}  // namespace penstock
