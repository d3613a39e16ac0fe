// How many chunks a second one coordinator can hand out: its whole conversation with loaders that make nothing and
// receivers that keep nothing, through the real messages, in one thread.
//
//   bench_coordinator [--receivers N] [--loaders N] [--threads N] [--chunks N] [--samples N]
//
// Prints a JSON object: chunks_per_s and cpu_us_per_chunk of the coordinator (its peers' encoding and decoding are not
// counted), messages a chunk, the longest time that one message took, and peak memory. Every sample of every batch is
// checked to be granted once: what is timed is what a job gets.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/coordinator/coordinator.h"
#include "runtime/job/job.h"
#include "runtime/protocol/messages.h"

namespace penstock {
namespace {

struct Settings {
  int receivers = 8;
  int loaders = 64;
  int threads = 8;
  int64_t chunks = 200'000;
  int64_t samples = 1'281'167;
};

int64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "bench_coordinator: %s\n", why.c_str());
  std::exit(1);
}

// The peers, of which each answers at once.
class Fleet {
 public:
  static constexpr int kBatch = 256;
  static constexpr int kChunk = 8;
  static constexpr int64_t kWindow = 4;  // batches that a receiver has room for

  explicit Fleet(const Settings& settings)
      : settings_(settings),
        coordinator_(
            make_coordinator(options(), clock_, [this](PeerId peer, const ControlMessage& m) { told(peer, m); })) {}

  void run() {
    const std::string json = split_json();
    for (int l = 0; l < settings_.loaders; ++l) {
      const int buffers = 4 * settings_.threads + settings_.receivers;
      send(settings_.receivers + l, LoaderHello{buffers, 2 * settings_.threads, settings_.threads});
    }
    for (int r = 0; r < settings_.receivers; ++r) send(r, OpenSplit{json, r, settings_.receivers});
    answer();
    while (opened_ < settings_.receivers) go_on();
    spent_ns_ = messages_ = longest_ns_ = 0;
    if (steps() < kWindow) fail("too few samples for so many receivers");
    while (made_ < settings_.chunks) epoch();
  }

  void print() const {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double us = static_cast<double>(spent_ns_) / 1e3 / static_cast<double>(made_);
    std::printf(
        "{\"receivers\": %d, \"loaders\": %d, \"threads\": %d, \"samples\": %lld, \"chunks\": %lld, "
        "\"chunks_per_s\": %.0f, \"cpu_us_per_chunk\": %.2f, \"messages_per_chunk\": %.2f, \"longest_us\": %.0f, "
        "\"max_rss_mb\": %.0f}\n",
        settings_.receivers, settings_.loaders, settings_.threads, static_cast<long long>(settings_.samples),
        static_cast<long long>(made_), 1e6 / us, us, static_cast<double>(messages_) / static_cast<double>(made_),
        static_cast<double>(longest_ns_) / 1e3, static_cast<double>(usage.ru_maxrss) / 1024.0);
  }

 private:
  CoordinatorOptions options() const {
    CoordinatorOptions options;
    for (int r = 0; r < settings_.receivers; ++r) options.receivers.push_back(r);
    for (int l = 0; l < settings_.loaders; ++l) options.loaders.push_back(settings_.receivers + l);
    // Eight ranks on a node.
    for (int rank = 0; rank < settings_.receivers + settings_.loaders; ++rank) options.nodes.push_back(rank / 8);
    options.chunk_samples = kChunk;
    return options;
  }

  static std::string split_json() {
    const Job job = parse_job(
        "splits:\n  train:\n    mode: train\n    dataset: {folder: /data}\n    pipeline: [{CenterCrop: {size: 224}}]\n"
        "    sampler: {shuffle: true}\n    batch_size: 256\n",
        "job.yaml", {});
    return canonical_json(resolve_split(job, "train"));
  }
  int64_t steps() const { return settings_.samples / settings_.receivers / kBatch; }
  LeaseStreamId lease_stream_of(int receiver) const {
    return static_cast<LeaseStreamId>(epoch_ * settings_.receivers + receiver + 1);
  }

  // Opening it, with its permutation, is not counted.
  void epoch() {
    const int64_t spent = spent_ns_, messages = messages_, longest = longest_ns_;
    ready_ = 0;
    for (int r = 0; r < settings_.receivers; ++r) {
      OpenLeaseStream open;
      open.lease_stream = lease_stream_of(r);
      open.fingerprint = fingerprint_;
      open.replica = r;
      open.epoch = epoch_;
      send(r, open);
    }
    while (ready_ < settings_.receivers) go_on();
    spent_ns_ = spent, messages_ = messages, longest_ns_ = longest;
    const int64_t before = made_;
    for (int r = 0; r < settings_.receivers; ++r) {
      for (int64_t step = 0; step < kWindow; ++step) send(r, BatchBufferFree{lease_stream_of(r), step});
    }
    answer();
    if (made_ == before) fail("no chunk was granted");
    if (made_ < settings_.chunks && !steps_.empty()) fail("a batch was not granted whole");
    for (int r = 0; r < settings_.receivers; ++r) send(r, CloseLeaseStream{lease_stream_of(r)});
    leases_.clear();
    ++epoch_;
  }

  // To the coordinator, as it comes off the wire.
  void send(PeerId peer, const ControlMessage& message) {
    const Message sent = encode(message);
    const int64_t begun = cpu_ns();
    coordinator_->handle(peer, decode(sent));
    note(begun);
  }
  void note(int64_t begun) {
    const int64_t took = cpu_ns() - begun;
    spent_ns_ += took;
    longest_ns_ = std::max(longest_ns_, took);
    ++messages_;
  }
  // From it: encoding is its work, and counts where it is called from.
  void told(PeerId peer, const ControlMessage& message) {
    (void)encode(message);
    if (const auto* lease = std::get_if<LeaseGranted>(&message)) {
      leases_.emplace_back(peer, *lease);
    } else if (const auto* prepare = std::get_if<PrepareSplit>(&message)) {
      prepares_.emplace_back(peer, *prepare);
    } else if (const auto* asked = std::get_if<SizesAsked>(&message)) {
      sizes_.emplace_back(peer, *asked);
    } else if (const auto* opened = std::get_if<SplitOpened>(&message)) {
      fingerprint_ = opened->fingerprint;
      ++opened_;
    } else if (std::holds_alternative<LeaseStreamReady>(message)) {
      ++ready_;
    } else if (std::holds_alternative<SplitRefused>(message) || std::holds_alternative<LeaseStreamFailed>(message)) {
      fail("the coordinator refuses");
    }
  }

  // What is made in another thread is waited for.
  void go_on() {
    if (!coordinator_->resume()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    answer();
  }

  void answer() {
    for (bool any = true; any;) {
      any = false;
      for (; !prepares_.empty(); prepares_.pop_front(), any = true) prepare(prepares_.front());
      for (; !sizes_.empty(); sizes_.pop_front(), any = true) send_sizes(sizes_.front());
      for (; !leases_.empty() && made_ < settings_.chunks; any = true) {
        const auto [peer, lease] = std::move(leases_.front());
        leases_.pop_front();
        make(peer, lease);
      }
    }
  }
  void prepare(const std::pair<PeerId, PrepareSplit>& asked) {
    SplitPrepared m;
    m.fingerprint = asked.second.fingerprint;
    m.good = true;
    m.dataset_size = settings_.samples;
    m.dataset_fingerprint = std::string(32, 'a');
    m.sample_bytes = 224 * 224 * 3;
    send(asked.first, m);
  }
  void send_sizes(const std::pair<PeerId, SizesAsked>& asked) {
    SizesTold m{asked.second.fingerprint, asked.second.first,
                std::string(static_cast<size_t>(asked.second.samples), 0)};
    for (size_t i = 0; i < m.codes.size(); ++i) m.codes[i] = static_cast<char>(130 + i % 20);
    send(asked.first, m);
  }

  void make(PeerId peer, const LeaseGranted& lease) {
    const bool again = is_remake(lease.lease);  // one chunk in thousands is made twice, to be compared
    Step whole;                                 // of which nothing is looked at
    Step& step = again ? whole : steps_[{lease.lease.lease_stream, lease.lease.step}];
    step.rows.resize(kBatch);
    int64_t bytes = 0;
    for (size_t i = 0; i < lease.samples.size(); ++i) {
      const size_t row = static_cast<size_t>(lease.first_row) + i;
      if (row >= step.rows.size() || (step.rows[row] && !again)) fail("a row was granted twice");
      step.rows[row] = !again;
      bytes += 50'000 + lease.samples[i].index % 100'000;
    }
    step.granted += again ? 0 : static_cast<int64_t>(lease.samples.size());
    ++made_;
    send(peer, ChunkDone{lease.lease, 4'000'000 + bytes, bytes, 2 * bytes, 0});
    send(lease.receiver, ChunkTaken{lease.lease});
    send(peer, ChunkBufferFree{lease.receiver});
    if (again || step.granted < kBatch) return;
    steps_.erase({lease.lease.lease_stream, lease.lease.step});
    send(lease.receiver, CursorAt{lease.lease.lease_stream, lease.lease.step + 1, false});
    const int64_t next = lease.lease.step + kWindow;
    if (next < steps()) send(lease.receiver, BatchBufferFree{lease.lease.lease_stream, next});
  }

  struct Step {
    std::vector<bool> rows;
    int64_t granted = 0;
  };

  const Settings settings_;
  MonotonicClock clock_;
  std::deque<std::pair<PeerId, LeaseGranted>> leases_;
  std::deque<std::pair<PeerId, PrepareSplit>> prepares_;
  std::deque<std::pair<PeerId, SizesAsked>> sizes_;
  std::map<std::pair<LeaseStreamId, int64_t>, Step> steps_;
  Fingerprint fingerprint_ = 0;
  int opened_ = 0;
  int ready_ = 0;
  int64_t epoch_ = 0;
  int64_t made_ = 0;
  int64_t spent_ns_ = 0;
  int64_t messages_ = 0;
  int64_t longest_ns_ = 0;
  std::unique_ptr<Coordinator> coordinator_;
};

int64_t number_after(int argc, char** argv, const char* option, int64_t otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], option) == 0) return std::max(1LL, std::atoll(argv[i + 1]));
  }
  return otherwise;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  using namespace penstock;
  Settings settings;
  settings.receivers = static_cast<int>(number_after(argc, argv, "--receivers", settings.receivers));
  settings.loaders = static_cast<int>(number_after(argc, argv, "--loaders", settings.loaders));
  settings.threads = static_cast<int>(number_after(argc, argv, "--threads", settings.threads));
  settings.chunks = number_after(argc, argv, "--chunks", settings.chunks);
  settings.samples = number_after(argc, argv, "--samples", settings.samples);
  Fleet fleet(settings);
  fleet.run();
  fleet.print();
}
