// The coordinator's conversation, message by message, with a clock that the test moves.
#include "runtime/coordinator/coordinator.h"

#include <doctest/doctest.h>

#include <deque>
#include <iterator>
#include <map>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/coordinator/epoch_plan.h"
#include "runtime/job/sampler_file.h"
#include "sampler/plan.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

std::string split_json(const std::vector<std::string>& overrides = {}) {
  const Job job = parse_job(
      "splits:\n  train:\n    mode: train\n    dataset: {folder: /data}\n    pipeline: [{CenterCrop: {size: 4}}]\n"
      "    sampler: {shuffle: true}\n    batch_size: 4\n",
      "job.yaml", overrides);
  return canonical_json(resolve_split(job, "train"));
}

// Receivers 0 and 1, loaders 2 and 3.
struct World {
  explicit World(int chunk_samples = 2) : World(options(chunk_samples)) {}
  explicit World(const CoordinatorOptions& options)
      : owned(make_coordinator(
            options, clock, [this](PeerId peer, const ControlMessage& m) { sent.emplace_back(peer, m); },
            [this](const std::string& text) { notices.push_back(text); })) {}
  static CoordinatorOptions options(int chunk_samples = 2) {
    CoordinatorOptions o;
    o.receivers = {0, 1};
    o.loaders = {2, 3};
    o.nodes = {0, 0, 0, 0};
    o.chunk_samples = chunk_samples;
    return o;
  }
  template <class T>
  std::vector<T> take(PeerId peer) {
    std::vector<T> found;
    std::erase_if(sent, [&](const auto& item) {
      if (item.first != peer || !std::holds_alternative<T>(item.second)) return false;
      found.push_back(std::get<T>(item.second));
      return true;
    });
    return found;
  }
  void join(PeerId loader, int threads = 1) { coordinator.handle(loader, LoaderHello{8, 2, threads}); }
  void prepared(PeerId loader, const std::string& json, int64_t size = 10, const std::string& fingerprint = "aa") {
    SplitPrepared m;
    m.fingerprint = fingerprint_of(json);
    m.good = true;
    m.dataset_size = size;
    m.dataset_fingerprint = fingerprint;
    coordinator.handle(loader, m);
  }
  void cannot_open(PeerId loader, Fingerprint fingerprint, ErrorKind kind = ErrorKind::runtime) {
    SplitPrepared m;
    m.fingerprint = fingerprint;
    m.error_kind = static_cast<int32_t>(kind);
    m.may_pass = kind == ErrorKind::runtime;
    m.error = kind == ErrorKind::runtime ? "cannot list folder '/data': Input/output error"
                                         : "cannot open folder '/data': Permission denied";
    coordinator.handle(loader, m);
  }
  void open_at_both(const std::string& json, int64_t size = 10) {
    join(2);
    join(3);
    for (const PeerId receiver : {0, 1}) coordinator.handle(receiver, OpenSplit{json, receiver, 2});
    go_on_until<PrepareSplit>(2);
    prepared(2, json, size);
    prepared(3, json, size);
  }
  // What a thread does goes on until something of it is said.
  template <class T>
  void go_on_until(PeerId told) {
    const MonotonicClock real;
    const Nanoseconds deadline = real.now() + 20 * kSecond;
    while (std::none_of(sent.begin(), sent.end(), [&](const auto& item) {
      return item.first == told && std::holds_alternative<T>(item.second);
    })) {
      REQUIRE(real.now() < deadline);
      if (!coordinator.resume()) std::this_thread::yield();
    }
  }

  // Time passes, in which both loaders say that they live.
  void pass(Nanoseconds time) {
    for (const Nanoseconds end = clock.now() + time; clock.now() < end;) {
      clock.advance(100 * kMillisecond);
      for (const PeerId loader : {2, 3}) coordinator.handle(loader, Alive{});
      coordinator.tick();
    }
  }

  ManualClock clock;
  std::deque<std::pair<PeerId, ControlMessage>> sent;
  std::vector<std::string> notices;
  const std::unique_ptr<Coordinator> owned;
  Coordinator& coordinator = *owned;
};

TEST_CASE("a split is opened when every loader has answered, and once for all receivers") {
  World world;
  const std::string json = split_json();
  world.coordinator.handle(0, OpenSplit{json, 0, 2});
  CHECK(world.take<SplitOpened>(0).empty());  // no loader yet: it waits
  world.join(2);
  world.join(3);
  CHECK(world.take<PrepareSplit>(2).size() == 1);
  CHECK(world.take<PrepareSplit>(3).size() == 1);
  world.prepared(2, json);
  CHECK(world.take<SplitOpened>(0).empty());
  world.prepared(3, json);
  const auto opened = world.take<SplitOpened>(0);
  REQUIRE(opened.size() == 1);
  CHECK(opened[0].dataset_size == 10);
  world.coordinator.handle(1, OpenSplit{json, 1, 2});
  CHECK(world.take<SplitOpened>(1).size() == 1);
  CHECK(world.take<PrepareSplit>(2).empty());
}

TEST_CASE("samples' sizes are asked of one loader, part after part, and of another one where that is lost") {
  World world;
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  constexpr int64_t kPart = 1 << 15, kSamples = 2 * kPart + 5;
  world.open_at_both(json, kSamples);
  const auto asked_of = [&](PeerId loader) {
    std::vector<std::pair<int64_t, int32_t>> parts;
    for (const SizesAsked& m : world.take<SizesAsked>(loader)) parts.emplace_back(m.first, m.samples);
    return parts;
  };
  using Parts = std::vector<std::pair<int64_t, int32_t>>;
  CHECK(asked_of(2) == Parts{{0, kPart}});
  CHECK(asked_of(3).empty());
  world.coordinator.handle(2, SizesTold{fingerprint, 0, std::string(kPart, '\x50')});
  CHECK(asked_of(2) == Parts{{kPart, kPart}});
  world.coordinator.peer_lost(2, "its process ended", true);
  CHECK(asked_of(3) == Parts{{kPart, kPart}});
  world.coordinator.handle(3, SizesTold{fingerprint, kPart, std::string(kPart, '\x50')});
  CHECK(asked_of(3) == Parts{{2 * kPart, 5}});
  world.coordinator.handle(3, SizesTold{fingerprint, 2 * kPart, ""});  // it knows no more
  CHECK(asked_of(3).empty());
}

TEST_CASE("a loader has as many leases as its hello asked for, and no more") {
  World world;
  const std::string json = split_json();
  const std::map<PeerId, int32_t> depth{{2, 3}, {3, 1}};
  for (const auto& [loader, leases] : depth) world.coordinator.handle(loader, LoaderHello{8, leases, 4});
  for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, OpenSplit{json, receiver, 2});
  for (const PeerId loader : {2, 3}) world.prepared(loader, json, 80);
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  for (int64_t step = 0; step < 5; ++step) world.coordinator.handle(0, BatchBufferFree{7, step});  // of two chunks each
  for (const auto& [loader, leases] : depth) {
    const auto granted = world.take<LeaseGranted>(loader);
    REQUIRE(std::ssize(granted) == leases);
    world.coordinator.handle(loader, ChunkDone{granted[0].lease, 1000, 1, 1});
    CHECK(world.take<LeaseGranted>(loader).size() == 1);
  }
}

TEST_CASE("chunks are as small as the threads of the loaders that are there ask for") {
  World world(/*chunk_samples=*/0);
  const std::string json = split_json({"splits.train.batch_size=64"});
  world.join(2, 8);
  world.join(3, 8);
  for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, OpenSplit{json, receiver, 2});
  for (const PeerId loader : {2, 3}) world.prepared(loader, json, 1000);
  const auto chunk_of = [&](LeaseStreamId id) {
    OpenLeaseStream stream;
    stream.lease_stream = id;
    stream.fingerprint = fingerprint_of(json);
    world.coordinator.handle(0, stream);
    const int32_t samples = world.take<LeaseStreamReady>(0).at(0).chunk_samples;
    world.coordinator.handle(0, CloseLeaseStream{id});
    return samples;
  };
  CHECK(chunk_of(7) == 4);  // two chunks for each of 16 threads, which two trainers share
  world.coordinator.peer_lost(3, "silent for 10.0 s", false);
  CHECK(chunk_of(8) == 8);
  world.coordinator.handle(3, LoaderHello{8, 2, 8, 1});
  CHECK(chunk_of(9) == 4);
}

TEST_CASE("replicas that open different splits are told which key differs") {
  World world;
  world.open_at_both(split_json());
  (void)world.take<SplitOpened>(0);
  world.coordinator.handle(0, OpenSplit{split_json(), 0, 2});
  world.coordinator.handle(1, OpenSplit{split_json({"splits.train.batch_size=8"}), 1, 2});
  const auto refused = world.take<SplitRefused>(1);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error_kind == static_cast<int32_t>(ErrorKind::config));
  CHECK(refused[0].error.find("batch_size") != std::string::npos);
}

TEST_CASE("loaders that see different data refuse the split, by name") {
  World world;
  const std::string json = split_json();
  world.join(2);
  world.join(3);
  world.coordinator.handle(0, OpenSplit{json, 0, 2});
  world.prepared(2, json, 10, "aa");
  world.prepared(3, json, 9, "bb");
  const auto refused = world.take<SplitRefused>(0);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error.find("rank 3") != std::string::npos);
  CHECK(refused[0].error_kind == static_cast<int32_t>(ErrorKind::dataset));
}

TEST_CASE("a split that could not be opened is asked for anew when it is opened again") {
  World world;
  const std::string json = split_json();
  world.join(2);
  world.join(3);
  SplitPrepared bad;
  bad.fingerprint = fingerprint_of(json);
  bad.error_kind = static_cast<int32_t>(ErrorKind::dataset);
  bad.error = "no folder";
  for (int again = 0; again < 2; ++again) {
    for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, OpenSplit{json, receiver, 2});
    CHECK(world.take<PrepareSplit>(2).size() == 1);
    CHECK(world.take<PrepareSplit>(3).size() == 1);
    world.prepared(2, json);
    world.coordinator.handle(3, bad);
    CHECK(world.take<SplitRefused>(0).size() == 1);
    CHECK(world.take<SplitRefused>(1).size() == 1);
  }
  for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, OpenSplit{json, receiver, 2});
  CHECK(world.take<PrepareSplit>(2).size() == 1);
  world.prepared(2, json, 12, "cc");
  world.prepared(3, json, 12, "cc");
  for (const PeerId receiver : {0, 1}) {
    const auto opened = world.take<SplitOpened>(receiver);
    REQUIRE(opened.size() == 1);
    CHECK(opened[0].dataset_size == 12);
  }
  // A trainer that opens another split is still told how it differs, after a failure too.
  world.coordinator.handle(0, OpenSplit{json, 0, 2});
  world.coordinator.handle(1, OpenSplit{split_json({"splits.train.batch_size=8"}), 1, 2});
  CHECK(world.take<SplitRefused>(1).at(0).error.find("batch_size") != std::string::npos);
}

TEST_CASE("a split that no receiver has open any more is forgotten, at the loaders too") {
  World world;
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  world.open_at_both(json);
  for (const PeerId receiver : {0, 1}) REQUIRE(world.take<SplitOpened>(receiver).size() == 1);
  for (const PeerId loader : {2, 3}) CHECK(world.take<PrepareSplit>(loader).size() == 1);
  world.coordinator.handle(0, SplitClosed{fingerprint});
  CHECK(world.take<SplitClosed>(2).empty());
  world.coordinator.handle(0, SplitClosed{fingerprint});  // again: changes nothing
  OpenLeaseStream stream;
  stream.lease_stream = 7;
  stream.fingerprint = fingerprint;
  stream.replica = 1;
  world.coordinator.handle(1, stream);
  CHECK(world.take<LeaseStreamReady>(1).size() == 1);
  world.coordinator.handle(1, CloseLeaseStream{7});
  CHECK(world.take<SplitClosed>(2).empty());
  world.coordinator.handle(1, SplitClosed{fingerprint});
  for (const PeerId loader : {2, 3}) {
    const auto closed = world.take<SplitClosed>(loader);
    REQUIRE(closed.size() == 1);
    CHECK(closed[0].fingerprint == fingerprint);
    CHECK_FALSE(closed[0].failed);
  }
  // Whoever opens it then has the loaders asked again; one who goes before they answered is no reason to forget.
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 1});
  CHECK(world.take<PrepareSplit>(2).size() == 1);
  world.coordinator.handle(0, SplitClosed{fingerprint});
  world.prepared(2, json);
  CHECK(world.take<SplitClosed>(2).empty());
  world.coordinator.handle(1, OpenSplit{json, 1, 2, 0, 1});
  CHECK(world.take<PrepareSplit>(2).empty());
  world.prepared(3, json);
  CHECK(world.take<SplitOpened>(0).empty());
  CHECK(world.take<SplitOpened>(1).size() == 1);
  CHECK(world.take<SplitClosed>(2).empty());
  world.coordinator.handle(1, SplitClosed{fingerprint});
  CHECK(world.take<SplitClosed>(2).size() == 1);
  CHECK(world.take<SplitClosed>(3).size() == 1);
  world.coordinator.handle(1, SplitClosed{fingerprint});  // of a split that it does not know
  CHECK(world.take<SplitClosed>(2).empty());
  // One that could not be opened goes at once.
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 2});
  for (const PeerId loader : {2, 3}) world.cannot_open(loader, fingerprint, ErrorKind::dataset);
  CHECK(world.take<SplitRefused>(0).size() == 1);
  for (const PeerId loader : {2, 3}) CHECK(world.take<SplitClosed>(loader).at(0).failed);
}

TEST_CASE("who opens a split once more has the loaders look again; only what changed makes a second list") {
  World world;
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  const auto answer = [&](PeerId loader, Fingerprint which, bool same, const std::string& seen = "aa") {
    SplitPrepared m;
    m.fingerprint = which;
    m.good = true;
    m.same = same;
    m.dataset_size = same ? 0 : 11;
    m.dataset_fingerprint = same ? "" : seen;
    world.coordinator.handle(loader, m);
  };
  world.open_at_both(json);
  for (const PeerId receiver : {0, 1}) REQUIRE(world.take<SplitOpened>(receiver).at(0).fingerprint == fingerprint);
  for (const PeerId loader : {2, 3}) CHECK(world.take<PrepareSplit>(loader).size() == 1);

  // The second opening of both trainers: one look, and nothing has changed.
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 1, 5});
  const auto asked = world.take<PrepareSplit>(2);
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].like == fingerprint);
  CHECK(asked[0].fingerprint != fingerprint);
  CHECK(world.take<PrepareSplit>(3).size() == 1);
  answer(2, asked[0].fingerprint, true);
  CHECK(world.take<SplitOpened>(0).empty());
  answer(3, asked[0].fingerprint, true);
  auto opened = world.take<SplitOpened>(0);
  REQUIRE(opened.size() == 1);
  CHECK(opened[0].fingerprint == fingerprint);
  CHECK(opened[0].split == 5);
  CHECK(opened[0].dataset_size == 10);
  world.coordinator.handle(1, OpenSplit{json, 1, 2, 0, 1, 5});
  CHECK(world.take<PrepareSplit>(2).empty());
  CHECK(world.take<SplitOpened>(1).at(0).fingerprint == fingerprint);

  // The third: one loader sees a change at once, the other when it is asked again; the second trainer gets the same.
  world.coordinator.handle(1, OpenSplit{json, 1, 2, 0, 2, 6});
  const Fingerprint fresh = world.take<PrepareSplit>(2).at(0).fingerprint;
  (void)world.take<PrepareSplit>(3);
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 2, 6});
  answer(2, fresh, true);
  answer(3, fresh, false, "bb");
  const auto really = world.take<PrepareSplit>(2);
  REQUIRE(really.size() == 1);
  CHECK(really[0].fingerprint == fresh);
  CHECK(really[0].like == 0);
  CHECK(world.take<PrepareSplit>(3).empty());
  answer(2, fresh, false, "bb");
  for (const PeerId receiver : {0, 1}) {
    opened = world.take<SplitOpened>(receiver);
    REQUIRE(opened.size() == 1);
    CHECK(opened[0].fingerprint == fresh);
    CHECK(opened[0].dataset_size == 11);
  }
  // Iterations over the older list go on, until the last of its openings is closed.
  OpenLeaseStream stream;
  stream.lease_stream = 7;
  stream.fingerprint = fingerprint;
  world.coordinator.handle(0, stream);
  CHECK(world.take<LeaseStreamReady>(0).size() == 1);
  world.coordinator.handle(0, CloseLeaseStream{7});
  for (const PeerId receiver : {0, 1}) {
    for (const int32_t split : {0, 5}) {
      CHECK(world.take<SplitClosed>(2).empty());
      world.coordinator.handle(receiver, SplitClosed{fingerprint, false, split});
    }
  }
  CHECK(world.take<SplitClosed>(2).at(0).fingerprint == fingerprint);

  // A loader that is lost while it looks is not waited for; a folder that is gone refuses the new opening alone.
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 3, 7});
  const Fingerprint third = world.take<PrepareSplit>(2).at(0).fingerprint;
  world.coordinator.handle(0, SplitClosed{fresh, false, 6});
  world.coordinator.handle(1, SplitClosed{fresh, false, 6});
  CHECK(world.take<SplitClosed>(2).empty());  // it is being compared with
  answer(2, third, true);
  world.coordinator.peer_lost(3, "gone", true);
  CHECK(world.take<SplitOpened>(0).at(0).fingerprint == fresh);
  world.coordinator.handle(1, OpenSplit{json, 1, 2, 0, 4, 8});
  SplitPrepared bad;
  bad.fingerprint = world.take<PrepareSplit>(2).at(0).fingerprint;
  bad.error = "no folder";
  world.coordinator.handle(2, bad);
  CHECK(world.take<SplitRefused>(1).at(0).split == 8);
  CHECK(world.take<SplitClosed>(2).at(0).fingerprint == bad.fingerprint);
}

TEST_CASE("an impossible plan is refused when the split opens") {
  World world;
  const std::string json = split_json({"splits.train.batch_size=64", "splits.train.tail=drop"});
  world.join(2);
  world.join(3);
  world.coordinator.handle(0, OpenSplit{json, 0, 2});
  world.prepared(2, json);
  world.prepared(3, json);
  const auto refused = world.take<SplitRefused>(0);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error_kind == static_cast<int32_t>(ErrorKind::config));
}

TEST_CASE("leases carry exactly the plan's samples") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  PlanSpec spec;
  spec.dataset_size = 10;
  spec.num_replicas = 2;
  spec.batch_size = 4;
  spec.shuffle = true;
  for (const int64_t epoch : {0, 1, 5}) {
    const Plan plan(spec, epoch);
    for (const PeerId receiver : {0, 1}) {
      const LeaseStreamId stream = 100 + static_cast<LeaseStreamId>(epoch) * 10 + static_cast<LeaseStreamId>(receiver);
      world.coordinator.handle(receiver, OpenLeaseStream{stream, fingerprint_of(json), receiver, epoch, 0});
      const auto ready = world.take<LeaseStreamReady>(receiver);
      REQUIRE(ready.size() == 1);
      CHECK(ready[0].chunk_samples == 2);
      std::map<int64_t, std::vector<PlannedSample>> got;
      for (int64_t step = 0; step < plan.steps(); ++step) {
        world.coordinator.handle(receiver, BatchBufferFree{stream, step});
        got[step].resize(static_cast<size_t>(plan.batch_length(step)));
        for (const PeerId loader : {2, 3}) {
          for (const LeaseGranted& lease : world.take<LeaseGranted>(loader)) {
            CHECK(lease.receiver == receiver);
            CHECK(lease.epoch == epoch);
            for (size_t i = 0; i < lease.samples.size(); ++i) {
              got[lease.lease.step].at(static_cast<size_t>(lease.first_row) + i) = lease.samples[i];
            }
            world.coordinator.handle(loader, ChunkDone{lease.lease, 1000, 1, 1});
            world.coordinator.handle(receiver, ChunkTaken{lease.lease});
            world.coordinator.handle(loader, ChunkBufferFree{receiver});
          }
        }
      }
      for (int64_t step = 0; step < plan.steps(); ++step) CHECK(got[step] == plan.batch(step, receiver));
      world.coordinator.handle(receiver, CloseLeaseStream{stream});
    }
  }
}

TEST_CASE("an iteration in the program's own order: its samples, numbered as one replica's share") {
  World world;
  const std::string json = split_json({"splits.train.sampler={program: true, shuffle: false}"});
  world.open_at_both(json);
  CHECK(world.take<SplitOpened>(1).size() == 1);
  world.coordinator.handle(1, OpenLeaseStream{7, fingerprint_of(json), 1, 3, 0, {9, 2, 2, 0, 9}});
  REQUIRE(world.take<LeaseStreamReady>(1).size() == 1);
  std::vector<PlannedSample> got(5);
  for (int64_t step = 0; step < 2; ++step) {
    world.coordinator.handle(1, BatchBufferFree{7, step});
    for (const PeerId loader : {2, 3}) {
      for (const LeaseGranted& lease : world.take<LeaseGranted>(loader)) {
        CHECK(lease.replica == 1);
        CHECK(lease.epoch == 3);
        for (size_t i = 0; i < lease.samples.size(); ++i) {
          got.at(static_cast<size_t>(lease.lease.step * 4 + lease.first_row) + i) = lease.samples[i];
        }
        world.coordinator.handle(loader, ChunkDone{lease.lease, 1000, 1, 1});
        world.coordinator.handle(1, ChunkTaken{lease.lease});
        world.coordinator.handle(loader, ChunkBufferFree{1});
      }
    }
  }
  // Positions (step * 4 + row) * 2 + 1; occurrences count up within the share.
  CHECK(got == std::vector<PlannedSample>{{1, 9, 0}, {3, 2, 0}, {5, 2, 1}, {7, 0, 0}, {9, 9, 1}});
  world.coordinator.handle(0, OpenLeaseStream{8, fingerprint_of(json), 0, 3, 0, {9, 10}});
  const auto failed = world.take<LeaseStreamFailed>(0);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::dataset));
  CHECK(failed[0].error.find("index 10 at position 1") != std::string::npos);
}

TEST_CASE("the numbers of a sampler's file are the coordinator's to read and to check") {
  World world;
  TemporaryFolder folder;
  folder.write("order.txt", "3\n1\n3\n0\n");
  const auto json_of = [&] {
    const Job job = parse_job(
        "splits:\n  train:\n    mode: train\n    dataset: {folder: /data}\n    pipeline: [{CenterCrop: {size: 4}}]\n"
        "    sampler: {indices: " +
            folder.path("order.txt") + "}\n    batch_size: 2\n",
        "job.yaml");
    return canonical_json(with_sampler_file(resolve_split(job, "train")));
  };
  const std::string json = json_of();
  world.coordinator.handle(1, OpenSplit{json, 0, 2});
  world.coordinator.handle(1, SplitClosed{0});  // by a program that does not wait for its file
  world.open_at_both(json);
  REQUIRE(world.take<SplitOpened>(0).size() == 1);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{1, 0});
  std::vector<PlannedSample> got;
  for (const PeerId loader : {2, 3}) {
    for (const LeaseGranted& lease : world.take<LeaseGranted>(loader)) {
      got.insert(got.end(), lease.samples.begin(), lease.samples.end());
    }
  }
  CHECK(got == std::vector<PlannedSample>{{0, 3, 0}, {2, 3, 1}});

  folder.write("order.txt", "3\n1\n3\n10\n");  // outside the dataset of 10
  const std::string outside = json_of();
  World fresh;
  fresh.open_at_both(outside);
  const auto refused = fresh.take<SplitRefused>(0);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error.find("index 10 at position 3") != std::string::npos);

  folder.write("order.txt", "0\n");  // changed since the program read it
  World late;
  late.coordinator.handle(0, OpenSplit{outside, 0, 2});
  late.go_on_until<SplitRefused>(0);
  const auto changed = late.take<SplitRefused>(0);
  REQUIRE(changed.size() == 1);
  CHECK(changed[0].error.find("holds other numbers") != std::string::npos);
}

TEST_CASE("a plan that takes long keeps nobody waiting, and what was said of its iteration is heard when it is there") {
  World world;
  const std::string json = split_json();
  constexpr int64_t size = 1 << 22;
  world.open_at_both(json, size);
  world.take<SplitOpened>(0);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, CursorAt{1, 0, true});
  world.coordinator.handle(0, BatchBufferFree{1, 0});
  world.coordinator.handle(1, OpenLeaseStream{2, fingerprint_of(json), 1, 0, 0});
  world.coordinator.handle(1, CloseLeaseStream{2});  // given up before it began
  world.coordinator.handle(2, Alive{});
  world.coordinator.tick();
  CHECK(world.take<LeaseStreamReady>(0).empty());
  CHECK(world.take<LeaseGranted>(2).empty());
  world.go_on_until<LeaseStreamReady>(0);
  CHECK(world.take<LeaseStreamReady>(0).size() == 1);
  CHECK(world.take<LeaseStreamReady>(1).empty());
  const auto leases = world.take<LeaseGranted>(2);
  REQUIRE(leases.size() == 1);
  const auto plan = epoch_plan(split_from_json(json), SamplerNumbers{}, size, 2, 0);
  CHECK(leases[0].samples[0] == plan->batch(0, 0)[0]);
}

TEST_CASE("lease streams that cannot be are refused; messages about lease streams that ended are ignored") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{1, 12345, 0, 0, 0});
  CHECK(world.take<LeaseStreamFailed>(0).size() == 1);
  world.coordinator.handle(0, OpenLeaseStream{2, fingerprint_of(json), 0, int64_t{1} << 40, 0});
  const auto failed = world.take<LeaseStreamFailed>(0);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::usage));
  world.coordinator.handle(0, BatchBufferFree{2, 0});
  world.coordinator.handle(0, CursorAt{2, 1, true});
  world.coordinator.handle(0, ChunkTaken{{2, 0, 0, 0}});
  world.coordinator.handle(0, CloseLeaseStream{2});
  CHECK(world.take<LeaseGranted>(2).empty());
  CHECK_THROWS_AS(world.coordinator.handle(2, Goodbye{}), Error);
}

TEST_CASE("a loader that asks to leave is let go when it holds nothing; the last one stays until another comes") {
  World world;
  world.open_at_both(split_json());
  world.sent.clear();
  world.coordinator.handle(2, LoaderLeaving{"SIGTERM"});
  CHECK(world.take<Leave>(2).size() == 1);
  world.coordinator.handle(3, LoaderLeaving{"SIGTERM"});
  CHECK(world.take<Leave>(3).empty());
  world.coordinator.reported(2);
  const auto goodbyes = world.take<Goodbye>(2);
  REQUIRE(goodbyes.size() == 1);
  CHECK(goodbyes[0].good);
  CHECK(goodbyes[0].exit_code == 0);
  CHECK_FALSE(goodbyes[0].all_alive);
  for (const PeerId receiver : {0, 1}) {
    const auto gone = world.take<LoaderGone>(receiver);
    REQUIRE(gone.size() == 1);
    CHECK(gone[0].loader == 2);
    CHECK(gone[0].left);
  }
  world.coordinator.peer_lost(2, "its socket closed", true);  // as it must
  CHECK(world.take<LoaderGone>(0).empty());
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{3});
  CHECK(world.coordinator.figures().lost.empty());
  REQUIRE(world.coordinator.figures().left.size() == 1);
  CHECK(world.coordinator.figures().left[0].find("rank 2 (loader): SIGTERM") == 0);
  CHECK(world.take<Leave>(3).empty());
  world.join(4);
  CHECK(world.take<Leave>(3).size() == 1);
  world.coordinator.reported(4);  // that was not told to leave
  CHECK(world.take<Goodbye>(4).empty());
}

TEST_CASE("a loader that asks to leave stays until another one has been heard of since") {
  World world;
  world.open_at_both(split_json());
  world.clock.advance(kMillisecond);
  world.coordinator.handle(2, LoaderLeaving{"SIGTERM"});  // rank 3 may have been stopped a moment ago
  CHECK(world.take<Leave>(2).empty());
  world.clock.advance(kMillisecond);
  world.coordinator.handle(2, Alive{});
  CHECK(world.take<Leave>(2).empty());
  world.coordinator.handle(3, Alive{});
  CHECK(world.take<Leave>(2).size() == 1);
}

TEST_CASE("a dead loader's leases go to the living; with the last one, opening fails by name") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{1, 0});
  const size_t of_two = world.take<LeaseGranted>(2).size();
  const size_t of_three = world.take<LeaseGranted>(3).size();
  CHECK(of_two + of_three == 2);
  world.coordinator.peer_lost(2, "its socket closed", true);
  world.coordinator.peer_lost(2, "again", true);
  CHECK(world.take<LeaseGranted>(3).size() == of_two);
  for (const PeerId receiver : {0, 1}) {  // who may have been promised what is on its GPUs
    const auto gone = world.take<LoaderGone>(receiver);
    REQUIRE(gone.size() == 1);
    CHECK(gone[0].loader == 2);
  }
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{3});
  CHECK(world.coordinator.figures().lost.size() == 1);
  world.coordinator.peer_lost(3, "its socket closed", true);
  const std::string other = split_json({"splits.train.batch_size=2"});
  world.coordinator.handle(0, OpenSplit{other, 0, 2, 0, 1});
  const auto refused = world.take<SplitRefused>(0);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
}

TEST_CASE("loaders that die before they joined, or before they answered, keep nobody waiting") {
  World world;
  const std::string json = split_json();
  world.coordinator.handle(0, OpenSplit{json, 0, 2});
  world.coordinator.peer_lost(2, "never came", true);
  CHECK(world.take<SplitRefused>(0).empty());  // the other may still come
  world.join(3);
  world.coordinator.peer_lost(3, "died while listing", true);
  REQUIRE(world.take<SplitRefused>(0).size() == 1);
}

TEST_CASE("when the last program has gone, what it said is forgotten, and a split that failed is asked for again") {
  World world;
  const std::string json = split_json();
  const std::string other = split_json({"splits.train.batch_size=8"});
  CHECK_FALSE(world.coordinator.idle_since().has_value());
  world.join(2);
  world.join(3);
  for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, ProgramsAt{1});
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 1, 0});
  SplitPrepared missing;
  missing.fingerprint = fingerprint_of(json);
  missing.error_kind = static_cast<int32_t>(ErrorKind::dataset);
  missing.error = "no such folder";
  world.coordinator.handle(2, missing);
  world.prepared(3, json);
  CHECK(world.take<SplitRefused>(0).size() == 1);
  (void)world.take<PrepareSplit>(2);
  // Whoever opens it after that has the loaders look again; what the others opened is compared as before.
  world.coordinator.handle(0, ProgramsAt{0});
  CHECK_FALSE(world.coordinator.idle_since().has_value());
  world.coordinator.handle(1, OpenSplit{json, 1, 2, 1, 0});
  CHECK(world.take<SplitRefused>(1).empty());
  CHECK(world.take<PrepareSplit>(2).size() == 1);
  world.coordinator.handle(2, missing);
  world.prepared(3, json);
  CHECK(world.take<SplitRefused>(1).size() == 1);
  world.coordinator.handle(1, OpenSplit{other, 1, 2, 1, 1});
  CHECK(world.take<PrepareSplit>(2).size() == 1);
  // The second program of receiver 0 is not compared with the first of receiver 1.
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 2, 1});
  CHECK(world.take<SplitRefused>(0).empty());
  CHECK(world.take<PrepareSplit>(2).size() == 1);
  world.coordinator.handle(2, missing);
  world.prepared(3, json);
  CHECK(world.take<SplitRefused>(0).size() == 1);
  world.clock.advance(kSecond);
  world.coordinator.handle(1, ProgramsAt{0});
  CHECK(world.coordinator.idle_since() == world.clock.now());
  for (const PeerId receiver : {0, 1}) {
    world.coordinator.handle(receiver, ProgramsAt{1});
    world.coordinator.handle(receiver, OpenSplit{json, receiver, 2, 7, 0});
  }
  CHECK_FALSE(world.coordinator.idle_since().has_value());
  CHECK(world.take<PrepareSplit>(2).size() == 1);
  CHECK(world.take<PrepareSplit>(3).size() >= 1);
  world.prepared(2, json);
  world.prepared(3, json);
  CHECK(world.take<SplitOpened>(0).size() == 1);
  CHECK(world.take<SplitOpened>(1).size() == 1);
}

TEST_CASE("a trainer that begins where the others did not is told so; the first goes on") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 3, 1});
  world.coordinator.handle(1, OpenLeaseStream{2, fingerprint_of(json), 1, 0, 0});
  CHECK(world.take<LeaseStreamReady>(0).size() == 1);
  CHECK(world.take<LeaseStreamFailed>(0).empty());
  const auto failed = world.take<LeaseStreamFailed>(1);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].error.find("at epoch 0, step 0, where trainer 0 began at epoch 3, step 1") != std::string::npos);
  CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::usage));
}

TEST_CASE("the rest of an iteration, by another lease stream, is no beginning that others would be compared with") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 3, 0});
  world.coordinator.handle(0, CloseLeaseStream{1});
  OpenLeaseStream rest{2, fingerprint_of(json), 0, 3, 1};
  rest.again = true;
  world.coordinator.handle(0, rest);
  CHECK(world.take<LeaseStreamReady>(0).size() == 2);
  world.coordinator.handle(0, BatchBufferFree{2, 1});
  CHECK_FALSE(world.take<LeaseGranted>(2).empty());
  world.coordinator.handle(1, OpenLeaseStream{3, fingerprint_of(json), 1, 3, 0});
  world.coordinator.handle(1, OpenLeaseStream{4, fingerprint_of(json), 1, 4, 0});
  CHECK(world.take<LeaseStreamFailed>(1).empty());
}

TEST_CASE("a silent loader is given up, and its lease streams fail after a while when nobody is left") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{1, 0});
  std::vector<LeaseStreamFailed> failed;
  for (int i = 0; i < 600 && failed.empty(); ++i) {
    world.clock.advance(100 * kMillisecond);
    world.coordinator.tick();
    failed = world.take<LeaseStreamFailed>(0);
  }
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
  CHECK(world.coordinator.figures().lost.size() == 2);
  CHECK(world.coordinator.living_loaders().empty());
}

TEST_CASE("where the coordinator itself stood still nobody is given up for it") {
  World world;
  world.join(2);
  world.join(3);
  world.clock.advance(30 * kSecond);
  world.coordinator.tick();
  CHECK(world.coordinator.living_loaders().size() == 2);
  world.coordinator.handle(2, Alive{});  // what lay unread
  world.clock.advance(100 * kMillisecond);
  world.coordinator.tick();
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2});
}

TEST_CASE("a coordinator whose turns always take long gives up who is silent, and finds that nobody is left") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{1, 0});
  const auto turns = [&](int count) {
    for (int i = 0; i < count; ++i) {
      world.clock.advance(1100 * kMillisecond);
      world.coordinator.tick();
      for (const PeerId loader : world.coordinator.living_loaders()) {
        if (loader == 2) world.coordinator.handle(2, Alive{});
      }
    }
  };
  turns(20);
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2});
  world.coordinator.peer_lost(2, "its socket closed", true);
  turns(20);
  CHECK(world.take<LeaseStreamFailed>(0).size() == 1);
  CHECK_FALSE(world.coordinator.all_lost().empty());
}

TEST_CASE("a loader that was given up is fenced until it joins again as its next incarnation") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{1, fingerprint_of(json), 0, 0, 0});
  for (int64_t step = 0; step < 2; ++step) world.coordinator.handle(0, BatchBufferFree{1, step});
  const auto held = world.take<LeaseGranted>(3);
  REQUIRE(held.size() == 1);
  (void)world.take<LeaseGranted>(2);
  (void)world.take<PrepareSplit>(3);
  world.clock.advance(3 * kSecond);
  world.coordinator.peer_lost(3, "silent for 10.0 s", false);
  REQUIRE(world.take<GivenUp>(3).size() == 1);
  for (const PeerId receiver : {0, 1}) {
    const auto gone = world.take<LoaderGone>(receiver);
    REQUIRE(gone.size() == 1);
    CHECK(!gone[0].dead);
  }
  world.coordinator.peer_lost(3, "silent for 12.0 s", false);  // it is known
  CHECK(world.take<GivenUp>(3).empty());

  // What it says of its old life changes nothing, its first hello included.
  world.coordinator.handle(3, ChunkDone{held[0].lease, 1000, 1, 1});
  world.coordinator.handle(3, ChunkBufferFree{0});
  world.coordinator.handle(3, LoaderHello{8, 2, 1});
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2});
  CHECK(world.take<LeaseGranted>(3).empty());
  CHECK(world.take<PrepareSplit>(3).empty());

  CHECK(world.coordinator.figures().back.empty());

  world.clock.advance(2 * kSecond);
  world.coordinator.handle(3, LoaderHello{8, 2, 1, 1});
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2, 3});
  CHECK(world.coordinator.figures().back == std::vector<std::string>{"rank 3 (loader)"});
  CHECK(world.take<PrepareSplit>(3).size() == 1);  // it has dropped its splits, and is asked again
  CHECK(world.take<LeaseGranted>(3).size() == 1);  // what it had is not made yet, and waits
  REQUIRE(world.coordinator.figures().lost.size() == 1);
  CHECK(world.coordinator.figures().lost[0] ==
        "rank 3 (loader): silent for 10.0 s; 3.0 s after the start, with 1 chunk in hand; back after 2.0 s");

  // However often that happens, the last times are listed and all are counted.
  for (int32_t life = 2; life < 1100; ++life) {
    world.coordinator.peer_lost(3, "silent for 10.0 s", false);
    world.coordinator.handle(3, LoaderHello{8, 2, 1, life});
  }
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2, 3});
  CHECK(world.coordinator.figures().losses == 1099);
  CHECK(world.coordinator.figures().lost.size() == Coordinator::kMostListed);
  (void)world.take<GivenUp>(3);

  // Another silence is another incarnation; and what was silent may turn out to be dead.
  world.coordinator.peer_lost(3, "silent for 10.0 s", false);
  CHECK(world.take<GivenUp>(3).at(0).incarnation == 1100);
  (void)world.take<LoaderGone>(0);
  world.coordinator.peer_lost(3, "its process ended", true);
  CHECK(world.take<LoaderGone>(0).at(0).dead);
  world.coordinator.handle(3, LoaderHello{8, 2, 1, 1100});
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2});
  CHECK(world.coordinator.figures().losses == 1100);
  CHECK(world.coordinator.figures().back.empty());
}

// Where each node's disks have some of the samples. Ten of them, in batches of four for each of two receivers.
std::string local_json(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = {"splits.train.dataset.index=/data.index", "splits.train.dataset.local=true"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return split_json(all);
}
void holds(World& world, PeerId loader, const std::string& json, std::vector<int64_t> bounds,
           const std::string& lacking = "'/data/7.tar'", int64_t size = 10, const std::string& fingerprint = "aa") {
  SplitPrepared m;
  m.fingerprint = fingerprint_of(json);
  m.good = true;
  m.dataset_size = size;
  m.dataset_fingerprint = fingerprint;
  m.partial = true;
  m.readable = std::move(bounds);
  m.lacking = lacking;
  world.coordinator.handle(loader, m);
}
void open_at_both(World& world, const std::string& json) {
  for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, OpenSplit{json, receiver, 2});
}

void join_and_open(World& world, const std::string& json) {
  for (const PeerId loader : {2, 3}) world.join(loader);
  open_at_both(world, json);
}

TEST_CASE("a loader is granted samples that it can read, and batches are what they are elsewhere") {
  World world;
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 2, json, {0, 5});
  holds(world, 3, json, {3, 10});
  REQUIRE(world.take<SplitOpened>(0).size() == 1);
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  const auto ready = world.take<LeaseStreamReady>(0);
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].by_holder);
  const Job job = parse_job(
      "splits:\n  train:\n    mode: train\n    dataset: {folder: /data}\n    sampler: {shuffle: true}\n"
      "    pipeline: [{CenterCrop: {size: 4}}]\n    batch_size: 4\n",
      "job.yaml");
  const auto plan = epoch_plan(resolve_split(job, "train"), {}, 10, 2, 0);
  for (int64_t step = 0; step < plan->steps(); ++step) {
    world.coordinator.handle(0, BatchBufferFree{7, step});
    BatchPlan batch(static_cast<size_t>(plan->batch_length(step)));
    size_t seen = 0;
    // As chunks are made others are granted.
    for (bool any = true; any;) {
      any = false;
      for (const PeerId loader : {2, 3}) {
        for (const LeaseGranted& lease : world.take<LeaseGranted>(loader)) {
          any = true;
          REQUIRE(lease.lease.step == step);
          CHECK(lease.samples.size() <= 2);
          for (const PlannedSample& sample : lease.samples) {
            CHECK((loader == 2 ? sample.index < 5 : sample.index >= 3));
            const auto row = static_cast<size_t>(sample.position / 2 - step * 4);
            REQUIRE(row < batch.size());
            if (&sample == &lease.samples.front()) CHECK(static_cast<int32_t>(row) == lease.first_row);
            batch[row] = sample;
            ++seen;
          }
          world.coordinator.handle(loader, ChunkDone{lease.lease, 1, 1, 1});
          world.coordinator.handle(0, ChunkTaken{lease.lease});
          world.coordinator.handle(loader, ChunkBufferFree{0});
        }
      }
    }
    CHECK(seen == batch.size());
    CHECK(batch == plan->batch(step, 0));
  }
}

TEST_CASE(
    "a split with samples that no loader can read is refused by name, when all loaders have said what they have") {
  World world;
  const std::string json = local_json();
  open_at_both(world, json);
  world.join(2);
  holds(world, 2, json, {0, 5});
  CHECK(world.take<SplitRefused>(0).empty());  // the other may have the rest
  world.join(3);
  holds(world, 3, json, {3, 7, 9, 10}, "'/data/x.tar' and 2 other files");
  for (const PeerId receiver : {0, 1}) {
    const auto refused = world.take<SplitRefused>(receiver);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].error_kind == static_cast<int32_t>(ErrorKind::dataset));
    CHECK(refused[0].error ==
          "no loader can read 2 of the 10 samples of split 'train', the first being number 7; rank 2 (loader) lacks "
          "'/data/7.tar'; rank 3 (loader) lacks '/data/x.tar' and 2 other files");
  }
}

TEST_CASE("where a loader was lost before the split was open, that is why nobody can read its samples") {
  World world;
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 3, json, {5, 10});
  world.coordinator.peer_lost(3, "killed", true);
  SUBCASE("one") {
    holds(world, 2, json, {0, 5});
    const auto refused = world.take<SplitRefused>(0);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
    CHECK(refused[0].error.ends_with("rank 2 (loader) lacks '/data/7.tar'; rank 3 (loader) was lost"));
  }
  SUBCASE("all") {
    world.coordinator.peer_lost(2, "killed", true);
    const auto refused = world.take<SplitRefused>(0);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].error == "no loader is left that could read split 'train'");
    CHECK(world.coordinator.all_lost() == refused[0].error);  // which the job ends by
  }
}

// A job that waits for a minute when all its loaders are lost.
struct WaitingWorld : World {
  WaitingWorld() : World(waiting_options()) {}
  static CoordinatorOptions waiting_options() {
    CoordinatorOptions options = World::options();
    options.balancer.on_all_lost = AllLostPolicy::wait;
    options.balancer.wait_s = 60;
    return options;
  }
  int32_t give_up(PeerId loader) {
    coordinator.peer_lost(loader, "silent for 10.0 s", false);
    const auto given_up = take<GivenUp>(loader);
    REQUIRE(given_up.size() == 1);
    return given_up[0].incarnation;
  }
  void come_back(PeerId loader, int32_t incarnation) { coordinator.handle(loader, LoaderHello{8, 2, 1, incarnation}); }
  void wait(Nanoseconds time) {
    for (const Nanoseconds end = clock.now() + time; clock.now() < end;) {
      clock.advance(100 * kMillisecond);
      for (const PeerId loader : coordinator.living_loaders()) coordinator.handle(loader, Alive{});
      coordinator.tick();
    }
  }
  bool undecided() {
    return take<SplitRefused>(0).empty() && take<SplitOpened>(0).empty() && coordinator.all_lost().empty();
  }
  void check_refused(const std::string& error) {
    const auto refused = take<SplitRefused>(0);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
    CHECK(refused[0].error == error);
    CHECK(coordinator.all_lost() == error);  // which the job ends by
  }
};

TEST_CASE("a split that is opened while all loaders are lost waits for one to come back, where the job does") {
  WaitingWorld world;
  const std::string json = split_json();
  world.join(2);
  world.join(3);
  SUBCASE("it is opened after the loss") {
    (void)world.give_up(2);
    const int32_t incarnation = world.give_up(3);
    world.wait(20 * kSecond);
    world.coordinator.handle(0, OpenSplit{json, 0, 2});
    world.wait(39 * kSecond);
    CHECK(world.undecided());
    SUBCASE("one comes back") {
      world.come_back(3, incarnation);
      REQUIRE(world.take<PrepareSplit>(3).size() == 1);
      CHECK(world.undecided());
      world.prepared(3, json);
      CHECK(world.take<SplitOpened>(0).size() == 1);
      world.wait(60 * kSecond);
      CHECK(world.undecided());
    }
    SUBCASE("nobody comes") {
      world.wait(2 * kSecond);
      world.check_refused("no loader is left that could read split 'train', and none joined within 60.0 s");
    }
  }
  SUBCASE("it was being opened") {
    world.coordinator.handle(0, OpenSplit{json, 0, 2});
    (void)world.give_up(2);
    world.wait(20 * kSecond);  // which count from the last loss on
    const int32_t incarnation = world.give_up(3);
    (void)world.take<PrepareSplit>(3);
    world.wait(59 * kSecond);
    CHECK(world.undecided());
    SUBCASE("one comes back") {
      world.come_back(3, incarnation);
      REQUIRE(world.take<PrepareSplit>(3).size() == 1);
      world.prepared(3, json);
      CHECK(world.take<SplitOpened>(0).size() == 1);
    }
    SUBCASE("nobody comes") {
      world.wait(2 * kSecond);
      world.check_refused("no loader is left that could read split 'train', and none joined within 60.0 s");
    }
  }
}

TEST_CASE("a job that waits for lost loaders ends where all of them are dead, because none can come back") {
  WaitingWorld world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{7, 0});
  world.coordinator.handle(0, OpenSplit{split_json({"splits.train.batch_size=2"}), 0, 2, 0, 1, 5});
  world.coordinator.peer_lost(2, "its socket closed", true);
  std::string reason = "its socket closed";
  SUBCASE("all were killed") {
    world.coordinator.peer_lost(3, reason, true);
    world.wait(kSecond);
    CHECK(world.take<LeaseStreamFailed>(0).empty());
    world.wait(kSecond);
  }
  SUBCASE("one was silent before") {
    (void)world.give_up(3);
    world.wait(20 * kSecond);
    CHECK(world.take<LeaseStreamFailed>(0).empty());
    CHECK(world.take<SplitRefused>(0).empty());
    world.coordinator.peer_lost(3, reason, true);
    world.wait(kSecond);
    reason = "silent for 10.0 s";
  }
  const auto failed = world.take<LeaseStreamFailed>(0);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
  CHECK(failed[0].error ==
        "no loader is left, and none can come back, because their processes have ended; the last one was rank 3 "
        "(loader), lost: " +
            reason);
  CHECK(world.coordinator.all_lost() == failed[0].error);
  CHECK(world.take<SplitRefused>(0).at(0).error == "no loader is left that could read split 'train'");
}

TEST_CASE("a split waits for the lost loader that alone can read some of its samples, where the job does") {
  WaitingWorld world;
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 2, json, {0, 5});
  const int32_t incarnation = world.give_up(3);
  world.wait(59 * kSecond);
  CHECK(world.undecided());
  SUBCASE("it comes back") {
    world.come_back(3, incarnation);
    CHECK(world.undecided());
    holds(world, 3, json, {5, 10});
    CHECK(world.take<SplitOpened>(0).size() == 1);
  }
  SUBCASE("it does not") {
    world.wait(2 * kSecond);
    world.check_refused(
        "no loader can read 5 of the 10 samples of split 'train', the first being number 5; rank 2 (loader) lacks "
        "'/data/7.tar'; rank 3 (loader) was lost");
  }
  SUBCASE("the other is lost as well") {
    (void)world.give_up(2);
    world.wait(59 * kSecond);
    CHECK(world.undecided());
    world.wait(2 * kSecond);
    world.check_refused("no loader is left that could read split 'train', and none joined within 60.0 s");
  }
}

TEST_CASE("what a lost loader had may come with one that is still to join") {
  CoordinatorOptions options = World::options();
  options.loaders.push_back(4);
  options.nodes.push_back(0);
  World world(options);
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 3, json, {5, 10});
  world.coordinator.peer_lost(3, "killed", true);
  holds(world, 2, json, {0, 5});
  CHECK(world.take<SplitRefused>(0).empty());
  CHECK(world.take<SplitOpened>(0).empty());
  world.join(4);
  SUBCASE("it does") {
    holds(world, 4, json, {5, 10});
    CHECK(world.take<SplitOpened>(0).size() == 1);
  }
  SUBCASE("it does not") {
    holds(world, 4, json, {0, 5});
    CHECK(world.take<SplitRefused>(0).size() == 1);
  }
}

TEST_CASE("ranges that cannot be are a broken protocol") {
  World world;
  const std::string json = local_json();
  world.join(2);
  open_at_both(world, json);
  CHECK_THROWS_AS(holds(world, 2, json, {5, 3}), Error);
  CHECK_THROWS_AS(holds(world, 2, json, {0, 11}), Error);
}

TEST_CASE("what stands in for a bad sample may lie anywhere, so substitutes are refused where loaders have some each") {
  for (const bool all : {false, true}) {
    CAPTURE(all);
    World world;
    const std::string json = local_json({"on_error=substitute"});
    join_and_open(world, json);
    holds(world, 2, json, {0, 10});
    holds(world, 3, json, {0, all ? 10 : 7});
    CHECK(world.take<SplitRefused>(0).size() == (all ? 0 : 1));
    CHECK(world.take<SplitOpened>(0).size() == (all ? 1 : 0));
  }
}

TEST_CASE("losing the last loader that can read a sample fails the lease streams that need it, by name") {
  World world;
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 2, json, {0, 6});
  holds(world, 3, json, {4, 10});
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{7, 0});
  world.coordinator.handle(0, BatchBufferFree{7, 1});
  world.coordinator.peer_lost(3, "its socket closed", true);
  for (int i = 0; i < 40 && world.coordinator.all_lost().empty(); ++i) {
    CHECK(world.take<LeaseStreamFailed>(0).empty());
    world.clock.advance(100 * kMillisecond);
    world.coordinator.handle(2, Alive{});
    world.coordinator.tick();
  }
  const auto failed = world.take<LeaseStreamFailed>(0);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
  CHECK(failed[0].error.find("of split 'train'") != std::string::npos);
  CHECK(failed[0].error.find("no loader is left that has it on its disks; the last one was rank 3 (loader), lost: its "
                             "socket closed") != std::string::npos);
  const int64_t sample = std::stoll(failed[0].error.substr(7));
  CHECK((sample >= 6 && sample < 10));
  CHECK(world.coordinator.all_lost() == failed[0].error);
}

TEST_CASE("a loader that comes later, or back, is given what it can read once it has said so") {
  World world;
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 2, json, {0, 5});
  holds(world, 3, json, {5, 10});
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{7, 0});
  world.coordinator.handle(0, BatchBufferFree{7, 1});
  size_t had = world.take<LeaseGranted>(3).size();
  CHECK(had > 0);
  world.coordinator.peer_lost(3, "silent", false);
  const int32_t incarnation = world.take<GivenUp>(3).at(0).incarnation;
  world.coordinator.handle(3, LoaderHello{8, 2, 1, incarnation});
  CHECK(world.take<LeaseGranted>(3).empty());
  REQUIRE(world.take<PrepareSplit>(3).size() == 2);  // the first one, and again
  SUBCASE("with the same files") {
    holds(world, 3, json, {5, 10});
    CHECK(world.take<LeaseGranted>(3).size() == had);
  }
  SUBCASE("with more") {
    holds(world, 3, json, {2, 10});
    CHECK(world.take<LeaseGranted>(3).size() == had);
  }
  SUBCASE("with another index: that is another data set") {
    holds(world, 3, json, {5, 10}, "", 10, "bb");
    CHECK(world.take<LeaseGranted>(3).empty());
  }
  SUBCASE("with fewer: what is cut already it can read in part only, and a new iteration it can") {
    holds(world, 3, json, {6, 10});
    CHECK(world.take<LeaseGranted>(3).empty());
    world.join(4);
    holds(world, 4, json, {5, 10});
    CHECK(world.take<LeaseGranted>(4).size() == had);
    world.coordinator.handle(1, OpenLeaseStream{8, fingerprint_of(json), 1, 0, 0});
    world.coordinator.handle(1, BatchBufferFree{8, 0});
    world.coordinator.handle(1, BatchBufferFree{8, 1});
    CHECK(world.take<LeaseGranted>(3).size() > 0);
  }
}

TEST_CASE("a loader that asks to leave stays while it is the last that can read something") {
  World world;
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 2, json, {0, 10});
  holds(world, 3, json, {5, 10});
  world.coordinator.handle(2, LoaderLeaving{"SIGTERM"});
  CHECK(world.take<Leave>(2).empty());
  SUBCASE("the other one may go") {
    world.coordinator.handle(3, LoaderLeaving{"SIGTERM"});
    CHECK(world.take<Leave>(3).size() == 1);
  }
  SUBCASE("until somebody comes who can, too") {
    world.join(4);
    CHECK(world.take<Leave>(2).empty());
    holds(world, 4, json, {0, 6});
    CHECK(world.take<Leave>(2).size() == 1);
  }
  SUBCASE("until nobody has the split open") {
    for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, SplitClosed{0, false, 0});
    CHECK(world.take<Leave>(2).size() == 1);
  }
}

TEST_CASE("a split opens without a loader whose listing hangs, which is granted leases once it has answered") {
  CoordinatorOptions options = World::options();
  options.balancer.lost_after_s = 30;
  World world(options);
  const std::string json = split_json();
  join_and_open(world, json);
  world.prepared(2, json);
  world.pass(9900 * kMillisecond);
  CHECK(world.notices.empty());
  world.pass(200 * kMillisecond);
  REQUIRE(world.notices.size() == 1);
  CHECK(
      world.notices[0].starts_with("rank 0, rank 1 (trainer) waited 10 s for split 'train', of whose files there is no "
                                   "list yet from rank 3 (loader)"));
  world.pass(19 * kSecond);
  CHECK(world.notices.size() == 1);
  CHECK(world.take<SplitOpened>(0).empty());
  world.pass(kSecond);
  for (const PeerId receiver : {0, 1}) CHECK(world.take<SplitOpened>(receiver).size() == 1);
  REQUIRE(world.notices.size() == 2);
  CHECK(world.notices[1].find("split 'train' does not wait any longer for rank 3 (loader)") == 0);
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2, 3});

  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  REQUIRE(world.take<LeaseStreamReady>(0).size() == 1);
  for (int64_t step = 0; step < 2; ++step) world.coordinator.handle(0, BatchBufferFree{7, step});
  world.pass(5 * kSecond);
  CHECK(world.take<LeaseGranted>(2).size() == 2);
  CHECK(world.take<LeaseGranted>(3).empty());
  SUBCASE("with the same files") {
    world.prepared(3, json);
    CHECK(world.take<LeaseGranted>(3).size() > 0);
    CHECK(world.take<PrepareSplit>(3).size() == 1);
  }
  SUBCASE("with other files: it is granted nothing, and the next opening is refused by its name") {
    world.prepared(3, json, 9, "bb");
    world.coordinator.handle(1, OpenLeaseStream{8, fingerprint_of(json), 1, 0, 0});
    world.coordinator.handle(1, BatchBufferFree{8, 0});
    world.pass(kSecond);
    CHECK(world.take<LeaseGranted>(3).empty());
    CHECK(world.take<LeaseStreamFailed>(0).empty());
    world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 1, 5});
    const auto refused = world.take<SplitRefused>(0);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].error.find("rank 3 (loader) sees another dataset") == 0);
  }
  SUBCASE("where the others are lost meanwhile, nobody waits for it for ever") {
    world.coordinator.peer_lost(2, "its socket closed", true);
    world.pass(5 * kSecond);
    const auto failed = world.take<LeaseStreamFailed>(0);
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
    CHECK(failed[0].error.find("the loaders that live have not opened the split") != std::string::npos);
  }
  SUBCASE("where it is given up and comes back") {
    CHECK_FALSE(world.coordinator.any_away());
    world.coordinator.peer_lost(3, "silent", false);
    CHECK(world.coordinator.any_away());
    world.coordinator.handle(3, LoaderHello{8, 2, 1, 1});
    CHECK_FALSE(world.coordinator.any_away());
    CHECK(world.take<LeaseGranted>(3).empty());
    world.prepared(3, json);
    CHECK(world.take<LeaseGranted>(3).size() > 0);
  }
}

TEST_CASE("a loader that is back and cannot open the split costs nobody the split, and is asked again") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  for (const PeerId receiver : {0, 1}) CHECK(world.take<SplitOpened>(receiver).size() == 1);
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  world.coordinator.peer_lost(3, "silent", false);
  world.coordinator.handle(3, LoaderHello{8, 2, 1, 1});
  world.notices.clear();
  CHECK(world.take<PrepareSplit>(3).size() == 2);  // at first, and as it came back
  world.cannot_open(3, fingerprint_of(json));
  REQUIRE(world.notices.size() == 1);
  CHECK(world.notices[0].find("rank 3 (loader) cannot open split 'train', takes no part in it") == 0);
  world.pass(9 * kSecond);
  CHECK(world.take<PrepareSplit>(3).empty());
  world.pass(2 * kSecond);
  CHECK(world.take<PrepareSplit>(3).size() == 1);
  world.cannot_open(3, fingerprint_of(json));
  CHECK(world.notices.size() == 1);
  SUBCASE("where the others are lost meanwhile it is asked at once") {
    world.coordinator.peer_lost(2, "its socket closed", true);
    CHECK(world.take<PrepareSplit>(3).size() == 1);
    return;
  }
  // Another program opens it meanwhile: what the others have is asked for again, and it is not refused.
  world.coordinator.handle(1, OpenSplit{json, 1, 2, 0, 1, 5});
  CHECK(world.take<SplitRefused>(1).empty());
  world.pass(11 * kSecond);
  CHECK(world.take<PrepareSplit>(3).size() >= 1);
  world.prepared(3, json);
  world.pass(20 * kSecond);
  CHECK(world.coordinator.living_loaders() == std::vector<PeerId>{2, 3});
}

TEST_CASE("a loader whose disk fails as a split is opened is left out where another one has listed it") {
  World world;
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  join_and_open(world, json);
  CHECK(world.take<PrepareSplit>(3).size() == 1);
  SUBCASE("it answers first") {
    world.cannot_open(3, fingerprint);
    CHECK(world.take<SplitRefused>(0).empty());
    world.prepared(2, json);
  }
  SUBCASE("it answers last") {
    world.prepared(2, json);
    CHECK(world.take<SplitOpened>(0).empty());
    world.cannot_open(3, fingerprint);
  }
  for (const PeerId receiver : {0, 1}) CHECK(world.take<SplitOpened>(receiver).size() == 1);
  REQUIRE(world.notices.size() == 1);
  CHECK(world.notices[0].starts_with("rank 3 (loader) cannot open split 'train', takes no part in it"));
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint, 0, 0, 0});
  for (int64_t step = 0; step < 2; ++step) world.coordinator.handle(0, BatchBufferFree{7, step});
  CHECK(world.take<LeaseGranted>(2).size() == 2);
  world.pass(11 * kSecond);
  CHECK(world.take<LeaseGranted>(3).empty());
  CHECK(world.take<PrepareSplit>(3).size() == 1);
  world.prepared(3, json);
  CHECK(world.take<LeaseGranted>(3).size() > 0);
  CHECK(world.notices.size() == 1);
}

// Receiver 0 has one refusal, and it says this.
void require_refused(World& world, ErrorKind kind, const std::string& error) {
  const auto refused = world.take<SplitRefused>(0);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error_kind == static_cast<int32_t>(kind));
  CHECK(refused[0].error == error);
}

// A program opens the split once more. Returns what a loader answers that sees the same files as before.
SplitPrepared look_again(World& world, const std::string& json) {
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 1, 5});
  SplitPrepared same;
  same.fingerprint = world.take<PrepareSplit>(3).at(0).fingerprint;
  same.good = same.same = true;
  return same;
}

TEST_CASE("a split that no loader can open is refused when all have said so, or are not waited for any longer") {
  CoordinatorOptions options = World::options();
  options.balancer.lost_after_s = 5;
  options.balancer.retry_s = 2;
  World world(options);
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  world.join(2);
  open_at_both(world, json);
  world.cannot_open(2, fingerprint);
  std::string silence;
  SUBCASE("one is still to join") {
    world.pass(4 * kSecond);
    CHECK(world.take<SplitRefused>(0).empty());
    SUBCASE("and can") {
      world.join(3);
      world.prepared(3, json);
      CHECK(world.take<SplitOpened>(0).size() == 1);
      return;
    }
    SUBCASE("and does not come") {
      world.pass(2 * kSecond);
    }
  }
  SUBCASE("one has joined") {
    world.join(3);
    world.pass(4 * kSecond);
    CHECK(world.take<SplitRefused>(0).empty());
    SUBCASE("and cannot either") {
      world.cannot_open(3, fingerprint);
    }
    SUBCASE("and does not answer") {
      world.pass(2 * kSecond);
      silence = "; rank 3 (loader) lives, and has sent no list of its files for 5.0 s";
    }
  }
  require_refused(world, ErrorKind::runtime,
                  "rank 2 (loader): cannot list folder '/data': Input/output error" + silence);
}

TEST_CASE("what one loader may not read refuses a split at the start, and not once an iteration has begun") {
  World world;
  const std::string json = split_json();
  const std::string eval = split_json({"splits.train.batch_size=2"});
  const Fingerprint fingerprint = fingerprint_of(eval);
  world.open_at_both(json);
  for (const PeerId receiver : {0, 1}) CHECK(world.take<SplitOpened>(receiver).size() == 1);
  const auto open_eval = [&] {
    for (const PeerId receiver : {0, 1}) world.coordinator.handle(receiver, OpenSplit{eval, receiver, 2, 0, 1, 5});
    world.cannot_open(3, fingerprint, ErrorKind::dataset);
  };
  SUBCASE("at the start") {
    open_eval();
    world.prepared(2, eval);
    CHECK(world.take<SplitRefused>(0).size() == 1);
  }
  SUBCASE("later") {
    world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
    open_eval();
    SUBCASE("another one has listed it") {
      world.prepared(2, eval);
      for (const PeerId receiver : {0, 1}) CHECK(world.take<SplitOpened>(receiver).size() == 1);
      REQUIRE(world.notices.size() == 1);
      CHECK(world.notices[0].ends_with("is asked again every 10 s: cannot open folder '/data': Permission denied"));
    }
    SUBCASE("no loader may") {
      world.cannot_open(2, fingerprint, ErrorKind::dataset);
      require_refused(world, ErrorKind::dataset, "rank 2 (loader): cannot open folder '/data': Permission denied");
    }
  }
}

TEST_CASE("a loader that cannot look whether a split's files have changed takes no part in it until it can") {
  World world;
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  world.open_at_both(json);
  CHECK(world.take<SplitOpened>(0).size() == 1);
  for (const PeerId loader : {2, 3}) CHECK(world.take<PrepareSplit>(loader).size() == 1);
  const SplitPrepared same = look_again(world, json);
  world.cannot_open(3, same.fingerprint);
  CHECK(world.take<SplitOpened>(0).empty());
  world.coordinator.handle(2, same);
  CHECK(world.take<SplitOpened>(0).at(0).fingerprint == fingerprint);
  CHECK(world.take<SplitClosed>(3).at(0).fingerprint == same.fingerprint);
  REQUIRE(world.notices.size() == 1);
  CHECK(world.notices[0].starts_with("rank 3 (loader) cannot open split 'train', takes no part in it"));
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint, 0, 0, 0, {}, 0, 1});
  for (int64_t step = 0; step < 2; ++step) world.coordinator.handle(0, BatchBufferFree{7, step});
  CHECK(world.take<LeaseGranted>(2).size() == 2);
  CHECK(world.take<LeaseGranted>(3).empty());
  world.pass(11 * kSecond);
  CHECK(world.take<PrepareSplit>(3).at(0).fingerprint == fingerprint);
  world.prepared(3, json);
  CHECK(world.take<LeaseGranted>(3).size() > 0);
}

TEST_CASE("a loader that cannot look whether files have changed keeps the list of which it is making samples") {
  World world;
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  world.open_at_both(json);
  CHECK(world.take<SplitOpened>(0).size() == 1);
  for (const PeerId loader : {2, 3}) CHECK(world.take<PrepareSplit>(loader).size() == 1);
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint, 0, 0, 0});
  const SplitPrepared same = look_again(world, json);
  world.cannot_open(3, same.fingerprint);
  world.coordinator.handle(2, same);
  CHECK(world.take<SplitOpened>(0).at(0).fingerprint == fingerprint);
  world.pass(11 * kSecond);
  CHECK(world.take<PrepareSplit>(3).empty());
  for (int64_t step = 0; step < 2; ++step) world.coordinator.handle(0, BatchBufferFree{7, step});
  CHECK(world.take<LeaseGranted>(3).size() > 0);
  CHECK(world.notices.empty());
}

TEST_CASE("a loader that had seen the older files is waited for where the one that saw the newer is lost") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  CHECK(world.take<SplitOpened>(0).size() == 1);
  for (const PeerId loader : {2, 3}) CHECK(world.take<PrepareSplit>(loader).size() == 1);
  SplitPrepared answer = look_again(world, json);
  world.coordinator.handle(3, answer);
  answer.same = false;
  answer.dataset_size = 11;
  answer.dataset_fingerprint = "bb";
  world.coordinator.handle(2, answer);
  CHECK(world.take<PrepareSplit>(3).at(0).like == 0);
  world.coordinator.peer_lost(2, "its socket closed", true);
  world.pass(15 * kSecond);
  CHECK(world.take<SplitOpened>(0).empty());
  CHECK(world.take<SplitRefused>(0).empty());
  world.coordinator.handle(3, answer);
  CHECK(world.take<SplitOpened>(0).at(0).fingerprint == answer.fingerprint);
}

TEST_CASE("where all others are lost, a loader that tries again to list the files is waited for as long as it does") {
  CoordinatorOptions options = World::options();
  options.balancer.lost_after_s = 5;
  options.balancer.retry_s = 30;
  World world(options);
  const std::string json = split_json();
  join_and_open(world, json);
  world.prepared(2, json);
  SUBCASE("an iteration has begun without it") {
    world.pass(6 * kSecond);
    CHECK(world.take<SplitOpened>(0).size() == 1);
    world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
    world.coordinator.handle(0, BatchBufferFree{7, 0});
    world.coordinator.peer_lost(2, "its socket closed", true);
    world.pass(20 * kSecond);
    CHECK(world.take<LeaseStreamFailed>(0).empty());
    SUBCASE("it lists them") {
      world.prepared(3, json);
      CHECK(world.take<LeaseGranted>(3).size() == 2);
      return;
    }
    std::string why;
    SUBCASE("it cannot") {
      world.cannot_open(3, fingerprint_of(json));
      world.pass(kSecond);
      why = ": rank 3 (loader): cannot list folder '/data': Input/output error";
    }
    SUBCASE("it does not answer") {
      world.pass(10 * kSecond);
      why = ": rank 3 (loader) lives, and has sent no list of its files for 32.0 s";
    }
    const auto failed = world.take<LeaseStreamFailed>(0);
    REQUIRE(failed.size() == 1);
    CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
    CHECK(failed[0].error.ends_with("; the loaders that live have not opened the split" + why));
  }
  SUBCASE("the split is not open yet") {
    world.coordinator.peer_lost(2, "its socket closed", true);
    world.pass(20 * kSecond);
    CHECK(world.take<SplitOpened>(0).empty());
    SUBCASE("it lists them") {
      world.prepared(3, json);
      CHECK(world.take<SplitOpened>(0).size() == 1);
    }
    SUBCASE("it cannot") {
      world.cannot_open(3, fingerprint_of(json));
      const auto refused = world.take<SplitRefused>(0);
      REQUIRE(refused.size() == 1);
      CHECK(refused[0].error == "rank 3 (loader): cannot list folder '/data': Input/output error");
    }
  }
}

TEST_CASE("a loader that lists its files for longer is waited for where the one that had listed them is lost") {
  CoordinatorOptions options = World::options();
  options.listing_ns = 270 * kSecond;
  World world(options);
  const std::string json = split_json();
  join_and_open(world, json);
  world.pass(60 * kSecond);
  const auto opens_with_the_late = [&] {
    CHECK(world.take<SplitOpened>(0).empty());
    CHECK(world.take<SplitRefused>(0).empty());
    world.prepared(3, json);
    CHECK(world.take<SplitOpened>(0).size() == 1);
  };
  SUBCASE("an iteration has begun without it") {
    world.prepared(2, json);
    world.pass(11 * kSecond);
    CHECK(world.take<SplitOpened>(0).size() == 1);
    world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
    world.coordinator.handle(0, BatchBufferFree{7, 0});
    world.coordinator.handle(1, OpenLeaseStream{8, fingerprint_of(json), 1, 0, 0});
    world.pass(9 * kSecond);
    world.notices.clear();
    world.coordinator.peer_lost(2, "its socket closed", true);
    world.pass(20 * kSecond);
    const std::string silent = "rank 3 (loader) lives, and has sent no list of its files for ";
    CHECK(world.take<LeaseStreamFailed>(0).empty());
    REQUIRE(world.notices.size() == 2);  // the first one tells the loss
    CHECK(world.notices[1] ==
          "split 'train' waits until one of the loaders that live has opened it: " + silent + "82.0 s");
    SUBCASE("it sends its list") {
      world.prepared(3, json);
      CHECK(world.take<LeaseGranted>(3).size() == 2);
    }
    SUBCASE("it sees other files") {
      world.prepared(3, json, 9, "bb");
      world.pass(kSecond);
      const auto failed = world.take<LeaseStreamFailed>(0);
      REQUIRE(failed.size() == 1);
      CHECK(failed[0].error.ends_with("rank 3 (loader) sees another dataset for split 'train': 9 samples, not 10"));
    }
    SUBCASE("it never does") {
      world.pass(171 * kSecond);
      const auto failed = world.take<LeaseStreamFailed>(0);
      REQUIRE(failed.size() == 1);
      CHECK(failed[0].error_kind == static_cast<int32_t>(ErrorKind::peer_lost));
      CHECK(failed[0].error.ends_with("; the loaders that live have not opened the split: " + silent + "270.0 s"));
    }
  }
  SUBCASE("the split is not open yet") {
    world.prepared(2, json);
    world.pass(5 * kSecond);
    world.coordinator.peer_lost(2, "its socket closed", true);
    world.pass(35 * kSecond);
    opens_with_the_late();
  }
  SUBCASE("the other one cannot open it") {
    world.cannot_open(2, fingerprint_of(json));
    world.pass(40 * kSecond);
    opens_with_the_late();
  }
}

TEST_CASE("a loader that comes back and does not answer keeps no opening waiting") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  world.coordinator.peer_lost(3, "silent", false);
  world.coordinator.handle(3, LoaderHello{8, 2, 1, 1});
  for (const PeerId receiver : {0, 1}) {
    REQUIRE(world.take<SplitOpened>(receiver).size() == 1);
    world.coordinator.handle(receiver, OpenSplit{json, receiver, 2, 0, 1, 5});
  }
  world.pass(9 * kSecond);
  CHECK(world.take<SplitOpened>(0).empty());
  world.pass(2 * kSecond);
  for (const PeerId receiver : {0, 1}) CHECK(world.take<SplitOpened>(receiver).size() == 1);
}

TEST_CASE("an iteration that begins while all loaders list the files again, after they came back, waits for them") {
  World world;
  const std::string json = split_json();
  world.open_at_both(json);
  for (const PeerId loader : {2, 3}) {
    world.coordinator.peer_lost(loader, "silent", false);
    world.coordinator.handle(loader, LoaderHello{8, 2, 1, 1});
  }
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  world.coordinator.handle(0, BatchBufferFree{7, 0});
  world.pass(8 * kSecond);
  CHECK(world.take<LeaseStreamFailed>(0).empty());
  CHECK(world.take<LeaseGranted>(2).empty());
  world.prepared(2, json);
  CHECK(world.take<LeaseGranted>(2).size() == 2);
}

TEST_CASE("where listing takes minutes everywhere, the first loader to end it does not leave the others behind") {
  World world;
  const std::string json = split_json();
  join_and_open(world, json);
  world.pass(100 * kSecond);
  CHECK(world.notices.size() == 1);
  world.prepared(2, json);
  world.pass(9 * kSecond);
  CHECK(world.take<SplitOpened>(0).empty());
  world.prepared(3, json, 9, "bb");
  CHECK(world.take<SplitRefused>(0).size() == 1);
}

TEST_CASE("a look whether files have changed that hangs at a loader: the older list, until it has answered") {
  World world;
  const std::string json = split_json();
  const Fingerprint fingerprint = fingerprint_of(json);
  world.open_at_both(json);
  for (const PeerId receiver : {0, 1}) REQUIRE(world.take<SplitOpened>(receiver).size() == 1);
  for (const PeerId loader : {2, 3}) (void)world.take<PrepareSplit>(loader);
  world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 1, 5});
  SplitPrepared answer;
  answer.fingerprint = world.take<PrepareSplit>(2).at(0).fingerprint;
  CHECK(world.take<PrepareSplit>(3).size() == 1);
  answer.good = true;
  const auto other_files = [&] {
    answer.same = false;
    answer.dataset_size = 11;
    answer.dataset_fingerprint = "bb";
  };
  SUBCASE("the others see the same files") {
    answer.same = true;
    world.coordinator.handle(2, answer);
    world.pass(9 * kSecond);
    CHECK(world.take<SplitOpened>(0).empty());
    world.pass(2 * kSecond);
    CHECK(world.take<SplitOpened>(0).at(0).fingerprint == fingerprint);
    world.coordinator.handle(1, OpenSplit{json, 1, 2, 0, 1, 5});
    CHECK(world.take<SplitOpened>(1).at(0).fingerprint == fingerprint);
    world.coordinator.handle(1, OpenSplit{json, 1, 2, 0, 2, 6});
    CHECK(world.take<SplitOpened>(1).at(0).fingerprint == fingerprint);
    CHECK(world.take<PrepareSplit>(2).empty());
    SUBCASE("and so does the late one") {
      world.coordinator.handle(3, answer);
      CHECK(world.take<PrepareSplit>(2).empty());
      world.coordinator.handle(0, OpenSplit{json, 0, 2, 0, 3, 7});  // looked at again
      CHECK(world.take<PrepareSplit>(2).size() == 1);
      CHECK(world.take<PrepareSplit>(3).size() == 1);
    }
    SUBCASE("and the late one others, of which nobody has a list open") {
      other_files();
      world.coordinator.handle(3, answer);
      CHECK(world.take<PrepareSplit>(2).at(0).fingerprint == answer.fingerprint);
      world.coordinator.handle(2, answer);
      for (const PeerId loader : {2, 3}) CHECK(world.take<SplitClosed>(loader).at(0).fingerprint == answer.fingerprint);
    }
  }
  SUBCASE("another one sees other files, and the late one looked before they changed: it is asked again") {
    other_files();
    world.coordinator.handle(2, answer);
    world.pass(11 * kSecond);
    CHECK(world.take<SplitOpened>(0).at(0).fingerprint == answer.fingerprint);
    answer.same = true;
    world.coordinator.handle(3, answer);
    CHECK(world.take<PrepareSplit>(3).at(0).like == 0);
    other_files();
    world.coordinator.handle(3, answer);
    OpenLeaseStream stream{7, answer.fingerprint, 0, 0, 0};
    world.coordinator.handle(0, stream);
    for (int64_t step = 0; step < 2; ++step) world.coordinator.handle(0, BatchBufferFree{7, step});
    CHECK(world.take<LeaseGranted>(3).size() > 0);
  }
}

TEST_CASE("a loader that may be the only one with some samples is waited for, and named") {
  World world;
  const std::string json = local_json();
  join_and_open(world, json);
  holds(world, 2, json, {0, 5});
  world.pass(30 * kSecond);
  CHECK(world.take<SplitOpened>(0).empty());
  CHECK(world.take<SplitRefused>(0).empty());
  REQUIRE(world.notices.size() == 1);
  CHECK(world.notices[0].find("no list yet from rank 3 (loader)") != std::string::npos);
  holds(world, 3, json, {5, 10});
  CHECK(world.take<SplitOpened>(0).size() == 1);
}

TEST_CASE("a placement of many ranges is made by a thread, and the split opens then") {
  World world;
  const std::string json = local_json();
  join_and_open(world, json);
  const int64_t size = 200'000;
  std::vector<int64_t> even, odd;  // blocks of five samples
  for (int64_t i = 0; i < size; i += 10) {
    even.insert(even.end(), {i, i + 5});
    odd.insert(odd.end(), {i + 5, i + 10});
  }
  holds(world, 2, json, even, "", size);
  holds(world, 3, json, odd, "", size);
  world.go_on_until<SplitOpened>(1);
  world.coordinator.handle(0, OpenLeaseStream{7, fingerprint_of(json), 0, 0, 0});
  world.go_on_until<LeaseStreamReady>(0);
  world.coordinator.handle(0, BatchBufferFree{7, 0});
  for (const PeerId loader : {2, 3}) {
    for (const LeaseGranted& lease : world.take<LeaseGranted>(loader)) {
      for (const PlannedSample& sample : lease.samples) CHECK((sample.index % 10 < 5) == (loader == 2));
    }
  }
}

}  // namespace
}  // namespace penstock
