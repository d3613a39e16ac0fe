#include "runtime/loader/loader.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/base/cpu_set.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/histogram_json.h"
#include "runtime/base/host_name.h"
#include "runtime/base/json_text.h"
#include "runtime/base/switches.h"
#include "runtime/job/gpu_keys.h"
#include "runtime/loader/executor.h"
#include "runtime/loader/leases_in_transit.h"
#include "runtime/loader/loader_splits.h"
#include "runtime/loader/memory_exporter.h"
#include "runtime/protocol/messages.h"
#include "runtime/protocol/silence.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

class LoaderImpl final : public Loader {
 public:
  LoaderImpl(const LoaderOptions& options, std::unique_ptr<Endpoint> endpoint)
      : options_(options),
        clock_(options.seams.clock != nullptr ? *options.seams.clock : real_clock_),
        endpoint_(std::move(endpoint)),
        silence_(options.silence_ns),
        // The longest round trip of a result and the lease that answers it: each waits twice as long as on average.
        leases_in_transit_(4 * endpoint_->capabilities(options.coordinator).delay_ns, options.threads,
                           options.chunk_buffers),
        ahead_(
            ReadAhead::make(ahead_options(options), options.files != nullptr ? *options.files : posix_file_system())),
        splits_(options_, *endpoint_, *ahead_, wakeup_),
        executor_(make_executor()),
        exporter_(*endpoint_, *executor_, {gpus_, options.gpu_links}, options.on_notice) {}

  ~LoaderImpl() override {
    splits_.stop();
    // Threads that wait for a read have nothing to wait for any more.
    ahead_->stop();
    exporter_.end_links();
    // Threads first: they write into chunk buffers.
    executor_.reset();
    splits_.join();
    endpoint_.reset();
  }

  bool run() override {
    begin();
    while (turn()) wait();
    return good_;
  }
  void begin() override {
    begun_ = clock_.now();
    if (options_.silence_ns > 0) silence_.watch(options_.coordinator, begun_);
    join();
  }
  bool turn() override {
    if (ended_ || stop_) return false;
    Incoming incoming;
    while (endpoint_->poll(incoming)) {
      handle(incoming);
      if (ended_) return false;
    }
    while (auto work = executor_->next_done()) finish(std::move(work));
    for (auto& work : splits_.collect()) begin(std::move(work));
    if (dropping_ && in_hand_.empty() && !splits_.listing()) join_again();
    look_ahead();
    if (ended_ || stop_) return false;
    beat();
    if (silence_.tick(clock_.now())) {
      lost_coordinator_ = true;
      throw Error(ErrorKind::peer_lost, "lost trainer 0 (rank " + std::to_string(options_.coordinator) +
                                            "), which coordinates: " + silence_.reason());
    }
    return true;
  }

  void stop() noexcept override {
    stop_ = true;
    wakeup_.set();
  }
  void watch(int fd, std::function<void()> ready) override { watched_[fd] = std::move(ready); }
  void leave(const std::string& reason) override {
    if (!std::exchange(leaving_, reason).empty()) return;
    send(LoaderLeaving{leaving_});
  }
  bool all_alive() const noexcept override { return all_alive_; }
  int exit_code() const noexcept override { return exit_code_; }
  bool lost_coordinator() const noexcept override { return lost_coordinator_; }

  std::string report_json() const override {
    const ExecutorFigures f = executor_->figures();
    const double elapsed = as_seconds(clock_.now() - begun_);
    nlohmann::json report;
    report["role"] = "loader";
    report["host"] = host_name();
    report["images"] = f.samples;
    report["encoded_bytes"] = f.encoded_bytes;
    report["sent_bytes"] = sent_bytes_.load();
    report["chunks"] = chunks_.load();
    report["threads"] = f.threads;
    report["elapsed_s"] = elapsed;
    report["busy_fraction"] = elapsed > 0 ? as_seconds(f.busy_ns) / (elapsed * f.threads) : 0;
    report["cpus"] = std::max<size_t>(static_cast<size_t>(CpuSet::allowed().count()), options_.cpus.size());
    report["read_s"] = as_seconds(f.read_ns);
    report["python_s"] = as_seconds(f.python_ns);
    report["decode_s"] = as_seconds(f.decode_ns);
    report["augment_s"] = as_seconds(f.augment_ns);
    report["sample_ns"] = histogram_json(f.sample_ns);
    report["sample_bytes"] = histogram_json(f.sample_bytes);
    report["sample_ns_bytes"] = f.sample_ns_bytes;
    report["read_ahead"] = ahead_report();
    if (splits_.learned() != nullptr) {
      const LearnedFigures learned = splits_.learned()->figures();
      report["learned_index"] = {{"photos", learned.photos}, {"bytes", learned.bytes}, {"used", learned.used}};
    }
    if (const LargeMemory::Figures large = splits_.large().figures(); large.pictures > 0) {
      report["large_pictures"] = {{"count", large.pictures},
                                  {"most_mb", static_cast<double>(large.most) / 1e6},
                                  {"limit_mb", static_cast<double>(large.limit) / 1e6},
                                  {"waited_s", as_seconds(large.waited_ns)}};
    }
    if (options_.executor != ExecutorKind::cpu) report["gpus"] = gpu_report(f, elapsed);
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    report["max_rss_mb"] = static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
    return json_text_replacing(report);
  }

 private:
  std::unique_ptr<Executor> make_executor() {
    if (options_.seams.executor) return options_.seams.executor();
    if (options_.executor != ExecutorKind::cpu) {
      try {
        auto executor = make_gpu_executor(options_.threads, options_.cpus, open_gpus(options_.gpus),
                                          options_.in_flight_batches, options_.on_notice, options_.cpu_fraction);
        // What there is, not what was asked for: a node may have fewer GPUs, and a GPU less memory.
        const ExecutorFigures figures = executor->figures();
        for (const GpuFigures& gpu : figures.gpus) in_flight_ += gpu.failure.empty() ? gpu.in_flight_batches : 0;
        gpus_ = figures.gpus.size();
        return executor;
      } catch (const Error& error) {
        if (options_.executor == ExecutorKind::gpu) throw;
        no_gpu_ = error.message();
      }
    }
    return make_cpu_executor(options_.threads, options_.cpus);
  }

  static nlohmann::json one_gpu(const GpuFigures& gpu, double elapsed) {
    nlohmann::json one{{"name", gpu.name},
                       {"number", gpu.number},
                       // In-flight batches share it in whole bytes, so that some hundredths of a kilobyte are left
                       // over.
                       {"memory_mb", std::round(static_cast<double>(gpu.memory_bytes) / 1048576.0 * 1000) / 1000},
                       {"images", gpu.images},
                       {"images_per_s", elapsed > 0 ? static_cast<double>(gpu.images) / elapsed : 0},
                       {"batches", gpu.batches},
                       {"uploaded_bytes", gpu.uploaded_bytes},
                       {"busy_s", as_seconds(gpu.busy_ns)},
                       {"busy_fraction", elapsed > 0 ? as_seconds(gpu.active_ns) / elapsed : 0},
                       {"copy_s", as_seconds(gpu.times.upload_ns + gpu.times.download_ns + gpu.times.copy_ns)},
                       {"decode_s", as_seconds(gpu.times.decode_ns())},
                       {"augment_s", as_seconds(gpu.times.augment_ns())},
                       {"deliver_s", as_seconds(gpu.deliver_ns)}};
    if (!gpu.failure.empty()) one["failed"] = gpu.failure;
    if (gpu.library) one["nvjpeg"] = library_report(*gpu.library);
    if (gpu.exported) one["exported"] = export_report(*gpu.exported);
    return one;
  }
  static nlohmann::json export_report(const GpuExportFigures& exported) {
    if (!exported.failure.empty()) return {{"failed", exported.failure}};
    return {{"memory_mb", static_cast<double>(exported.bytes) / 1048576.0},
            {"exported_chunks", exported.buffer_ranges.exported},
            {"full", exported.buffer_ranges.refused}};
  }
  static nlohmann::json library_report(const GpuLibraryFigures& library) {
    nlohmann::json report{{"images", library.images}};
    if (!library.facts.name.empty()) {
      report["library"] = library.facts.name;
      report["engines"] = library.facts.engines;
    }
    for (size_t r = 1; r < kRefusals; ++r) {
      if (library.refused[r] > 0) report["refused"][std::string(name_of(static_cast<Refusal>(r)))] = library.refused[r];
    }
    if (!library.failure.empty()) report["failed"] = library.failure;
    return report;
  }

  nlohmann::json gpu_report(const ExecutorFigures& f, double elapsed) const {
    nlohmann::json list = nlohmann::json::array();
    int64_t images = 0;
    for (const GpuFigures& gpu : f.gpus) {
      images += gpu.images;
      list.push_back(one_gpu(gpu, elapsed));
    }
    nlohmann::json report{{"list", std::move(list)}, {"images", images}, {"remade", f.remade}};
    if (!f.gpus.empty()) {
      report["cpu_images"] = f.cpu_images();
      report["entropy_s"] = as_seconds(f.feed_ns);
      report["process"] = ::getpid();  // whose contexts they are
      if (options_.in_flight_batches.duty < 1) report["duty"] = options_.in_flight_batches.duty;
      // NVIDIA's own limit for a process (MPS), which the driver takes from here.
      if (const std::string percent = switches().mps_percent; !percent.empty()) report["mps_percent"] = percent;
    }
    for (size_t m = 1; m < kLibraryMisses; ++m) {
      if (f.library_missed[m] == 0) continue;
      report["not_by_nvjpeg"][std::string(name_of(static_cast<LibraryMiss>(m)))] = f.library_missed[m];
    }
    if (f.by_speed) {
      report["by_speed"] = {{"gpu_share", f.by_speed->gpu_share},
                            {"cpu_ms", f.by_speed->make_ns * 1e-6},
                            {"feed_ms", f.by_speed->feed_ns * 1e-6}};
    }
    if (!no_gpu_.empty()) report["none"] = no_gpu_;
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
    const int32_t for_reads = ahead_->awake() ? (options_.read_ahead.reads + lease_samples_ - 1) / lease_samples_ : 0;
    const int32_t leases = std::max(for_reads, leases_in_transit_.leases());
    if (leases == std::exchange(leases_ahead_, leases)) return;
    send(LeasesAhead{leases});
  }
  void send(const ControlMessage& message) { endpoint_->send(options_.coordinator, encode(message)); }

  void join() {
    // A chunk that a GPU has keeps no thread busy.
    send(LoaderHello{options_.chunk_buffers, lease_depth(options_.threads) + in_flight_, options_.threads, incarnation_,
                     in_flight_ > 0});
  }
  void given_up(const GivenUp& m) {
    if (m.incarnation <= incarnation_) return;
    incarnation_ = m.incarnation;
    dropping_ = true;
    const std::set<LeaseKey> leases = in_hand_;
    for (const LeaseKey& lease : leases) withdraw(lease);
    splits_.drop_all();
    exporter_.given_up();
  }
  void join_again() {
    dropping_ = false;
    leases_ahead_ = 0;
    join();
    if (!leaving_.empty()) send(LoaderLeaving{leaving_});
  }

  void handle(Incoming& incoming) {
    std::visit(overloaded{
                   [&](MessageArrived& m) {
                     silence_.received(m.peer, clock_.now());
                     handle_message(m.peer, decode(m.message));
                   },
                   [&](ChunkArrived& m) { endpoint_->release(m.peer, m.token); },
                   [&](ChunkBufferReturned& m) { splits_.free_chunk_buffer(m.chunk_buffer); },
                   [&](PeerLost& m) {
                     exporter_.lost(m.peer);
                     if (m.dead) endpoint_->abandon(m.peer);
                     if (m.dead && m.peer != options_.coordinator) send(RankDied{m.peer, m.reason});
                     if (m.peer != options_.coordinator) return;
                     lost_coordinator_ = true;
                     throw Error(ErrorKind::peer_lost,
                                 "lost the coordinator (rank " + std::to_string(m.peer) + "): " + m.reason);
                   },
                   [&](PeerDamaged& m) { throw Error(ErrorKind::peer_lost, m.reason); },
               },
               incoming);
  }

  void handle_message(PeerId peer, ControlMessage message) {
    std::visit(overloaded{
                   [&](PrepareSplit& m) { splits_.prepare(m); },
                   [&](SizesAsked& m) { splits_.tell_sizes(m); },
                   [&](SplitClosed& m) { splits_.close(m); },
                   [&](LeaseGranted& m) {
                     auto work = splits_.lease(std::move(m));
                     if (!work) return;
                     work->leased_ns = clock_.now();
                     begin(std::move(work));
                   },
                   [&](LeaseRevoked& m) { revoke(m.lease); },
                   [&](GivenUp& m) { given_up(m); },
                   [&](Alive&) {},
                   [&](ExportUsed& m) { exporter_.used(peer, m); },
                   [&](BufferRangeReturned& m) { exporter_.back(peer, m); },
                   [&](LinkAsked& m) { exporter_.asked(peer, m); },
                   [&](BufferRangesAsked& m) { exporter_.asked(peer, m); },
                   [&](Leave&) { send(LoaderReport{report_json()}); },
                   [&](Goodbye& m) {
                     ended_ = true;
                     good_ = m.good;
                     all_alive_ = m.all_alive;
                     exit_code_ = m.exit_code;
                   },
                   [&](auto&) {
                     throw Error(ErrorKind::peer_lost,
                                 "rank " + std::to_string(peer) + " sent a message that is not for loaders",
                                 "all ranks must run the same version of penstock");
                   },
               },
               message);
  }

  void begin(std::unique_ptr<ChunkWork> work) {
    work->exported_gpus = exporter_.gpus_for(work->lease.receiver, work->lease.gpu_reader);
    lease_samples_ = std::max(lease_samples_, static_cast<int32_t>(work->lease.samples.size()));
    if (ahead_->awake()) {
      std::vector<int64_t> indices;
      for (const PlannedSample& sample : work->lease.samples) indices.push_back(sample.index);
      work->reads = ahead_->plan(work->split->source(), indices);
    }
    in_hand_.insert(work->lease.lease);
    executor_->submit(std::move(work));
  }

  void withdraw(const LeaseKey& lease) {
    auto work = executor_->withdraw(lease);
    if (!work) return;
    in_hand_.erase(lease);
    ahead_->drop(work->reads);
    splits_.free_chunk_buffer(work->chunk_buffer);
  }
  void revoke(const LeaseKey& lease) {
    withdraw(lease);
    splits_.revoke(lease);
  }

  // Now and then: a failing disk fails many chunks, and a job that tries again must not be silent about it.
  void say_failure(const std::string& failure) {
    constexpr Nanoseconds interval = 10 * kSecond;
    const Nanoseconds now = clock_.now();
    if (!options_.on_notice || (failure_said_ns_ && now - *failure_said_ns_ < interval)) return;
    failure_said_ns_ = now;
    options_.on_notice("a chunk could not be made, and is tried again (balancer.retry_s): " + failure);
  }

  void finish(std::unique_ptr<ChunkWork> work) {
    ++chunks_;
    ahead_->drop(work->reads);
    in_hand_.erase(work->lease.lease);
    if (dropping_) {
      exporter_.drop(*work);
      splits_.free_chunk_buffer(work->chunk_buffer);
      return;
    }
    if (!work->failure.empty()) {
      exporter_.drop(*work);
      if (!ended(*work->split)) say_failure(work->failure);  // else it was closed
      send(ChunkUndone{work->lease.lease, work->failure});
      splits_.free_chunk_buffer(work->chunk_buffer);
      return;
    }
    const size_t bytes =
        pack_chunk(work->split->fields(), std::ssize(work->lease.samples), work->memory, work->records);
    ChunkHeader header;
    header.lease = work->lease.lease;
    header.fingerprint = work->lease.fingerprint;
    header.compared = work->lease.compared;
    header.arithmetic = static_cast<uint8_t>(arithmetic_of(work->split->split().arithmetic));
    header.epoch = work->lease.epoch;
    header.replica = work->lease.replica;
    header.first_row = work->lease.first_row;
    header.samples = static_cast<int32_t>(work->lease.samples.size());
    header.payload_bytes = bytes;
    if (options_.payload_crc) header.payload_crc = crc32c(work->memory, bytes);
    header.buffer_range = exporter_.export_range(*work);
    sent_bytes_ += static_cast<int64_t>(bytes);
    leases_in_transit_.made(work->busy_ns);
    // ChunkDone goes before the chunk: where coordinator and receiver are one process, the coordinator would otherwise
    // see the arrival first, and learn neither how long leases take nor how long chunks travel.
    const Nanoseconds held_ns = work->leased_ns < 0 ? -1 : clock_.now() - work->leased_ns;
    send(ChunkDone{work->lease.lease, work->busy_ns, work->bytes, work->pixels, held_ns});
    endpoint_->send_chunk(work->lease.receiver, encode_envelope(header, work->records), work->chunk_buffer, bytes);
  }

  void beat() {
    if (clock_.now() - last_beat_ < options_.heartbeat_ns) return;
    last_beat_ = clock_.now();
    send(Alive{});
    splits_.let_kept_go();
  }

  void wait() {
    std::vector<pollfd> fds;
    endpoint_->collect_fds(fds);
    fds.push_back({executor_->done_fd(), POLLIN, 0});
    fds.push_back({wakeup_.fd(), POLLIN, 0});
    const size_t first_watched = fds.size();
    for (const auto& [fd, ready] : watched_) fds.push_back({fd, POLLIN, 0});
    const Nanoseconds left = options_.heartbeat_ns - (clock_.now() - last_beat_);
    (void)::poll(fds.data(), fds.size(), static_cast<int>(std::max<Nanoseconds>(left / kMillisecond, 0)) + 1);
    wakeup_.clear();
    for (size_t i = first_watched; i < fds.size(); ++i) {
      if (fds[i].revents != 0) watched_.at(fds[i].fd)();
    }
  }

  LoaderOptions options_;
  const MonotonicClock real_clock_;
  const Clock& clock_;
  std::optional<Nanoseconds> failure_said_ns_;
  std::unique_ptr<Endpoint> endpoint_;
  SilenceWatch silence_;
  LeasesInTransit leases_in_transit_;
  std::shared_ptr<ReadAhead> ahead_;  // the sources read through it
  Wakeup wakeup_;
  LoaderSplits splits_;
  int in_flight_ = 0;   // of all its GPUs
  std::string no_gpu_;  // why there is none, where one was asked for
  size_t gpus_ = 0;     // those that do nothing included
  std::unique_ptr<Executor> executor_;
  MemoryExporter exporter_;
  std::atomic<bool> stop_{false};
  std::map<int, std::function<void()>> watched_;
  bool ended_ = false;
  bool good_ = false;
  bool all_alive_ = false;
  int exit_code_ = 0;
  std::set<LeaseKey> in_hand_;  // that the executor has
  int32_t incarnation_ = 0;
  bool dropping_ = false;  // given up, and not joined again yet
  std::string leaving_;    // why; empty: it is not
  bool lost_coordinator_ = false;
  // What report_json() reads in other threads; nothing else is published by them.
  std::atomic<Nanoseconds> begun_ = clock_.now();
  Nanoseconds last_beat_ = 0;
  int32_t lease_samples_ = 1;  // of the largest lease so far
  int32_t leases_ahead_ = 0;   // that the coordinator knows of
  std::atomic<int64_t> sent_bytes_ = 0;
  std::atomic<int64_t> chunks_ = 0;
};

}  // namespace

LoaderOptions loader_options(const Job& job) {
  LoaderOptions options;
  options.threads = job.loader.threads;
  options.chunk_buffers =
      job.loader.chunk_buffers > 0 ? job.loader.chunk_buffers : usual_chunk_buffers(job.loader.threads);
  options.payload_crc = job.loader.payload_crc;
  options.memory_bytes = static_cast<int64_t>(job.loader.memory_gb * 1073741824.0);
  options.executor = executor_of(job);
  options.cpu_fraction = job.loader.cpu_fraction;
  options.gpus.count = job.loader.gpus;
  options.in_flight_batches.memory_bytes = static_cast<int64_t>(job.loader.gpu_memory_mb * 1048576.0);
  options.in_flight_batches.duty = job.loader.gpu_duty;
  options.gpu_links = job.loader.gpu_links == GpuLinksKind::nccl;
  options.in_flight_batches.exported_bytes = static_cast<int64_t>(job.loader.gpu_export_mb * 1048576.0);
  // Elsewhere it would be loaded, and take its part of the GPUs' memory, for nothing.
  if (job.loader.nvjpeg != NvjpegUse::off && arithmetic_of(job.arithmetic) == Arithmetic::fast) {
    options.in_flight_batches.library =
        job.loader.nvjpeg == NvjpegUse::nearest ? ChromaUpsampling::nearest : ChromaUpsampling::interpolated;
  }
  options.in_flight_batches.entropy.by_index = job.loader.gpu_entropy != GpuEntropyKind::never;
  options.in_flight_batches.entropy.by_search = job.loader.gpu_entropy == GpuEntropyKind::automatic;
  options.python = job.python;
  options.sources.cache_bytes = static_cast<int64_t>(job.loader.cache_gb * 1073741824.0);
  options.sources.spool_bytes = static_cast<int64_t>(job.loader.spool_gb * 1073741824.0);
  options.read_ahead.reads = job.loader.read_ahead;
  options.read_ahead.memory_bytes = static_cast<int64_t>(job.loader.read_ahead_mb * 1048576.0);
  options.read_ahead.method = job.loader.read_method;
  options.index_memory_bytes = static_cast<int64_t>(job.loader.index_memory_mb * 1048576.0);
  options.read_ahead.eager = switches().read_ahead == "always";
  options.heartbeat_ns = static_cast<Nanoseconds>(job.balancer.heartbeat_s * 1e9);
  options.retry_ns = static_cast<Nanoseconds>(job.balancer.retry_s * 1e9);
  return options;
}

Nanoseconds coordinator_silence_ns(const BalancerSpec& balancer) {
  const double after_loss_s = std::max(balancer.lost_after_s, balancer.all_lost_wait_s());
  return static_cast<Nanoseconds>((balancer.lost_after_s + after_loss_s) * 1e9);
}

std::unique_ptr<Loader> make_loader(const LoaderOptions& options, std::unique_ptr<Endpoint> endpoint) {
  return std::make_unique<LoaderImpl>(options, std::move(endpoint));
}

}  // namespace penstock
