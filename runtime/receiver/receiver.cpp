#include "runtime/receiver/receiver.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/json_text.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/client_protocol.h"
#include "runtime/receiver/client_connections.h"
#include "runtime/receiver/export_registry.h"
#include "runtime/receiver/heartbeats.h"
#include "runtime/receiver/iterations.h"
#include "runtime/receiver/open_splits.h"
#include "runtime/receiver/receiver_messenger.h"
#include "runtime/receiver/receiver_shutdown.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

constexpr Nanoseconds kTick = 100 * kMillisecond;
constexpr Nanoseconds kEndTimeout = 10 * kSecond;

class ReceiverImpl final : public Receiver, private ReceiverMessenger {
 public:
  ReceiverImpl(const ReceiverOptions& options, std::unique_ptr<Endpoint> endpoint)
      : options_(options),
        clock_(options.clock != nullptr ? *options.clock : real_clock_),
        endpoint_(std::move(endpoint)),
        heartbeats_({options_.self, options_.coordinator, options_.coordination.receivers,
                     options_.coordination.loaders, options_.heartbeat_ns, options_.silence_ns},
                    [this](PeerId peer, const ControlMessage& m) { to_rank(peer, m); }),
        end_(options_, *this, [this] { return report_json(); }),
        splits_(options_, clients_, *this),
        exports_(*this),
        iterations_(options_, clock_, splits_, exports_, statistics_, *this) {
    if (options_.self == options_.coordinator) {
      coordinator_ = make_coordinator(
          options_.coordination, clock_, [this](PeerId peer, const ControlMessage& m) { to_rank(peer, m); },
          [this](const std::string& text) { notice(text); }, [this] { wakeup_.set(); });
    }
  }

  void listen(const std::string& name, const std::string& token) override {
    clients_.listen(
        name, token,
        {options_.replica, options_.num_replicas, options_.local_replicas, options_.host, options_.overrides_json});
  }
  void adopt(UniqueFd client_socket) override {
    clients_.adopt(std::move(client_socket));
    wakeup_.set();
  }
  void disconnect_clients() override { clients_.disconnect(); }
  void stop() noexcept override {
    stop_ = true;
    wakeup_.set();
  }

  void begin() override {
    begun_ = clock_.now();
    heartbeats_.begin(begun_);
  }
  bool turn() override {
    bool moved = poll_endpoint();
    moved = poll_clients() || moved;
    moved = run_local() || moved;
    moved = (coordinator_ && coordinator_->resume()) || moved;
    if (end_.serving_ending()) leave_serving();
    tick();
    return moved;
  }

  void run() override {
    begin();
    try {
      while (!stop_ && !end_.ended()) {
        const bool moved = turn();
        if (!moved && !stop_ && !end_.ended()) wait();
      }
    } catch (const Error& error) {
      // In a program's own process clients ask the owner why; it hangs up when it can tell (disconnect_clients).
      if (!options_.whole_job) throw;
      if (coordinator_lost_) {
        clients_.hang_up();
        throw;
      }
      // The cause is sent before clients are hung up on: otherwise what the program says of the hang-up would come
      // first.
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

  bool ended() const noexcept override { return end_.ended(); }
  void watch(int fd, std::function<void()> ready) override { watched_[fd] = std::move(ready); }
  void every(Nanoseconds every_ns, std::function<void(const ReceiverFigures&)> call) override {
    periodic_.push_back({every_ns, 0, std::move(call)});
  }
  void on_notice(std::function<void(const std::string&)> call) override { on_notice_ = std::move(call); }
  void finish_program(bool good, const std::string& problem, int exit_code) override {
    end_.finish(good, problem, exit_code);
  }
  const std::string& reported_problem() const noexcept override { return clients_.reported_problem(); }
  void fail(const std::string& problem, int exit_code) override { end_.fail(problem, exit_code); }
  void end_serving(const std::string& reason) override { to_coordinator(EndServing{reason}); }
  void on_goodbye(std::function<void(const Goodbye&)> call) override { end_.on_goodbye(std::move(call)); }
  const Goodbye& goodbye() const override { return end_.goodbye(); }
  std::vector<std::string> reports() const override { return end_.reports(); }
  std::string report_json() const override { return report_to({}); }

 private:
  // `connection`: of the client that asks, which is told of its own share as well.
  std::string report_to(std::optional<int> connection) const {
    nlohmann::json report = statistics_.to_json(iterations_.open_ranges());
    if (connection) report["client"] = statistics_.client_json(*connection, iterations_.open_ranges(connection));
    report["role"] = "trainer";
    report["trainer"] = options_.trainer;
    report["replica"] = options_.replica;
    report["counted"] = options_.counted;
    report["rank"] = options_.self;
    report["host"] = host_name();
    report["elapsed_s"] = as_seconds(clock_.now() - begun_);
    if (coordinator_) {
      const Coordinator::Figures figures = coordinator_->figures();
      report["leases"] = {{"granted", figures.granted}, {"regranted", figures.regranted}, {"hedged", figures.hedged}};
      report["coordinating_s"] = as_seconds(figures.busy_ns);
      report["balance"] = coordinator_->balance();
      report["lost_loaders"] = figures.lost;
      report["left_loaders"] = figures.left;
      report["back_loaders"] = figures.back;
      report["losses"] = figures.losses;  // of which the last are listed
      report["leaves"] = figures.leaves;
    }
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    report["max_rss_mb"] = static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
    // Names of files may be no UTF-8.
    return json_text_replacing(report);
  }

  // ---- messages ------------------------------------------------------------------------------------------------
  void to_coordinator(const ControlMessage& message) override { to_rank(options_.coordinator, message); }
  void to_rank(PeerId peer, const ControlMessage& message) override {
    if (peer == options_.self) {
      local_.push_back(message);
    } else {
      endpoint_->send(peer, encode(message));
    }
  }

  void to_client(int id, const ClientMessage& message, int fd = -1) override { clients_.send(id, message, fd); }
  void notice(const std::string& text) override {
    if (on_notice_) on_notice_(text);
  }
  void still_alive() override { heartbeats_.beat(clock_.now()); }

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
    for (int i = 0; i < 64 && !end_.ended() && endpoint_->poll(incoming); ++i) {
      moved = true;
      std::visit(overloaded{
                     [&](MessageArrived& m) { message_arrived(m); },
                     [&](ChunkArrived& m) { chunk_arrived(m); },
                     [&](ChunkBufferReturned&) {},
                     [&](PeerLost& m) { peer_lost(m); },
                     [&](PeerDamaged& m) { damaged(m.peer, Error(ErrorKind::peer_lost, m.reason)); },
                 },
                 incoming);
      run_local();
    }
    return moved;
  }

  void message_arrived(MessageArrived& m) {
    heartbeats_.received(m.peer, clock_.now());
    try {
      const ControlMessage message = decode(m.message);
      if (const auto* offered = std::get_if<ExportOffered>(&message)) {
        if (offered->linked || m.fd) {
          exports_.offered(m.peer, *offered, std::move(m.fd));
        } else {
          notice("a descriptor of memory of " + name_of(m.peer) +
                 "'s GPU did not arrive, and images go by the host: raise ulimit -n");
        }
      } else {
        handle(m.peer, message);
      }
    } catch (const Error& error) {
      damaged(m.peer, error);
    }
  }

  // A message that cannot be understood costs its sender if that is a loader, until it joins again; one of a trainer's
  // rank ends the job.
  void damaged(PeerId peer, const Error& error) {
    if (!is_loader(peer)) throw error;
    to_coordinator(LoaderDamaged{peer, error.message()});
  }

  void handle(PeerId peer, const ControlMessage& message) {
    std::visit(overloaded{
                   [&](const SplitOpened& m) { splits_.opened(m); },
                   [&](const SplitRefused& m) { splits_.refused(m); },
                   [&](const LeaseStreamReady& m) { iterations_.ready(m); },
                   [&](const LeaseStreamFailed& m) { iterations_.failed(m); },
                   [&](const ReceiverDone& m) {
                     look_who_is_away();
                     if (!m.good) end_where_all_lost();  // the program has ended by that, sooner than the next tick
                     end_.program_done(peer, m, coordinator_ ? coordinator_->living_loaders() : std::vector<PeerId>{},
                                       clock_.now());
                   },
                   [&](const LoaderReport& m) {
                     end_.loader_report(peer, m);
                     if (coordinator_) coordinator_->reported(peer);
                   },
                   [&](const Goodbye& m) { end_.received_goodbye(m); },
                   [&](const Alive&) {
                     if (coordinator_ && !is_receiver(peer)) coordinator_->handle(peer, message);
                   },
                   [&](const LoaderGone& m) {
                     exports_.links_lost(m.loader);
                     iterations_.loader_lost(m.loader);
                     if (m.left) {
                       // Not abandoned: a Goodbye to it may still be on its way. When its process ends, we are told.
                       heartbeats_.dead(m.loader);
                     } else if (m.dead) {
                       endpoint_->abandon(m.loader);
                     } else {
                       endpoint_->give_up(m.loader);
                     }
                     if (coordinator_ && end_.leaving()) end_.peer_lost(m.loader);  // its report is not waited for
                     if (coordinator_ && !m.left) loader_gone();
                   },
                   [&](const LinkOpened& m) { exports_.opened(peer, m); },
                   [&](const RankDied& m) {
                     if (coordinator_ && m.rank != options_.self) peer_lost({m.rank, m.reason, true});
                   },
                   [&](const LoaderDamaged& m) {
                     if (coordinator_) coordinator_->peer_lost(m.loader, m.reason, false);
                   },
                   [&](const EndServing& m) {
                     splits_.serving_ends();
                     end_.serving_ends(m);
                   },
                   [&](const auto&) {
                     if (!coordinator_) {
                       throw Error(ErrorKind::peer_lost,
                                   "rank " + std::to_string(peer) + " sent a message that is not for this receiver",
                                   "all ranks must run the same version of penstock");
                     }
                     coordinator_->handle(peer, message);
                   },
               },
               message);
  }

  void peer_lost(const PeerLost& m) {
    if (m.dead) {
      endpoint_->abandon(m.peer);
      heartbeats_.dead(m.peer);
      if (!coordinator_ && m.peer != options_.coordinator) to_coordinator(RankDied{m.peer, m.reason});
    } else {
      endpoint_->give_up(m.peer);
    }
    end_.peer_lost(m.peer);
    exports_.loader_lost(m.peer);
    iterations_.loader_lost(m.peer);
    if (end_.ended()) return;
    if (m.peer == options_.coordinator) {
      coordinator_lost_ = true;
      throw Error(ErrorKind::peer_lost, "lost trainer 0 (" + name_of(m.peer) + "), which coordinates: " + m.reason);
    }
    if (!coordinator_ || end_.leaving()) return;
    if (!is_receiver(m.peer)) {
      coordinator_->peer_lost(m.peer, m.reason, m.dead);
    } else if (end_.decides()) {
      end_.fail("lost a trainer (" + name_of(m.peer) + "): " + m.reason, static_cast<int32_t>(ErrorKind::peer_lost));
    }
  }

  void loader_gone() {
    const bool fails = options_.coordination.balancer.on_loader_loss == LoaderLossPolicy::fail;
    if (!fails || !end_.decides() || end_.leaving()) return;
    end_.fail("lost " + coordinator_->figures().lost.back() +
                  "\n  help: balancer.on_loader_loss is fail; with continue the other loaders make what it had",
              static_cast<int32_t>(ErrorKind::peer_lost));
  }

  // The programs have been told: by the error of their next(), or where they opened a split.
  void end_where_all_lost() {
    if (!coordinator_ || !end_.decides() || end_.leaving()) return;
    const std::string why = coordinator_->all_lost();
    if (!why.empty()) end_.fail(why, static_cast<int32_t>(ErrorKind::peer_lost));
  }

  // Before the job ends: with a loader gone, or two ranks cut off from each other, MPI_Finalize would wait for who does
  // not come.
  void look_who_is_away() {
    if (coordinator_ && coordinator_->any_away()) end_.mpi_cannot_end();
  }

  bool is_receiver(PeerId peer) const {
    const auto& receivers = options_.coordination.receivers;
    return std::count(receivers.begin(), receivers.end(), peer) != 0;
  }
  // Receivers other than the coordinator's hear of loaders and the coordinator alone.
  bool is_loader(PeerId peer) const { return coordinator_ ? !is_receiver(peer) : peer != options_.coordinator; }
  std::string name_of(PeerId peer) const { return name_of_rank(options_, peer); }

  // ---- the end (receiver_shutdown.h) ---------------------------------------------------------------------------

  // Iterations that are open end here, and stand in the report so. Who asked for the end is kept: the answer is the
  // hang-up at the end.
  void leave_serving() {
    if (end_.finished()) return;
    clients_.dismiss(asked_to_end_);
    poll_clients();
    run_local();
    end_.finish(true, "", 0);
  }
  // This receiver cannot go on. Everybody is sent the reason before its sockets close, so that the job ends by this
  // message and not by what each of the others makes of the silence.
  void fail_job(const Error& error) {
    look_who_is_away();
    end_.fail("trainer " + std::to_string(options_.trainer) + ": " + error.what(), error.exit_code());
    await_goodbye();
    if (!end_.ended() && !stop_) throw error;
  }
  void await_goodbye() {
    const Nanoseconds deadline = clock_.now() + kEndTimeout;
    while (!end_.ended() && !stop_ && clock_.now() < deadline) {
      Incoming incoming;
      if (!endpoint_->poll(incoming)) {
        wait();
        continue;
      }
      if (const auto* chunk = std::get_if<ChunkArrived>(&incoming)) endpoint_->release(chunk->peer, chunk->token);
      const auto* lost = std::get_if<PeerLost>(&incoming);
      if (lost != nullptr && lost->peer == options_.coordinator) break;
      if (const auto* message = std::get_if<MessageArrived>(&incoming)) look_for_goodbye(message->message);
    }
  }
  // A damaged message is ignored: an error about it would take the place of the cause that is being told.
  void look_for_goodbye(const Message& message) {
    ControlMessage answer;
    try {
      answer = decode(message);
    } catch (const Error&) {
      return;
    }
    if (const auto* goodbye = std::get_if<Goodbye>(&answer)) end_.received_goodbye(*goodbye);
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
                                splits_.program_changed(number, pid, came, living);
                                if (!came) exports_.program_ended(number);
                              }});
  }

  void drop_connection(int id) {
    note_wait_in_vain(id);
    iterations_.stop_all_of(id);
    statistics_.client_gone(id);
    for (const int32_t split : splits_.of(id)) {
      iterations_.split_closed(split);
      splits_.close(split);
    }
    exports_.connection_gone(id);
  }

  // A client gives up its wait; its DataLoader has told the program so by itself.
  void note_wait_in_vain(int id, uint64_t iteration = 0) {
    if (const std::string why = iterations_.waited_in_vain(id, iteration); !why.empty()) clients_.note_problem(why);
  }

  void handle_client(int id, const ClientMessage& message) {
    std::visit(overloaded{
                   [&](const ClientHello&) {},
                   [&](const ClientOpen& m) { splits_.open(id, m); },
                   [&](const ClientIterate& m) { iterations_.begin(id, m); },
                   [&](const ClientNext& m) { iterations_.next(id, m); },
                   [&](const ClientRelease& m) { iterations_.release(id, m); },
                   [&](const ClientStop& m) {
                     note_wait_in_vain(id, m.iteration);
                     iterations_.stop(id, m);
                   },
                   [&](const ClientExportUsed& m) { exports_.used(id, m); },
                   [&](const ClientLinkAsked& m) { exports_.asked(id, m); },
                   [&](const ClientBufferRangesAsked& m) { exports_.asked(id, m); },
                   [&](const ClientGoodbye&) { exports_.connection_gone(id); },
                   [&](const ClientStats&) { to_client(id, ClientStatsJson{report_to(id)}); },
                   [&](const ClientEndServing&) {
                     if (!options_.serving) throw Error(ErrorKind::usage, "this job ends with its programs");
                     asked_to_end_.insert(id);
                     end_serving("process " + std::to_string(clients_.pid(id)) + " asked for it");
                   },
                   [&](const auto&) {
                     throw Error(ErrorKind::usage, "a client sent a message that is not for receivers",
                                 "link the program against the same version of penstock");
                   },
               },
               message);
  }

  // ---- chunks --------------------------------------------------------------------------------------------------
  void chunk_arrived(const ChunkArrived& arrived) {
    const Nanoseconds begun = clock_.now();
    ChunkHeader header;
    std::vector<SampleRecord> records;
    bool taken = false;
    bool readable = false;
    std::string difference;
    try {
      decode_envelope(arrived.envelope, header, records);
      readable = true;
      statistics_.chunk_arrived(endpoint_->capabilities(arrived.peer).name, arrived.payload.size());
      if (is_remake(header.lease)) {
        difference = iterations_.compare(header, records, arrived);
        taken = true;
      } else {
        taken = iterations_.take(header, records, arrived);
      }
    } catch (const Error& error) {
      if (readable) {
        to_coordinator(ChunkDamaged{arrived.peer, header.lease, error.message()});
      } else {
        damaged(arrived.peer, error);
      }
    }
    endpoint_->release(arrived.peer, arrived.token);
    statistics_.chunk_done(clock_.now() - begun, taken);
    if (!taken) return;
    to_coordinator(ChunkTaken{header.lease});
    if (!difference.empty()) {
      look_who_is_away();
      end_.fail(difference +
                    "\n  help: test the memory of their hosts, and compare `penstock doctor` on both; "
                    "balancer.remake_every: 0 does without this check",
                static_cast<int32_t>(ErrorKind::runtime));
    }
    if (!is_remake(header.lease)) iterations_.serve(header.lease.lease_stream);
  }

  // ---- time ----------------------------------------------------------------------------------------------------
  void tick() {
    const Nanoseconds now = clock_.now();
    if (now - last_tick_ >= kTick) {
      last_tick_ = now;
      if (coordinator_) coordinator_->tick();
      end_where_all_lost();
      end_.tick(now);
      if (coordinator_ && options_.idle_ns > 0 && !end_.serving_ending()) {
        const auto since = coordinator_->idle_since();
        if (since && now - *since > options_.idle_ns) {
          end_serving("no program for " + std::to_string(options_.idle_ns / kSecond) + " s");
        }
      }
      if (!end_.ended()) {
        if (const auto lost = heartbeats_.tick(now)) peer_lost(*lost);
      }
    }
    for (Periodic& periodic : periodic_) {
      if (now - periodic.last < periodic.every_ns) continue;
      if (periodic.last != 0) periodic.call(statistics_.figures());
      periodic.last = now;
    }
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

  // What the owner has set by watch(), every() and on_notice().
  std::map<int, std::function<void()>> watched_;
  struct Periodic {
    Nanoseconds every_ns;
    Nanoseconds last;
    std::function<void(const ReceiverFigures&)> call;
  };
  std::vector<Periodic> periodic_;
  std::function<void(const std::string&)> on_notice_;
  ReceiverOptions options_;
  const MonotonicClock real_clock_;
  const Clock& clock_;
  Wakeup wakeup_;  // the coordinator's thread sets it until it has ended
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<Coordinator> coordinator_;
  std::deque<ControlMessage> local_;  // from this rank to itself
  Heartbeats heartbeats_;
  ReceiverShutdown end_;
  ClientConnections clients_;
  OpenSplits splits_;
  ReceiverStatistics statistics_;
  ExportRegistry exports_;
  Iterations iterations_;
  Nanoseconds begun_ = 0;
  Nanoseconds last_tick_ = 0;

  std::set<int> asked_to_end_;  // connections that ask for the end of serving
  bool coordinator_lost_ = false;
  std::atomic<bool> stop_{false};
};

}  // namespace

std::unique_ptr<Receiver> make_receiver(const ReceiverOptions& options, std::unique_ptr<Endpoint> endpoint) {
  return std::make_unique<ReceiverImpl>(options, std::move(endpoint));
}

}  // namespace penstock
