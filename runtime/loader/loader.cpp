#include "runtime/loader/loader.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/base/json_text.h"
#include "runtime/base/switches.h"
#include "runtime/loader/executor.h"
#include "runtime/loader/leases_on_the_way.h"
#include "runtime/loader/loader_splits.h"
#include "runtime/loader/piece_lender.h"
#include "runtime/protocol/messages.h"
#include "runtime/protocol/silence.h"
#include "runtime/sample/split_context.h"
#include "transport/wakeup.h"

namespace penstock {
class Loader::Impl {
 public:
  Impl(const LoaderOptions& options, std::unique_ptr<Endpoint> endpoint)
      : options_(options),
        endpoint_(std::move(endpoint)),
        silence_(options.silence_ns),
        // A result and the lease that answers it, both at the wrong end of the naps: twice as long as on average.
        leases_on_the_way_(4 * endpoint_->capabilities(options.coordinator).delay_ns, options.threads, options.cells),
        ahead_(ReadAhead::make(ahead_options(options), options.files != nullptr ? *options.files : posix_file_system())),
        splits_(options_, *endpoint_, *ahead_, wakeup_),
        executor_(make_executor()),
        lender_(*endpoint_, *executor_, {cards_, options.card_links}, options.on_notice) {}

  ~Impl() {
    splits_.stop();
    // Threads that wait for a read have nothing to wait for any more.
    ahead_->stop();
    lender_.end_links();
    // Threads first: they write into cells.
    executor_.reset();
    splits_.join();
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
      for (auto& work : splits_.collect()) begin(std::move(work));
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
    const double elapsed = as_seconds(clock_.now() - begun_);
    nlohmann::json report;
    report["role"] = "loader";
    report["images"] = f.samples;
    report["encoded_bytes"] = f.encoded_bytes;
    report["sent_bytes"] = sent_bytes_.load();
    report["chunks"] = chunks_.load();
    report["threads"] = f.threads;
    report["elapsed_s"] = elapsed;
    report["busy_fraction"] = elapsed > 0 ? as_seconds(f.busy_ns) / (elapsed * f.threads) : 0;
    report["read_s"] = as_seconds(f.read_ns);
    report["decode_s"] = as_seconds(f.decode_ns);
    report["augment_s"] = as_seconds(f.augment_ns);
    report["read_ahead"] = ahead_report();
    if (splits_.learnt() != nullptr) {
      const LearntFigures learnt = splits_.learnt()->figures();
      report["learnt_index"] = {{"photos", learnt.photos}, {"bytes", learnt.bytes}, {"used", learnt.used}};
    }
    if (options_.executor != ExecutorKind::cpu) report["cards"] = card_report(f, elapsed);
    if (auto replaced = splits_.replaced_workers(); !replaced.is_null()) {
      report["python_workers_replaced"] = std::move(replaced);
    }
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    report["max_rss_mb"] = static_cast<double>(usage.ru_maxrss) / 1024.0;
    return json_text_replacing(report);
  }

 private:
  std::unique_ptr<Executor> make_executor() {
    if (options_.executor != ExecutorKind::cpu) {
      try {
        auto executor = make_card_executor(options_.threads, options_.cpus, open_cards(options_.cards),
                                           options_.card_lanes, options_.on_notice, options_.cpu_fraction);
        // Not those that were wished for: a node may have fewer cards, and a card less memory.
        const ExecutorFigures figures = executor->figures();
        for (const CardFigures& card : figures.cards) lanes_ += card.failure.empty() ? card.lanes : 0;
        cards_ = figures.cards.size();
        return executor;
      } catch (const Error& error) {
        if (options_.executor == ExecutorKind::card) throw;
        no_card_ = error.message();
      }
    }
    return make_cpu_executor(options_.threads, options_.cpus);
  }

  static nlohmann::json one_card(const CardFigures& card, double elapsed) {
    nlohmann::json one{{"name", card.name},
                       {"number", card.number},
                       // Lanes share it in whole bytes, so that some hundredths of a kilobyte are left over.
                       {"memory_mb", std::round(static_cast<double>(card.memory_bytes) / 1048576.0 * 1000) / 1000},
                       {"images", card.images},
                       {"images_per_s", elapsed > 0 ? static_cast<double>(card.images) / elapsed : 0},
                       {"batches", card.batches},
                       {"uploaded_bytes", card.uploaded_bytes},
                       {"busy_s", as_seconds(card.busy_ns)},
                       {"busy_fraction", elapsed > 0 ? as_seconds(card.active_ns) / elapsed : 0},
                       {"copy_s", as_seconds(card.times.upload_ns + card.times.download_ns + card.times.copy_ns)},
                       {"decode_s", as_seconds(card.times.decode_ns())},
                       {"augment_s", as_seconds(card.times.augment_ns())},
                       {"deliver_s", as_seconds(card.deliver_ns)}};
    if (!card.failure.empty()) one["failed"] = card.failure;
    if (card.library) one["nvjpeg"] = library_report(*card.library);
    if (card.shared) one["shared"] = shared_report(*card.shared);
    return one;
  }
  static nlohmann::json shared_report(const CardSharedFigures& shared) {
    if (!shared.failure.empty()) return {{"failed", shared.failure}};
    return {{"memory_mb", static_cast<double>(shared.bytes) / 1048576.0},
            {"lent_chunks", shared.pieces.lent},
            {"full", shared.pieces.refused}};
  }
  static nlohmann::json library_report(const CardLibraryFigures& library) {
    nlohmann::json report{{"images", library.images}};
    if (!library.facts.name.empty()) {
      report["library"] = library.facts.name;
      report["engines"] = library.facts.engines;
    }
    for (size_t r = 1; r < refusals; ++r) {
      if (library.refused[r] > 0) report["refused"][std::string(name_of(static_cast<Refusal>(r)))] = library.refused[r];
    }
    if (!library.failure.empty()) report["failed"] = library.failure;
    return report;
  }

  nlohmann::json card_report(const ExecutorFigures& f, double elapsed) const {
    nlohmann::json list = nlohmann::json::array();
    int64_t images = 0;
    for (const CardFigures& card : f.cards) {
      images += card.images;
      list.push_back(one_card(card, elapsed));
    }
    nlohmann::json report{{"list", std::move(list)}, {"images", images}, {"remade", f.remade}};
    if (!f.cards.empty()) {
      report["cpu_images"] = f.cpu_images();
      report["entropy_s"] = as_seconds(f.feed_ns);
      report["process"] = ::getpid();  // whose contexts they are
      if (options_.card_lanes.duty < 1) report["duty"] = options_.card_lanes.duty;
      // NVIDIA's own limit for a process (MPS), which the driver takes from here.
      if (const std::string percent = switches().mps_percent; !percent.empty()) report["mps_percent"] = percent;
    }
    for (size_t m = 1; m < library_misses; ++m) {
      if (f.library_missed[m] == 0) continue;
      report["not_by_nvjpeg"][std::string(name_of(static_cast<LibraryMiss>(m)))] = f.library_missed[m];
    }
    if (f.by_speed) {
      report["by_speed"] = {{"card_share", f.by_speed->card_share},
                            {"cpu_ms", f.by_speed->make_ns * 1e-6},
                            {"feed_ms", f.by_speed->feed_ns * 1e-6}};
    }
    if (!no_card_.empty()) report["none"] = no_card_;
    return report;
  }

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
  // Deep enough that the wanted number of reads can be under way behind the leases that threads work on, and that
  // threads have work while a result and the lease that answers it are on their way.
  void look_ahead() {
    const int32_t for_reads =
        ahead_->awake() ? (options_.read_ahead.reads + lease_samples_ - 1) / lease_samples_ : 0;
    const int32_t leases = std::max(for_reads, leases_on_the_way_.leases());
    if (leases == std::exchange(leases_ahead_, leases)) return;
    tell(LeasesAhead{leases});
  }
  void tell(const ControlMessage& message) { endpoint_->send(options_.coordinator, encode(message)); }

  void handle(Incoming& incoming) {
    std::visit(overloaded{
                   [&](MessageArrived& m) {
                     silence_.heard(m.peer, clock_.now());
                     handle_message(m.peer, decode(m.message));
                   },
                   [&](ChunkArrived& m) { endpoint_->release(m.peer, m.token); },
                   [&](CellReturned& m) { splits_.free_cell(m.cell); },
                   [&](PeerLost& m) {
                     lender_.lost(m.peer);
                     if (m.peer != options_.coordinator) return;
                     throw Error(ErrorKind::peer_lost, "lost the coordinator (rank " + std::to_string(m.peer) +
                                                           "): " + m.reason);
                   },
               },
               incoming);
  }

  void handle_message(PeerId peer, ControlMessage message) {
    std::visit(overloaded{
                   [&](PrepareSplit& m) { splits_.prepare(m); },
                   [&](SplitClosed& m) { splits_.close(m); },
                   [&](LeaseGranted& m) {
                     if (auto work = splits_.lease(std::move(m))) begin(std::move(work));
                   },
                   [&](LeaseRevoked& m) { revoke(m.lease); },
                   [&](Alive&) {},
                   [&](ShareUsed& m) { lender_.used(peer, m); },
                   [&](PieceBack& m) { lender_.back(peer, m); },
                   [&](LinkAsked& m) { lender_.asked(peer, m); },
                   [&](PiecesAsked& m) { lender_.asked(peer, m); },
                   [&](Leave&) { tell(LoaderReport{report_json()}); },
                   [&](Goodbye& m) {
                     ended_ = true;
                     good_ = m.good;
                     all_alive_ = m.all_alive;
                     exit_code_ = m.exit_code;
                   },
                   [&](auto&) {
                     throw Error(ErrorKind::peer_lost, "rank " + std::to_string(peer) + " sent a message that is not for loaders",
                                 "all ranks must run the same version of penstock");
                   },
               },
               message);
  }

  void begin(std::unique_ptr<ChunkWork> work) {
    work->share = lender_.cards_for(work->lease.port, work->lease.card_reader);
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
      splits_.free_cell(work->cell);
    }
    splits_.revoke(lease);
  }

  void finish(std::unique_ptr<ChunkWork> work) {
    ++chunks_;
    ahead_->drop(work->reads);
    if (!work->failure.empty()) {
      lender_.drop(*work);
      tell(ChunkUndone{work->lease.lease, work->failure});
      splits_.free_cell(work->cell);
      return;
    }
    const size_t bytes = pack_chunk(work->split->fields(), std::ssize(work->lease.samples), work->memory,
                                    work->records);
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
    header.piece = lender_.lend(*work);
    sent_bytes_ += static_cast<int64_t>(bytes);
    leases_on_the_way_.made(work->busy_ns);
    endpoint_->send_chunk(work->lease.port, encode_envelope(header, work->records), work->cell, bytes);
    tell(ChunkDone{work->lease.lease, work->busy_ns, work->bytes, work->pixels});
  }

  void beat() {
    if (clock_.now() - last_beat_ < options_.heartbeat_ns) return;
    last_beat_ = clock_.now();
    tell(Alive{});
    splits_.let_kept_go();
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
  LeasesOnTheWay leases_on_the_way_;
  std::shared_ptr<ReadAhead> ahead_;  // the sources read through it
  Wakeup wakeup_;
  LoaderSplits splits_;
  int lanes_ = 0;        // of all its cards
  std::string no_card_;  // why there is none, where one was wished for
  size_t cards_ = 0;     // those that do nothing included
  std::unique_ptr<Executor> executor_;
  PieceLender lender_;
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
  options.card_lanes.duty = job.loader.card_duty;
  options.card_links = job.loader.card_links == CardLinksKind::nccl;
  options.card_lanes.shared_bytes = static_cast<int64_t>(job.loader.card_share_mb * 1048576.0);
  // Elsewhere it would be loaded, and take its part of the cards' memory, for nothing.
  if (job.loader.nvjpeg != NvjpegUse::off && arithmetic_of(job.arithmetic) == Arithmetic::fast) {
    options.card_lanes.library =
        job.loader.nvjpeg == NvjpegUse::nearest ? ChromaUpsampling::nearest : ChromaUpsampling::interpolated;
  }
  options.card_lanes.entropy.by_index = job.loader.card_entropy != CardEntropyKind::never;
  options.card_lanes.entropy.by_search = job.loader.card_entropy == CardEntropyKind::automatic;
  options.python = job.python;
  options.sources.cache_bytes = static_cast<int64_t>(job.loader.cache_gb * 1073741824.0);
  options.sources.spool_bytes = static_cast<int64_t>(job.loader.spool_gb * 1073741824.0);
  options.read_ahead.reads = job.loader.read_ahead;
  options.read_ahead.memory_bytes = static_cast<int64_t>(job.loader.read_ahead_mb * 1048576.0);
  options.read_ahead.method = job.loader.read_method;
  options.index_memory_bytes = static_cast<int64_t>(job.loader.index_memory_mb * 1048576.0);
  options.read_ahead.eager = switches().read_ahead == "always";
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
