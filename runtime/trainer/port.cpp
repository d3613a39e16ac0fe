#include "runtime/trainer/port.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/augment/finish.h"
#include "runtime/augment/pipeline.h"
#include "runtime/base/error.h"
#include "runtime/loader/split_context.h"
#include "runtime/observe/batch_dump.h"
#include "runtime/protocol/silence.h"
#include "runtime/trainer/chunk_intake.h"
#include "runtime/trainer/client_connections.h"
#include "runtime/trainer/client_protocol.h"
#include "runtime/trainer/delivery_book.h"
#include "runtime/trainer/epoch_plan.h"
#include "runtime/trainer/job_end.h"
#include "runtime/trainer/slot_pool.h"
#include "sampler/plan.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

constexpr Nanoseconds kTick = 100 * kMillisecond;
constexpr Nanoseconds kEndTimeout = 10 * kSecond;

double seconds(Nanoseconds ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

class Port::Impl {
 public:
  Impl(const PortOptions& options, std::unique_ptr<Endpoint> endpoint)
      : options_(options), endpoint_(std::move(endpoint)), silence_(options.silence_ns) {
    if (options_.self == options_.coordinator) {
      coordinator_ = std::make_unique<Coordinator>(
          options_.coordination, clock_, [this](PeerId peer, const ControlMessage& m) { send(peer, m); });
      if (options_.whole_job) {
        job_end_ = std::make_unique<JobEnd>(options_.coordination.ports, options_.coordination.loaders, options_.self,
                                            [this](PeerId peer, const ControlMessage& m) { send(peer, m); });
      }
    }
  }

  void listen(const std::string& name, const std::string& token) {
    clients_.listen(name, token,
                    {options_.replica, options_.num_replicas, options_.local_replicas, options_.host,
                     options_.overrides_json});
  }
  void adopt(UniqueFd client_socket) {
    clients_.adopt(std::move(client_socket));
    wakeup_.set();
  }
  void disconnect_clients() { clients_.disconnect(); }
  void stop() noexcept {
    stop_ = true;
    wakeup_.set();
  }

  void run() {
    begun_ = clock_.now();
    expect_heartbeats();
    try {
      while (!stop_ && !ended_) {
        bool moved = poll_endpoint();
        moved = poll_clients() || moved;
        moved = run_local() || moved;
        if (serving_ends_) leave_serving();
        tick();
        if (!moved && !stop_ && !ended_) wait();
      }
    } catch (const Error& error) {
      // In a program's own process clients ask the owner why; it hangs up when it can tell (disconnect_clients).
      if (!options_.whole_job) throw;
      if (coordinator_lost_) {
        clients_.hang_up();
        throw;
      }
      // Before hanging up: what the program says of that would come before the cause.
      try {
        fail_job(error);
      } catch (...) {
        clients_.hang_up();
        throw;
      }
    } catch (...) {
      if (options_.whole_job) clients_.hang_up();
      throw;
    }
    endpoint_->flush(2 * kSecond);
    clients_.hang_up();  // nobody answers any more: a client must see that at once, not wait for its timeout
  }

  std::map<int, std::function<void()>> watched_;
  std::function<void(const PortFigures&)> progress_;
  Nanoseconds progress_every_ = 0;
  std::function<void(const Goodbye&)> on_goodbye_;
  std::function<void(const std::string&)> on_notice_;
  Goodbye goodbye_;

  void finish_program(bool good, const std::string& problem, int exit_code) {
    if (program_finished_) return;
    program_finished_ = true;
    send(options_.coordinator, PortDone{good, problem, exit_code, report_json()});
  }

  void end_serving(const std::string& reason) { send(options_.coordinator, EndServing{reason}); }

  std::vector<std::string> reports() const { return job_end_ ? job_end_->reports() : std::vector<std::string>{}; }

  std::string report_json() const {
    nlohmann::json report;
    report["role"] = "trainer";
    report["trainer"] = options_.trainer;
    report["replica"] = options_.replica;
    report["counted"] = options_.counted;
    report["rank"] = options_.self;
    report["elapsed_s"] = seconds(clock_.now() - begun_);
    report["port_busy_s"] = seconds(busy_ns_);
    report["received_bytes"] = received_bytes_;
    report["dropped_chunks"] = dropped_chunks_;
    report["chunks_by_transport"] = chunks_by_transport_;
    // Passes that are still open too: a program may end, or ask, in the middle of one.
    std::vector<std::pair<std::string, DeliveredRange>> open;
    for (const auto& [id, stream] : streams_) open.emplace_back(split_name(stream), range_of(stream));
    report["splits"] = book_.to_json(open);
    if (coordinator_) {
      const Coordinator::Figures figures = coordinator_->figures();
      report["leases"] = {{"granted", figures.granted}, {"regranted", figures.regranted}};
      report["lost_loaders"] = figures.lost;
    }
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    report["max_rss_mb"] = static_cast<double>(usage.ru_maxrss) / 1024.0;
    // Names of files may be no UTF-8.
    return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  struct Stream {
    StreamId id = 0;
    int connection = 0;
    int32_t split_id = 0;
    int32_t pool = 0;
    int64_t epoch = 0;
    PlanShape plan;             // of this pass: the split's, or that of the order which the program gave
    int64_t first_step = 0;
    int64_t cursor = 0;        // step that the client takes next
    int64_t next_reserve = 0;
    int32_t chunk_samples = 0;  // 0 until the coordinator answered
    bool waiting = false;       // the client asked for step `cursor`
    bool warned = false;
    Nanoseconds asked_at = 0;
    Nanoseconds first_asked = 0;
    Nanoseconds last_answered = 0;
    std::map<int64_t, int32_t> slots;  // step -> slot, filling or ready
    std::optional<ClientFailed> failed;
    int64_t substituted = 0;
    StreamHash hash;
  };

  // ---- messages ------------------------------------------------------------------------------------------------
  void send(PeerId peer, const ControlMessage& message) {
    if (peer == options_.self) {
      local_.push_back(message);
    } else {
      endpoint_->send(peer, encode(message));
    }
  }

  bool run_local() {
    bool moved = false;
    while (!local_.empty()) {
      const ControlMessage message = std::move(local_.front());
      local_.pop_front();
      handle(options_.self, message);
      moved = true;
    }
    return moved;
  }

  bool poll_endpoint() {
    bool moved = false;
    Incoming incoming;
    // A bounded number at a time, so that a flood of chunks cannot keep a client waiting.
    for (int i = 0; i < 64 && !ended_ && endpoint_->poll(incoming); ++i) {
      moved = true;
      std::visit(overloaded{
                     [&](MessageArrived& m) {
                       silence_.heard(m.peer, clock_.now());
                       handle(m.peer, decode(m.message));
                     },
                     [&](ChunkArrived& m) { chunk_arrived(m); },
                     [&](CellReturned&) {},
                     [&](PeerLost& m) { peer_lost(m); },
                 },
                 incoming);
      run_local();
    }
    return moved;
  }

  void handle(PeerId peer, const ControlMessage& message) {
    std::visit(overloaded{
                   [&](const SplitOpened& m) { split_opened(m); },
                   [&](const SplitRefused& m) { split_refused(m); },
                   [&](const StreamReady& m) { stream_ready(m); },
                   [&](const StreamFailed& m) { stream_failed(m); },
                   [&](const PortDone& m) { port_done(peer, m); },
                   [&](const LoaderReport& m) { loader_report(peer, m); },
                   [&](const Goodbye& m) { end(m); },
                   [&](const Alive&) {
                     if (coordinator_ && !is_port(peer)) coordinator_->handle(peer, message);
                   },
                   [&](const EndServing& m) { serving_ends(m); },
                   [&](const auto&) {
                     if (!coordinator_) {
                       throw Error(ErrorKind::peer_lost,
                                   "rank " + std::to_string(peer) + " sent a message that is not for this port",
                                   "all ranks must run the same version of penstock");
                     }
                     coordinator_->handle(peer, message);
                   },
               },
               message);
  }

  void peer_lost(const PeerLost& m) {
    if (job_end_) job_end_->peer_lost(m.peer);
    if (check_end()) return;
    if (m.peer == options_.coordinator) {
      coordinator_lost_ = true;
      throw Error(ErrorKind::peer_lost, "lost trainer 0 (" + name_of(m.peer) + "), which coordinates: " + m.reason);
    }
    if (!coordinator_ || (job_end_ && job_end_->leaving())) return;
    if (!is_port(m.peer)) {
      coordinator_->peer_lost(m.peer, m.reason);
    } else if (job_end_) {
      job_end_->fail("lost a trainer (" + name_of(m.peer) + "): " + m.reason,
                     static_cast<int32_t>(ErrorKind::peer_lost));
      check_end();
    }
  }

  bool is_port(PeerId peer) const {
    const auto& ports = options_.coordination.ports;
    return std::count(ports.begin(), ports.end(), peer) != 0;
  }
  std::string name_of(PeerId peer) const {
    const std::string name = "rank " + std::to_string(peer);
    return static_cast<size_t>(peer) < options_.hosts.size() ? name + ", host " + options_.hosts[static_cast<size_t>(peer)]
                                                             : name;
  }

  // ---- heartbeats ----------------------------------------------------------------------------------------------
  // Loaders have theirs in the balancer. A trainer's rank that is gone without a word would be waited for by the other
  // trainers' programs for ever, and one that lost the coordinator would wait for batches.
  void expect_heartbeats() {
    if (options_.silence_ns <= 0) return;
    if (!coordinator_) {
      // Twice the patience: while the coordinator draws the permutation of a large dataset, it says nothing.
      silence_ = SilenceWatch(2 * options_.silence_ns);
      silence_.watch(options_.coordinator, begun_);
      return;
    }
    for (const PeerId port : options_.coordination.ports) {
      if (port != options_.self) silence_.watch(port, begun_);
    }
  }
  void beat(Nanoseconds now) {
    if (options_.heartbeat_ns > 0 && now - last_beat_ >= options_.heartbeat_ns) {
      last_beat_ = now;
      if (!coordinator_) {
        endpoint_->send(options_.coordinator, encode(Alive{}));
      } else {
        for (const auto* peers : {&options_.coordination.ports, &options_.coordination.loaders}) {
          for (const PeerId peer : *peers) {
            if (peer != options_.self) endpoint_->send(peer, encode(Alive{}));
          }
        }
      }
    }
    if (const auto silent = silence_.tick(now)) {
      peer_lost({*silent, silence_.reason()});
    }
  }

  // ---- the job's end (job_end.h) -------------------------------------------------------------------------------
  void port_done(PeerId peer, const PortDone& m) {
    if (!job_end_) return;
    job_end_->program_done(peer, m, coordinator_->living_loaders(), clock_.now());
    check_end();
  }
  void loader_report(PeerId peer, const LoaderReport& m) {
    if (!job_end_) return;
    job_end_->loader_report(peer, m);
    check_end();
  }
  bool check_end() {
    if (!ended_ && job_end_ && job_end_->goodbye()) end(*job_end_->goodbye());
    return ended_;
  }
  void serving_ends(const EndServing& m) {
    if (serving_ends_) return;
    serving_ends_ = true;
    if (coordinator_) {
      for (const PeerId port : options_.coordination.ports) {
        if (port != options_.self) send(port, m);
      }
      if (on_notice_) on_notice_("serving ends: " + m.reason);
    }
  }
  // Passes that are open end here, and stand in the report so. Who asked for the end is kept: the answer is the hang-up
  // at the end.
  void leave_serving() {
    if (program_finished_) return;
    clients_.dismiss(asked_to_end_);
    poll_clients();
    run_local();
    finish_program(true, "", 0);
  }
  // This port cannot go on. Everybody hears why before its sockets close, so that the job ends by this message and not
  // by what each of the others makes of the silence.
  void fail_job(const Error& error) {
    const std::string problem = "trainer " + std::to_string(options_.trainer) + ": " + error.what();
    if (job_end_) {
      job_end_->fail(problem, error.exit_code());
      check_end();
      return;
    }
    endpoint_->send(options_.coordinator, encode(PortDone{false, problem, error.exit_code(), report_json()}));
    const Nanoseconds deadline = clock_.now() + kEndTimeout;
    while (!ended_ && !stop_ && clock_.now() < deadline) {
      Incoming incoming;
      if (!endpoint_->poll(incoming)) {
        wait();
        continue;
      }
      if (const auto* chunk = std::get_if<ChunkArrived>(&incoming)) endpoint_->release(chunk->peer, chunk->token);
      const auto* lost = std::get_if<PeerLost>(&incoming);
      if (lost != nullptr && lost->peer == options_.coordinator) break;
      if (const auto* message = std::get_if<MessageArrived>(&incoming)) {
        const ControlMessage answer = decode(message->message);
        if (const auto* goodbye = std::get_if<Goodbye>(&answer)) end(*goodbye);
      }
    }
    if (!ended_ && !stop_) throw error;
  }
  void end(const Goodbye& goodbye) {
    goodbye_ = goodbye;
    ended_ = true;
    if (on_goodbye_) on_goodbye_(goodbye);
  }

  // ---- clients -------------------------------------------------------------------------------------------------
  bool poll_clients() {
    return clients_.poll({.message =
                              [this](int id, const ClientMessage& message) {
                                handle_client(id, message);
                                run_local();
                              },
                          .dropped = [this](int id) { drop_connection(id); },
                          .program =
                              [this](int64_t number, int pid, bool came, int32_t living) {
                                program_changed(number, pid, came, living);
                              }});
  }

  void tell(int connection, const ClientMessage& message, int fd = -1) { clients_.tell(connection, message, fd); }

  void program_changed(int64_t number, int pid, bool came, int32_t living) {
    if (!options_.serving) return;
    if (!came) std::erase_if(openings_, [&](const auto& item) { return item.first.first == number; });
    send(options_.coordinator, ProgramsAt{living});
    if (!came && attached_.erase(number) != 0) note_program(pid, "is gone");
  }
  void note_program(int pid, const std::string& what) {
    if (!on_notice_ || serving_ends_) return;
    on_notice_((pid > 0 ? "process " + std::to_string(pid) : "a program") + " " + what);
  }

  void drop_connection(int id) {
    std::vector<StreamId> ids;
    for (const auto& [stream_id, stream] : streams_) {
      if (stream.connection == id) ids.push_back(stream_id);
    }
    for (const StreamId stream : ids) close_stream(stream);
    for (auto it = splits_.begin(); it != splits_.end();) {
      if (it->second.connection != id) {
        ++it;
        continue;
      }
      // The program's mappings of the pools stay valid without us: memory lives as long as anybody maps it.
      std::erase_if(pools_, [&](const auto& item) { return item.second.split_id == it->first; });
      send(options_.coordinator, SplitClosed{it->second.fingerprint, false, it->first});
      it = splits_.erase(it);
    }
  }

  void handle_client(int id, const ClientMessage& message) {
    std::visit(overloaded{
                   [&](const ClientHello&) {},
                   [&](const ClientOpen& m) { open_split(id, m); },
                   [&](const ClientIterate& m) { iterate(id, m); },
                   [&](const ClientNext& m) { next(id, m); },
                   [&](const ClientRelease& m) { release(m); },
                   [&](const ClientStop& m) { close_stream(m.stream); },
                   [&](const ClientStats&) { tell(id, ClientStatsJson{report_json()}); },
                   [&](const ClientEndServing&) {
                     if (!options_.serving) throw Error(ErrorKind::usage, "this job ends with its programs");
                     asked_to_end_.insert(id);
                     end_serving("process " + std::to_string(clients_.pid(id)) + " asked for it");
                   },
                   [&](const auto&) {
                     throw Error(ErrorKind::usage, "a client sent a message that is not for ports",
                                 "link the program against the same version of penstock");
                   },
               },
               message);
  }

  void open_split(int connection, const ClientOpen& m) {
    PortSplit split;
    split.id = next_split_++;
    split.connection = connection;
    split.fingerprint = fingerprint_of(m.json);
    try {
      split.resolved = split_from_json(m.json);
      split.pipeline.emplace(make_pipeline(split.resolved));
      split.raw_fields = raw_fields(*split.pipeline);
      split.finish = split.pipeline->finish();
      if (m.dtype >= 0) split.finish.dtype = static_cast<DType>(m.dtype);
      const bool last = m.channels_last >= 0 ? m.channels_last != 0 : split.resolved.split.channels_last;
      split.finish.memory_format = last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
      if (split.pipeline->mixing_needs_float() && split.finish.dtype == DType::uint8) {
        throw Error(ErrorKind::config, "MixUp in split '" + split.resolved.name + "' needs images of a float dtype",
                    "ask for another dtype than uint8");
      }
      split.finisher.emplace(finisher_of(*split.pipeline, split.finish));
    } catch (const Error& error) {
      tell(connection, ClientRefused{error.exit_code(), error.message(), error.remedy()});
      return;
    }
    const std::string& name = split.resolved.name;
    for (const auto& [id, other] : splits_) {
      if (other.resolved.name != name || clients_.program(other.connection) == clients_.program(connection) ||
          !clients_.living(other.connection)) {
        continue;
      }
      tell(connection,
           ClientRefused{static_cast<int32_t>(ErrorKind::usage),
                         "the port of trainer " + std::to_string(options_.trainer) +
                             (options_.host.empty() ? "" : " on host " + options_.host) + " feeds split '" + name +
                             "' to process " + std::to_string(clients_.pid(other.connection)) + ", and process " +
                             std::to_string(clients_.pid(connection)) + " opens it too",
                         "end that process first; two trainers need a LOCAL_RANK each (torchrun sets it)"});
      return;
    }
    split.fields = delivered_fields(split.raw_fields, *split.pipeline, split.finish);
    split.program = options_.serving ? clients_.program(connection) : 0;
    if (options_.serving && attached_.insert(split.program).second) note_program(clients_.pid(connection), "attached");
    split.opening = openings_[{split.program, name}]++;
    send(options_.coordinator,
         OpenSplit{m.json, options_.replica, options_.num_replicas, split.program, split.opening, split.id});
    splits_.emplace(split.id, std::move(split));
  }

  void split_opened(const SplitOpened& m) {
    for (auto& [id, split] : splits_) {
      if (split.opened || id != m.split) continue;
      split.opened = true;
      split.fingerprint = m.fingerprint;
      split.raw_fields.insert(split.raw_fields.end(), m.extra_fields.begin(), m.extra_fields.end());
      split.fields = delivered_fields(split.raw_fields, *split.pipeline, split.finish);
      split.shape = plan_spec(split.resolved, m.dataset_size, options_.num_replicas);
      split.plan = plan_shape(split.shape);
      ClientOpened answer;
      answer.split_id = id;
      answer.dataset_size = m.dataset_size;
      answer.steps = split.plan.steps;
      answer.samples_per_replica = split.plan.samples_per_replica;
      answer.num_samples = valid_samples(split.shape, options_.replica);
      answer.batch_size = split.shape.batch_size;
      answer.replica = options_.replica;
      answer.num_replicas = options_.num_replicas;
      answer.dataset_fingerprint = m.dataset_fingerprint;
      answer.classes = m.classes;
      answer.labelled = m.labelled;
      answer.fields = split.fields;
      answer.channels_last = split.finish.memory_format == MemoryFormat::channels_last;
      tell(split.connection, answer);
    }
  }

  void split_refused(const SplitRefused& m) {
    for (auto it = splits_.begin(); it != splits_.end();) {
      if (it->second.opened || it->first != m.split) {
        ++it;
        continue;
      }
      tell(it->second.connection, ClientRefused{m.error_kind, m.error, m.remedy});
      it = splits_.erase(it);
    }
  }

  SlotPool& pool_for(PortSplit& split) {
    for (auto& [id, pool] : pools_) {
      if (pool.split_id == split.id && pool.stream == 0) return pool;
    }
    SlotPool pool;
    pool.id = next_pool_++;
    pool.split_id = split.id;
    pool.layout = slot_layout(split.fields, split.shape.batch_size);
    // One in use, `prefetch` ahead (two at least), and what the program may keep besides.
    pool.slots.resize(static_cast<size_t>(std::max(2, options_.prefetch) + 1 + options_.hold));
    pool.memory = SharedMemory::create("penstock-slots", pool.layout.total_bytes * pool.slots.size());
    return pools_.emplace(pool.id, std::move(pool)).first->second;
  }

  // Of one pass; and is it right that it has, or has not, an order of its own?
  static PlanShape plan_of(const PortSplit& split, const ClientIterate& m) {
    const std::string who = "split '" + split.resolved.name + "'";
    if (!split.resolved.split.sampler.program) {
      if (m.order.empty()) return split.plan;
      throw Error(ErrorKind::usage, who + " has a sampler of its own, and the pass brought an order");
    }
    if (m.order.empty()) {
      throw Error(ErrorKind::usage, "no order was given for a pass over " + who + ", whose order is the program's",
                  "make it with penstock.DataLoader(..., sampler=...), with a sampler that gives at least one index");
    }
    return plan_shape(program_spec(split.resolved, std::ssize(m.order)));
  }

  void iterate(int connection, const ClientIterate& m) {
    const auto it = splits_.find(m.split_id);
    if (it == splits_.end() || !it->second.opened) throw Error(ErrorKind::usage, "the split was not opened");
    PortSplit& split = it->second;
    const PlanShape plan = plan_of(split, m);
    if (m.epoch > 0xFFFFFFFF) {
      throw Error(ErrorKind::usage, "epoch " + std::to_string(m.epoch) + " is beyond 2^32 - 1, the last that draws know");
    }
    if (m.first_step < 0 || m.first_step > plan.steps || m.epoch < 0) {
      throw Error(ErrorKind::usage, "no step " + std::to_string(m.first_step) + " in an epoch of " +
                                        std::to_string(plan.steps) + " steps");
    }
    SlotPool& pool = pool_for(split);
    Stream stream;
    // Unique in the job: the port's number above a counter.
    stream.id = (uint64_t{static_cast<uint32_t>(options_.self)} + 1) << 32 | next_stream_++;
    stream.connection = connection;
    stream.split_id = split.id;
    stream.pool = pool.id;
    stream.epoch = m.epoch;
    stream.plan = plan;
    stream.first_step = stream.cursor = stream.next_reserve = m.first_step;
    pool.stream = stream.id;
    const bool with_memory = !pool.shown;
    pool.shown = true;
    tell(connection,
         ClientStream{stream.id, pool.id, static_cast<int32_t>(pool.slots.size()), pool.layout.total_bytes,
                      with_memory},
         with_memory ? pool.memory.fd() : -1);
    const StreamId id = stream.id;
    streams_[id] = std::move(stream);
    send(options_.coordinator, OpenStream{id, split.fingerprint, options_.replica, m.epoch, m.first_step, m.order,
                                          split.program, split.opening});
  }

  void stream_ready(const StreamReady& m) {
    const auto it = streams_.find(m.stream);
    if (it == streams_.end()) return;
    it->second.chunk_samples = m.chunk_samples;
    reserve(it->second);
  }

  void stream_failed(const StreamFailed& m) {
    const auto it = streams_.find(m.stream);
    if (it == streams_.end()) return;
    it->second.failed = ClientFailed{m.error_kind, m.error, m.remedy, m.stream};
    serve(it->second);
  }

  // Takes slots for the next steps, as far ahead as prefetch allows.
  void reserve(Stream& stream) {
    if (stream.chunk_samples == 0 || stream.failed) return;
    const PortSplit& split = splits_.at(stream.split_id);
    SlotPool& pool = pools_.at(stream.pool);
    // The step being waited for comes on top of `prefetch` ones.
    const int64_t ahead = stream.cursor + std::max(1, options_.prefetch) + (stream.waiting ? 1 : 0);
    while (stream.next_reserve < stream.plan.steps && stream.next_reserve < ahead) {
      const int32_t index = pool.find_free();
      if (index < 0) break;
      Slot& slot = pool.slots[static_cast<size_t>(index)];
      const int64_t samples = std::min(split.shape.batch_size, stream.plan.samples_per_replica -
                                                                   stream.next_reserve * split.shape.batch_size);
      begin_slot(split, stream.next_reserve, samples, stream.chunk_samples, keep_raw(), slot);
      stream.slots[slot.step] = index;
      send(options_.coordinator, SlotFree{stream.id, stream.next_reserve});
      ++stream.next_reserve;
    }
  }

  void next(int connection, const ClientNext& m) {
    const auto it = streams_.find(m.stream);
    if (it == streams_.end()) {
      tell(connection, ClientFailed{static_cast<int32_t>(ErrorKind::usage), "this iteration has ended",
                                    "start a new one with begin()", m.stream});
      return;
    }
    Stream& stream = it->second;
    stream.waiting = true;
    stream.asked_at = clock_.now();
    if (stream.first_asked == 0) stream.first_asked = stream.asked_at;
    reserve(stream);
    send(options_.coordinator, CursorAt{stream.id, stream.cursor, true});
    serve(stream);
  }

  // Answers a waiting client where its batch is ready.
  void serve(Stream& stream) {
    if (!stream.waiting) return;
    PortSplit& split = splits_.at(stream.split_id);
    if (stream.failed) {
      stream.waiting = false;
      tell(stream.connection, *stream.failed);
      return;
    }
    if (stream.cursor >= stream.plan.steps) {
      stream.waiting = false;
      tell(stream.connection, ClientEnd{stream.id});
      return;
    }
    SlotPool& pool = pools_.at(stream.pool);
    const auto it = stream.slots.find(stream.cursor);
    if (it == stream.slots.end()) {
      if (!stream.warned && pool.count(Slot::State::held) == std::ssize(pool.slots)) {
        stream.warned = true;
        const std::string notice = "the program holds all " + std::to_string(pool.slots.size()) + " batches of split '" +
                          split.resolved.name + "'; next() waits until one is dropped (trainer.hold: " +
                          std::to_string(options_.hold) + ")";
        tell(stream.connection, ClientNotice{notice, stream.id});
        if (on_notice_) on_notice_(notice);
      }
      return;
    }
    Slot& slot = pool.slots[static_cast<size_t>(it->second)];
    if (slot.state != Slot::State::ready) return;
    std::string remedy = split.resolved.on_error == OnError::substitute
                             ? "repair or remove the files: nothing usable was found to stand in"
                             : "repair or remove the file, or set on_error: substitute";
    if (slot.problem.empty() && !within_budget(stream, split, slot)) {
      remedy = "repair or remove the files, or raise bad_samples.max_fraction or bad_samples.max_count";
    }
    if (!slot.problem.empty()) {
      if (!slot.remedy.empty()) remedy = slot.remedy;
      stream.failed = ClientFailed{static_cast<int32_t>(ErrorKind::dataset), slot.problem, remedy, stream.id};
      serve(stream);
      return;
    }
    deliver(stream, split, pool, it->second);
  }

  bool within_budget(Stream& stream, const PortSplit& split, Slot& slot) {
    for (const SampleRecord& record : slot.records) stream.substituted += record.reason.empty() ? 0 : 1;
    const int64_t budget = bad_sample_budget(split.resolved.bad_samples, stream.plan);
    if (stream.substituted <= budget) return true;
    slot.problem = "more than " + std::to_string(budget) + " samples of split '" + split.resolved.name +
                   "' are unusable in epoch " + std::to_string(stream.epoch) + "; the last: " + last_bad(slot);
    return false;
  }
  static std::string last_bad(const Slot& slot) {
    std::string text;
    for (const SampleRecord& record : slot.records) {
      if (!record.reason.empty()) text = "'" + record.key + "': " + record.reason;
    }
    return text;
  }

  void deliver(Stream& stream, PortSplit& split, SlotPool& pool, int32_t index) {
    Slot& slot = pool.slots[static_cast<size_t>(index)];
    const Nanoseconds now = clock_.now();
    // First what may fail: a batch that cannot be dumped is not delivered, and not counted.
    if (dumps()) dump(stream, split, pool, slot, index);
    const Delivery delivery{stream.epoch, slot.samples, now - stream.asked_at,
                            now - std::max(stream.first_asked, stream.last_answered)};
    book_.delivered(split.resolved.name, delivery, slot.hash, slot.records);
    stream.last_answered = now;
    stream.hash += slot.hash;
    latest_ = {};
    latest_.split = split.resolved.name;
    latest_.epoch = stream.epoch;
    latest_.step = slot.step + 1;
    latest_.steps = stream.plan.steps;
    slot.state = Slot::State::held;
    stream.slots.erase(slot.step);
    stream.waiting = false;
    stream.warned = false;
    ++stream.cursor;
    tell(stream.connection,
         ClientBatch{stream.id, pool.id, index, stream.epoch, slot.step, slot.samples, slot.num_valid});
    send(options_.coordinator, CursorAt{stream.id, stream.cursor, false});
    reserve(stream);
  }

  bool dumps() const { return !options_.dump_folder.empty() && options_.counted; }
  bool keep_raw() const { return dumps() && options_.dump_raw; }

  void dump(const Stream& stream, const PortSplit& split, const SlotPool& pool, Slot& slot, int32_t index) {
    DumpedBatch batch;
    batch.trainer = options_.trainer;
    batch.step = slot.step;
    batch.epoch = stream.epoch;
    batch.split = split.resolved.name;
    batch.records = &slot.records;
    batch.labels = &slot.labels;
    batch.pipeline = &*split.pipeline;
    batch.draws = slot.draws;
    batch.replica = options_.replica;
    batch.dataset_folder = split.resolved.split.dataset.title();
    for (size_t f = 0; f < split.fields.size(); ++f) {
      if (f == 1 && (options_.dump_raw || split.pipeline->soft_classes() == 0)) continue;
      std::byte* data = pool.slot_data(static_cast<size_t>(index)) + pool.layout.fields[f];
      FieldSpec field = split.fields[f];
      const bool image = field.kind == FieldKind::image;
      if (image && options_.dump_raw) {
        data = reinterpret_cast<std::byte*>(slot.raw[f].data());
        field = split.raw_fields[f];
      }
      const bool channels_last =
          image && !options_.dump_raw && split.finish.memory_format == MemoryFormat::channels_last;
      if (f == 0) {
        batch.images = image_batch_view(data, field, slot.samples, channels_last);
      } else {
        batch.others.push_back({field, data, channels_last});
      }
    }
    write_batch(options_.dump_folder + "/" + split.resolved.name + "_e" + std::to_string(stream.epoch), batch);
  }

  void release(const ClientRelease& m) {
    const auto it = pools_.find(m.pool);
    if (it == pools_.end() || m.slot < 0 || m.slot >= std::ssize(it->second.slots)) return;
    Slot& slot = it->second.slots[static_cast<size_t>(m.slot)];
    if (slot.state != Slot::State::held) return;  // released twice: the first one counted
    slot.state = Slot::State::free;
    if (const auto stream = streams_.find(it->second.stream); stream != streams_.end()) {
      reserve(stream->second);
      serve(stream->second);
    }
  }

  void close_stream(StreamId id) {
    const auto it = streams_.find(id);
    if (it == streams_.end()) return;
    Stream& stream = it->second;
    book_.range_ended(split_name(stream), range_of(stream));
    if (const auto pool = pools_.find(stream.pool); pool != pools_.end()) {
      for (const auto& [step, slot] : stream.slots) {
        pool->second.slots[static_cast<size_t>(slot)].state = Slot::State::free;
      }
      pool->second.stream = 0;
    }
    send(options_.coordinator, CloseStream{id});
    streams_.erase(it);
  }

  static DeliveredRange range_of(const Stream& stream) {
    return {stream.epoch, stream.first_step, stream.cursor, stream.hash};
  }
  const std::string& split_name(const Stream& stream) const { return splits_.at(stream.split_id).resolved.name; }

  // ---- chunks --------------------------------------------------------------------------------------------------
  void chunk_arrived(const ChunkArrived& arrived) {
    const Nanoseconds begun = clock_.now();
    ChunkHeader header;
    std::vector<SampleRecord> records;
    decode_envelope(arrived.envelope, header, records);
    received_bytes_ += static_cast<int64_t>(arrived.payload.size());
    ++chunks_by_transport_[endpoint_->capabilities(arrived.peer).name];
    const bool taken = accept(header, records, arrived);
    endpoint_->release(arrived.peer, arrived.token);
    busy_ns_ += clock_.now() - begun;
    if (!taken) {
      ++dropped_chunks_;
      return;
    }
    send(options_.coordinator, ChunkTaken{header.lease});
    if (const auto it = streams_.find(header.lease.stream); it != streams_.end()) serve(it->second);
  }

  // False: late, repeated, or of an iteration that has ended; its contents are the same wherever it comes from, so
  // nothing is lost by dropping it.
  bool accept(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived) {
    const auto it = streams_.find(header.lease.stream);
    if (it == streams_.end()) return false;
    Stream& stream = it->second;
    const PortSplit& split = splits_.at(stream.split_id);
    const auto place = stream.slots.find(header.lease.step);
    if (place == stream.slots.end()) return false;
    SlotPool& pool = pools_.at(stream.pool);
    const Slot& slot = pool.slots[static_cast<size_t>(place->second)];
    if (!wanted(slot, header)) return false;
    take_chunk(split, {arrived.peer, stream.epoch, stream.chunk_samples, options_.replica}, pool, place->second, header,
               records, arrived.payload);
    return true;
  }

  // ---- time ----------------------------------------------------------------------------------------------------
  void tick() {
    const Nanoseconds now = clock_.now();
    if (now - last_tick_ >= kTick) {
      last_tick_ = now;
      if (coordinator_) coordinator_->tick();
      if (job_end_) job_end_->tick(now);
      if (coordinator_ && options_.idle_ns > 0 && !serving_ends_) {
        const auto since = coordinator_->idle_since();
        if (since && now - *since > options_.idle_ns) {
          end_serving("no program for " + std::to_string(options_.idle_ns / kSecond) + " s");
        }
      }
      if (!check_end()) beat(now);
    }
    if (progress_ && now - last_progress_ >= progress_every_) {
      if (last_progress_ != 0) progress_(snapshot());
      last_progress_ = now;
    }
  }
  PortFigures snapshot() const {
    PortFigures all = latest_;
    const DeliveryBook::Totals totals = book_.totals();
    all.images = totals.images;
    all.batches = totals.batches;
    all.wait_s = seconds(totals.wait_ns);
    all.elapsed_s = seconds(totals.elapsed_ns);
    return all;
  }

  void wait() {
    std::vector<pollfd> fds;
    endpoint_->collect_fds(fds);
    fds.push_back({wakeup_.fd(), POLLIN, 0});
    clients_.collect_fds(fds);
    const size_t first_watched = fds.size();
    for (const auto& [fd, ready] : watched_) fds.push_back({fd, POLLIN, 0});
    (void)::poll(fds.data(), fds.size(), static_cast<int>(kTick / kMillisecond));
    wakeup_.clear();
    std::vector<int> readable;
    for (size_t i = first_watched; i < fds.size(); ++i) {
      if (fds[i].revents != 0) readable.push_back(fds[i].fd);
    }
    for (const int fd : readable) {
      if (const auto it = watched_.find(fd); it != watched_.end()) std::function<void()>(it->second)();
    }
  }

  PortOptions options_;
  MonotonicClock clock_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<Coordinator> coordinator_;
  std::deque<ControlMessage> local_;  // from this rank to itself
  Wakeup wakeup_;
  ClientConnections clients_;
  std::map<int32_t, PortSplit> splits_;
  std::map<std::pair<int64_t, std::string>, int32_t> openings_;  // by program and split
  std::set<int64_t> attached_;                                   // programs that opened a split
  std::map<StreamId, Stream> streams_;
  std::map<int32_t, SlotPool> pools_;
  DeliveryBook book_;
  PortFigures latest_;  // split, epoch and step of the last delivery
  std::map<std::string, int64_t> chunks_by_transport_;
  int32_t next_split_ = 1;
  int32_t next_pool_ = 1;
  uint32_t next_stream_ = 1;
  Nanoseconds begun_ = 0;
  Nanoseconds last_tick_ = 0;
  Nanoseconds last_beat_ = 0;
  SilenceWatch silence_;
  Nanoseconds last_progress_ = 0;
  Nanoseconds busy_ns_ = 0;
  int64_t received_bytes_ = 0;
  int64_t dropped_chunks_ = 0;

  bool program_finished_ = false;
  bool serving_ends_ = false;
  std::set<int> asked_to_end_;  // connections
  bool ended_ = false;
  bool coordinator_lost_ = false;
  std::unique_ptr<JobEnd> job_end_;  // trainer 0's, of a whole job

  std::atomic<bool> stop_{false};
};

Port::Port(const PortOptions& options, std::unique_ptr<Endpoint> endpoint)
    : impl_(std::make_unique<Impl>(options, std::move(endpoint))) {}
Port::~Port() = default;
void Port::listen(const std::string& name, const std::string& token) { impl_->listen(name, token); }
void Port::adopt(UniqueFd client_socket) { impl_->adopt(std::move(client_socket)); }
void Port::run() { impl_->run(); }
void Port::stop() noexcept { impl_->stop(); }
void Port::disconnect_clients() { impl_->disconnect_clients(); }
void Port::watch(int fd, std::function<void()> ready) { impl_->watched_[fd] = std::move(ready); }
void Port::every(Nanoseconds every_ns, std::function<void(const PortFigures&)> call) {
  impl_->progress_every_ = every_ns;
  impl_->progress_ = std::move(call);
}
void Port::finish_program(bool good, const std::string& problem, int exit_code) {
  impl_->finish_program(good, problem, exit_code);
}
void Port::end_serving(const std::string& reason) { impl_->end_serving(reason); }
void Port::on_goodbye(std::function<void(const Goodbye&)> call) { impl_->on_goodbye_ = std::move(call); }
void Port::on_notice(std::function<void(const std::string&)> call) { impl_->on_notice_ = std::move(call); }
const Goodbye& Port::goodbye() const { return impl_->goodbye_; }
std::vector<std::string> Port::reports() const { return impl_->reports(); }
std::string Port::report_json() const { return impl_->report_json(); }

}  // namespace penstock
