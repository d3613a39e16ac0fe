// A loader against a scripted coordinator and receiver: leases become chunks, chunk buffers come home, and trouble of
// the environment is told, not hidden.
#include "runtime/loader/loader.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/index_file.h"
#include "runtime/protocol/chunk.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "runtime/sample/split_fields.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/slow_file_system.h"
#include "tests/support/tiny_dataset.h"
#include "transport/inproc/inproc.h"

namespace penstock {
namespace {

// Says that its messages lie on their way for a while, as MPI's do.
class LateEndpoint final : public Endpoint {
 public:
  LateEndpoint(std::unique_ptr<Endpoint> prompt, Nanoseconds delay_ns)
      : prompt_(std::move(prompt)), delay_ns_(delay_ns) {}

  Capabilities capabilities(PeerId peer) const override {
    Capabilities can = prompt_->capabilities(peer);
    can.delay_ns = delay_ns_;
    return can;
  }
  void send(PeerId peer, Message message) override { prompt_->send(peer, std::move(message)); }
  void send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, size_t bytes) override {
    prompt_->send_chunk(peer, std::move(envelope), chunk_buffer, bytes);
  }
  void release(PeerId peer, uint64_t token) override { prompt_->release(peer, token); }
  bool peers_map_arenas() const noexcept override { return prompt_->peers_map_arenas(); }
  void register_arena(const Arena& arena) override { prompt_->register_arena(arena); }
  void forget_arena(uint32_t id) override { prompt_->forget_arena(id); }
  bool poll(Incoming& incoming) override { return prompt_->poll(incoming); }
  void collect_fds(std::vector<pollfd>& fds) const override { prompt_->collect_fds(fds); }
  bool flush(Nanoseconds timeout_ns) override { return prompt_->flush(timeout_ns); }

 private:
  std::unique_ptr<Endpoint> prompt_;
  Nanoseconds delay_ns_;
};

// Rank 0, coordinator and receiver in one: the test itself. Rank 1 is the loader in its thread.
class World {
 public:
  explicit World(LoaderOptions options, Nanoseconds delay_ns = 0) : inproc_(2), mine_(inproc_.endpoint(0)) {
    loader_ = make_loader(options, std::make_unique<LateEndpoint>(inproc_.endpoint(1), delay_ns));
    ended_ = std::async(std::launch::async, [this] { return loader_->run(); });
  }
  ~World() {
    loader_->stop();
    if (ended_.valid()) ended_.wait();
  }

  void send(const ControlMessage& message) { mine_->send(1, encode(message)); }
  Endpoint& end() { return *mine_; }
  void leave() { mine_.reset(); }

  // Waits for the next event; heartbeats are not news.
  Incoming receive() {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + 10 * kSecond;
    while (clock.now() < deadline) {
      Incoming incoming;
      if (mine_->poll(incoming)) {
        auto* message = std::get_if<MessageArrived>(&incoming);
        if (message == nullptr) return incoming;
        const ControlMessage said = decode(message->message);
        if (const auto* ahead = std::get_if<LeasesAhead>(&said)) {
          ahead_ = ahead->leases;
          continue;
        }
        if (!std::holds_alternative<Alive>(said)) return incoming;
        ++beats_;
        continue;
      }
      std::vector<pollfd> fds;
      mine_->collect_fds(fds);
      ::poll(fds.data(), fds.size(), 10);
    }
    throw std::runtime_error("the loader said nothing");
  }
  template <class T>
  T expect() {
    Incoming incoming = receive();
    auto* message = std::get_if<MessageArrived>(&incoming);
    if (message == nullptr) throw std::runtime_error("a chunk came instead of a message");
    ControlMessage control = decode(message->message);
    if (!std::holds_alternative<T>(control)) throw std::runtime_error("message " + std::to_string(control.index()));
    return std::get<T>(std::move(control));
  }
  // The coordinator hears that a chunk is made before its receiver has it.
  ChunkArrived expect_chunk() {
    done_ = expect<ChunkDone>();
    return std::get<ChunkArrived>(receive());
  }
  const ChunkDone& done() const { return done_; }  // of the newest chunk
  SplitPrepared prepare(const std::string& json, int32_t max_samples = 8) {
    send(PrepareSplit{fingerprint_of(json), json, max_samples});
    return expect<SplitPrepared>();
  }
  bool quiet(Nanoseconds time = 100 * kMillisecond) {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + time;
    while (clock.now() < deadline) {
      Incoming incoming;
      if (!mine_->poll(incoming)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      auto* message = std::get_if<MessageArrived>(&incoming);
      if (message == nullptr || !std::holds_alternative<Alive>(decode(message->message))) return false;
      ++beats_;
    }
    return true;
  }
  int beats() const { return beats_; }
  int32_t ahead() const { return ahead_; }
  std::string report() const { return loader_->report_json(); }
  bool result() { return ended_.get(); }

 private:
  InprocWorld inproc_;
  std::unique_ptr<Endpoint> mine_;
  std::unique_ptr<Loader> loader_;
  std::future<bool> ended_;
  ChunkDone done_;
  int beats_ = 0;
  int32_t ahead_ = 0;
};

std::string json_of(const TinyDataset& data, const std::string& split = "train") {
  return canonical_json(resolve_split(load_job(data.job()), split));
}

LeaseGranted lease_of(const std::string& json, int64_t step, std::vector<int64_t> indices) {
  LeaseGranted lease;
  lease.lease = {5, step, 0, 3};
  lease.fingerprint = fingerprint_of(json);
  lease.epoch = 2;
  for (const int64_t index : indices) lease.samples.push_back({step * 8 + std::ssize(lease.samples), index, 0, true});
  return lease;
}

TEST_CASE("lease, chunk, chunk buffer: contents are the sample maker's, the chunk buffer comes home once released") {
  const TinyDataset data(20);
  const std::string json = json_of(data);
  World world({.threads = 2, .chunk_buffers = 2, .payload_crc = true});
  const auto hello = world.expect<LoaderHello>();
  CHECK(hello.chunk_buffers == 2);
  CHECK(hello.threads == 2);
  const SplitPrepared prepared = world.prepare(json);
  REQUIRE(prepared.good);
  CHECK(prepared.dataset_size == 20);
  CHECK(prepared.classes.size() == 5);
  const LeaseGranted lease = lease_of(json, 1, {3, 19, 3, 0, 7});
  world.send(lease);
  const ChunkArrived chunk = world.expect_chunk();
  const ChunkDone& done = world.done();
  CHECK(done.lease == lease.lease);
  CHECK(done.bytes > 0);
  CHECK(done.pixels == 5 * 64 * 48);
  CHECK(done.busy_ns > 0);
  ChunkHeader header;
  std::vector<SampleRecord> records;
  decode_envelope(chunk.envelope, header, records);
  CHECK(header.lease == lease.lease);
  CHECK(header.epoch == 2);
  CHECK(header.payload_crc == crc32c(chunk.payload.data(), chunk.payload.size()));
  SampleMaker maker(SplitContext::open(split_from_json(json)));
  const FieldTable fields = raw_fields(Pipeline(split_from_json(json).split.pipeline));
  const FieldLayout layout = chunk_layout(fields, 5);
  REQUIRE(chunk.payload.size() == layout.total_bytes);
  const size_t image_bytes = fields[0].bytes_per_sample();
  std::vector<std::byte> image(image_bytes);
  for (size_t i = 0; i < 5; ++i) {
    int64_t label = -1;
    std::byte* const places[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
    const SampleRecord record = maker.make(lease.samples[i], 2, places);
    CHECK(records[i].draws == record.draws);
    CHECK(records[i].key == record.key);
    CHECK(records[i].planned == lease.samples[i]);
    CHECK(std::memcmp(image.data(), chunk.payload.data() + i * image_bytes, image_bytes) == 0);
    CHECK(std::memcmp(&label, chunk.payload.data() + layout.offsets[1] + i * 8, 8) == 0);
  }
  CHECK(world.quiet());  // the chunk buffer is the receiver's until it says so
  world.end().release(1, chunk.token);
  CHECK(world.expect<ChunkBufferFree>().receiver == 0);
  world.send(Leave{});
  CHECK(world.expect<LoaderReport>().json.find("\"images\":5") != std::string::npos);
  world.send(Goodbye{});
  CHECK(world.result());
}

TEST_CASE("a loader that was given up joins again with chunk buffers of its own; what is out stays as it is") {
  const TinyDataset data(20);
  const std::string json = json_of(data);
  World world({.threads = 1, .chunk_buffers = 4});
  CHECK(world.expect<LoaderHello>().incarnation == 0);
  REQUIRE(world.prepare(json).good);
  world.send(lease_of(json, 1, {1, 2}));
  const ChunkArrived published = world.expect_chunk();
  const std::vector<std::byte> bytes(published.payload.begin(), published.payload.end());
  for (int32_t incarnation = 1; incarnation < 4; ++incarnation) {
    for (int64_t step = 2; step < 5; ++step) world.send(lease_of(json, step, {3, 4, 5, 6, 7}));
    world.send(GivenUp{incarnation});
    world.send(GivenUp{incarnation});  // again: changes nothing
    // Some of its last leases may have been made before it heard, and their chunk buffers may be home.
    for (bool joined = false; !joined;) {
      Incoming incoming = world.receive();
      if (const auto* chunk = std::get_if<ChunkArrived>(&incoming)) {
        world.end().release(1, chunk->token);
      } else {
        const ControlMessage message = decode(std::get<MessageArrived>(incoming).message);
        const auto* hello = std::get_if<LoaderHello>(&message);
        joined = hello != nullptr;
        if (joined) CHECK(hello->incarnation == incarnation);
      }
    }
    // All the chunk buffers of its hello are there, whatever is still out.
    REQUIRE(world.prepare(json).good);
    std::vector<ChunkArrived> held;
    for (int64_t step = 6; step < 10; ++step) world.send(lease_of(json, step, {1, 2}));
    for (int i = 0; i < 4; ++i) {
      held.push_back(world.expect_chunk());
    }
    CHECK(std::equal(bytes.begin(), bytes.end(), published.payload.begin(), published.payload.end()));
    for (const ChunkArrived& chunk : held) {
      world.end().release(1, chunk.token);
      (void)world.expect<ChunkBufferFree>();
    }
  }
  world.end().release(1, published.token);
  CHECK(world.quiet());  // of its first life: nobody counts on it
}

TEST_CASE("chunk buffers are used again and again, whatever the order of their return") {
  const TinyDataset data(20);
  const std::string json = json_of(data);
  World world({.threads = 3, .chunk_buffers = 3});
  (void)world.expect<LoaderHello>();
  REQUIRE(world.prepare(json, 4).good);
  int granted = 0;
  std::vector<ChunkArrived> held;
  int back = 0;
  for (; granted < 3; ++granted) world.send(lease_of(json, granted, {granted, granted + 1}));
  while (back < 40) {
    Incoming incoming = world.receive();
    if (auto* chunk = std::get_if<ChunkArrived>(&incoming)) {
      held.push_back(std::move(*chunk));
      std::set<const std::byte*> places;
      for (const ChunkArrived& one : held) REQUIRE(places.insert(one.payload.data()).second);
      if (held.size() < 2) continue;
      const size_t which = static_cast<size_t>(granted) % held.size();
      world.end().release(1, held[which].token);
      world.end().release(1, held[which].token);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (std::holds_alternative<ChunkBufferFree>(decode(std::get<MessageArrived>(incoming).message))) {
      ++back;
      world.send(lease_of(json, granted, {granted % 19, granted % 19 + 1}));
      ++granted;
    }
  }
}

TEST_CASE("an error of the disk undoes the chunk, by name, and frees its chunk buffer") {
  const TinyDataset data(20);
  const std::string json = json_of(data);
  FaultyFileSystem disk;
  disk.fail_read("class1/0002.png");  // index 6
  World world({.threads = 2, .chunk_buffers = 1, .files = &disk});
  (void)world.expect<LoaderHello>();
  REQUIRE(world.prepare(json).good);
  for (int round = 0; round < 3; ++round) {
    world.send(lease_of(json, round, {1, 6, 2}));
    const auto undone = world.expect<ChunkUndone>();
    CHECK(undone.lease.step == round);
    CHECK(undone.reason.find("class1/0002.png") != std::string::npos);
    CHECK(undone.reason.find("Input/output error") != std::string::npos);
    CHECK(world.expect<ChunkBufferFree>().receiver == 0);
  }
  world.send(lease_of(json, 9, {1, 2}));
  (void)world.expect_chunk();
}

TEST_CASE("a bad sample is no error of the environment: it travels as a status") {
  const TinyDataset data(20);
  data.folder().write("data/class1/0002.png", "no picture");
  const std::string json = json_of(data);
  World world({.threads = 1, .chunk_buffers = 1});
  (void)world.expect<LoaderHello>();
  REQUIRE(world.prepare(json).good);
  world.send(lease_of(json, 0, {5, 6}));
  const ChunkArrived chunk = world.expect_chunk();
  ChunkHeader header;
  std::vector<SampleRecord> records;
  decode_envelope(chunk.envelope, header, records);
  CHECK_FALSE(records[0].bad);
  CHECK(records[1].bad);
  CHECK(records[1].key == "class1/0002.png");
  CHECK_FALSE(records[1].reason.empty());
}

// A disk whose files are opened, from hold() on, only once let_go() was called.
class HeldReads final : public FileSystem {
 public:
  void hold() { held_ = true; }
  void let_go() {
    held_ = false;
    held_.notify_all();
  }
  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    held_.wait(true);
    return disk_.read_file(path, max_bytes, bytes);
  }
  std::unique_ptr<FileReader> open_file(const std::string& path) override {
    held_.wait(true);
    return disk_.open_file(path);
  }
  int64_t file_size(const std::string& path) override { return disk_.file_size(path); }
  Directory list_directory(const std::string& path) override { return disk_.list_directory(path); }

 private:
  FileSystem& disk_ = posix_file_system();
  std::atomic<bool> held_{false};
};

TEST_CASE(
    "a revoked lease that was not begun is dropped with its chunk buffer; one that is done is sent all the same") {
  const TinyDataset data(20);
  const std::string json = json_of(data);
  HeldReads disk;
  World world({.threads = 1, .chunk_buffers = 6, .files = &disk});
  (void)world.expect<LoaderHello>();
  REQUIRE(world.prepare(json).good);
  disk.hold();
  constexpr int kLeases = 6;
  for (int step = 0; step < kLeases; ++step) world.send(lease_of(json, step, {0, 1, 2, 3, 4, 5, 6, 7}));
  for (int step = 0; step < kLeases; ++step) world.send(LeaseRevoked{{5, step, 0, 3}});
  world.send(LeaseRevoked{{99, 0, 0, 0}});  // never heard of
  int chunks = 0;
  int done = 0;  // what the coordinator hears of a chunk, before or after the receiver has it
  int back = 0;
  while (chunks + back < kLeases || done < chunks) {
    Incoming incoming = world.receive();
    if (std::holds_alternative<ChunkArrived>(incoming)) {
      ++chunks;
      continue;
    }
    const auto message = decode(std::get<MessageArrived>(incoming).message);
    if (std::holds_alternative<ChunkBufferFree>(message)) {
      ++back;
      disk.let_go();
    }
    done += std::holds_alternative<ChunkDone>(message) ? 1 : 0;
  }
  CHECK(back >= 1);  // while the first one was being read
  CHECK(done == chunks);
  CHECK(world.quiet(50 * kMillisecond));
}

TEST_CASE("reads of leases run ahead: the same chunks, within the memory, and none for a lease that is taken away") {
  const TinyDataset data(40);
  const std::string json = json_of(data);
  std::vector<std::vector<std::byte>> payloads[2];
  for (const bool on : {false, true}) {
    SlowFileSystem disk(std::chrono::milliseconds(2));
    LoaderOptions options{.threads = 1, .chunk_buffers = 8};
    options.files = &disk;
    options.read_ahead.reads = on ? 16 : 0;
    options.read_ahead.eager = true;
    World world(options);
    (void)world.expect<LoaderHello>();
    REQUIRE(world.prepare(json).good);
    std::vector<LeaseGranted> leases;
    for (int64_t step = 0; step < 5; ++step) {
      std::vector<int64_t> indices;
      for (int64_t i = 0; i < 8; ++i) indices.push_back((8 * step + 3 * i) % 40);
      leases.push_back(lease_of(json, step, indices));
      world.send(leases.back());
    }
    world.send(LeaseRevoked{leases[4].lease});
    for (int64_t step = 0; step < 4; ++step) {
      Incoming news = world.receive();
      while (!std::holds_alternative<ChunkArrived>(news)) news = world.receive();
      const ChunkArrived chunk = std::get<ChunkArrived>(news);
      payloads[on ? 1 : 0].emplace_back(chunk.payload.begin(), chunk.payload.end());
    }
    CHECK(world.ahead() == (on ? 2 : 0));  // 16 reads are two leases of 8
    const nlohmann::json report = parse_json(world.report()).at("read_ahead");
    CHECK(report.at("method") == (on ? "threads" : "none"));
    if (on) CHECK(report.at("taken").get<int64_t>() + report.at("early").get<int64_t>() >= 30);
    // The fifth lease's reads were not begun, or are given up.
    if (on) CHECK(report.at("reads").get<int64_t>() <= 40);
  }
  REQUIRE(payloads[0].size() == 4);
  CHECK(payloads[0] == payloads[1]);
}

TEST_CASE("a split that cannot be opened is answered with kind, reason and remedy") {
  const TinyDataset data(20);
  World world({.threads = 1, .chunk_buffers = 4, .memory_bytes = 100'000});
  (void)world.expect<LoaderHello>();
  const Job job = load_job(data.job(), {"splits.train.dataset.folder=/no/such/folder"});
  const SplitPrepared missing = world.prepare(canonical_json(resolve_split(job, "train")));
  CHECK_FALSE(missing.good);
  CHECK(missing.error_kind == static_cast<int32_t>(ErrorKind::dataset));
  CHECK(missing.error.find("/no/such/folder") != std::string::npos);
  const SplitPrepared large = world.prepare(json_of(data), 16);
  CHECK_FALSE(large.good);
  CHECK(large.error_kind == static_cast<int32_t>(ErrorKind::config));
  CHECK(large.remedy.find("loader.memory_gb") != std::string::npos);
  CHECK_FALSE(world.prepare("{}").good);
  // With texts it is their room that fills memory.
  data.folder().write("x.csv", "image,caption\ndata/" + TinyDataset::name(0) + ",a cat\n");
  data.folder().write("texts.yaml",
                      "splits:\n  train:\n    mode: eval\n    dataset: {csv: x.csv, fields: \"caption:text\"}\n"
                      "    pipeline: [{CenterCrop: {size: 8}}]\n    batch_size: 8\n");
  const Job texts = load_job(data.folder().path("texts.yaml"), {});
  const SplitPrepared room = world.prepare(canonical_json(resolve_split(texts, "train")));
  CHECK_FALSE(room.good);
  CHECK_FALSE(room.labelled);
  CHECK(room.remedy.starts_with("lower limits.max_field_bytes"));
}

TEST_CASE(
    "a folder that cannot be listed for a while is listed again within the time; a missing one is refused at once") {
  const TinyDataset data(20);
  FaultyFileSystem disk;
  disk.fail_next_lists(2);
  World world({.threads = 1, .chunk_buffers = 1, .retry_ns = 60 * kSecond, .files = &disk});
  (void)world.expect<LoaderHello>();
  CHECK(world.prepare(json_of(data)).good);
  CHECK(disk.lists() > 2);
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  const Job job = load_job(data.job(), {"splits.train.dataset.folder=/no/such/folder"});
  const SplitPrepared missing = world.prepare(canonical_json(resolve_split(job, "train")));
  CHECK_FALSE(missing.good);
  CHECK_FALSE(missing.may_pass);
  CHECK(clock.now() - begun < 30 * kSecond);
}

TEST_CASE("without time for it, or with the time over, a folder that cannot be listed is the answer") {
  const TinyDataset data(20);
  for (const Nanoseconds retry_ns : {Nanoseconds{0}, kSecond}) {
    FaultyFileSystem disk;
    disk.fail_next_lists(1000);
    World world({.threads = 1, .chunk_buffers = 1, .retry_ns = retry_ns, .files = &disk});
    (void)world.expect<LoaderHello>();
    const SplitPrepared answer = world.prepare(json_of(data));
    CHECK_FALSE(answer.good);
    CHECK(answer.may_pass);
    CHECK(answer.error.find("Input/output error") != std::string::npos);
    CHECK((disk.lists() > 1) == (retry_ns > 0));
  }
}

TEST_CASE("a split is opened afresh when it is asked for again: repaired, or grown, or broken since") {
  TinyDataset data(10);
  const std::string json = json_of(data);
  World world({.threads = 1, .chunk_buffers = 2});
  (void)world.expect<LoaderHello>();
  const std::string folder = data.folder().path("data");
  std::filesystem::rename(folder, folder + ".away");
  for (int again = 0; again < 2; ++again) {
    const SplitPrepared missing = world.prepare(json);
    CHECK_FALSE(missing.good);
    CHECK(missing.error.find("does not exist") != std::string::npos);
  }
  std::filesystem::rename(folder + ".away", folder);
  const SplitPrepared first = world.prepare(json);
  REQUIRE(first.good);
  CHECK(first.dataset_size == 10);
  // A chunk that nobody has released yet keeps its chunk buffer, and no list.
  world.send(lease_of(json, 0, {0, 1}));
  const ChunkArrived chunk = world.expect_chunk();
  const std::vector<std::byte> sent(chunk.payload.begin(), chunk.payload.end());
  std::filesystem::remove(folder + "/" + TinyDataset::name(3));
  const SplitPrepared second = world.prepare(json);
  REQUIRE(second.good);
  CHECK(second.dataset_size == 9);
  CHECK(second.dataset_fingerprint != first.dataset_fingerprint);
  world.send(lease_of(json, 1, {8}));
  const ChunkArrived next = world.expect_chunk();
  CHECK(std::equal(sent.begin(), sent.end(), chunk.payload.begin(), chunk.payload.end()));
  for (const ChunkArrived* one : {&chunk, &next}) {
    world.end().release(one->peer, one->token);
    (void)world.expect<ChunkBufferFree>();
  }
  world.send(lease_of(json, 2, {0, 8}));
  CHECK(world.expect_chunk().payload.size() > 0);
}

TEST_CASE("a loader says which samples its node has, and says it anew where files have come or gone") {
  TinyDataset data(100);  // 20 a class, which is listed and not asked for file by file
  const std::string folder = data.folder().path("data");
  DatasetSpec dataset;
  dataset.folder = folder;
  ShardFiles shards(posix_file_system(), 0);
  write_index(index_table(dataset, {}, posix_file_system(), shards), data.folder().path("x.index"));
  const Job job = load_job(
      data.job(), {"splits.train.dataset.index=" + data.folder().path("x.index"), "splits.train.dataset.local=true"});
  const std::string json = canonical_json(resolve_split(job, "train"));
  const std::string gone = folder + "/class1/0003.png";
  std::filesystem::rename(gone, data.folder().path("away.png"));
  World world({.threads = 1, .chunk_buffers = 2});
  (void)world.expect<LoaderHello>();
  const SplitPrepared some = world.prepare(json);
  REQUIRE(some.good);
  CHECK(some.dataset_size == 100);
  CHECK(some.partial);
  CHECK(some.readable == std::vector<int64_t>{0, 23, 24, 100});
  CHECK(some.lacking == "'" + gone + "'");
  const auto again = [&](Fingerprint fingerprint) {
    world.send(PrepareSplit{fingerprint, json, 8, fingerprint_of(json)});
    return world.expect<SplitPrepared>();
  };
  CHECK(again(77).same);
  std::filesystem::rename(data.folder().path("away.png"), gone);
  const SplitPrepared all = again(78);
  CHECK(all.good);
  CHECK_FALSE(all.same);
  CHECK_FALSE(all.partial);
  CHECK(all.dataset_fingerprint == some.dataset_fingerprint);
}

TEST_CASE("a split opened again while its chunk buffers are out waits for them where there is no room for both") {
  TinyDataset data(10);
  const std::string json = json_of(data);
  const FieldTable fields = raw_fields(Pipeline(split_from_json(json).split.pipeline));
  const size_t arena = (chunk_layout(fields, 8).total_bytes + 4095) / 4096 * 4096;
  World world({.threads = 1, .chunk_buffers = 1, .memory_bytes = static_cast<int64_t>(arena)});
  (void)world.expect<LoaderHello>();
  REQUIRE(world.prepare(json).good);
  const auto chunk_of = [&](int64_t step) {
    world.send(lease_of(json, step, {1}));
    ChunkArrived chunk = world.expect_chunk();
    return chunk;
  };
  const auto release = [&](const ChunkArrived& chunk) {
    world.end().release(chunk.peer, chunk.token);
    (void)world.expect<ChunkBufferFree>();
  };
  // The same list: its chunk buffers are taken back at once.
  const ChunkArrived first = chunk_of(0);
  CHECK(world.prepare(json).dataset_size == 10);
  release(first);
  const ChunkArrived second = chunk_of(1);
  std::filesystem::remove(data.folder().path("data/" + TinyDataset::name(3)));
  world.send(PrepareSplit{fingerprint_of(json), json, 8});
  world.send(lease_of(json, 2, {8}));  // waits as well
  CHECK(world.quiet());
  release(second);
  CHECK(world.expect<SplitPrepared>().dataset_size == 9);
  ChunkHeader header;
  std::vector<SampleRecord> records;
  const ChunkArrived third = world.expect_chunk();
  decode_envelope(third.envelope, header, records);
  CHECK(header.lease.step == 2);
  CHECK_FALSE(records.at(0).bad);
}

TEST_CASE("a split that is closed gives its chunk buffers back once they are home; its list is kept for a while") {
  const TinyDataset data(10);
  const auto split = [&](int64_t seed) {
    return canonical_json(resolve_split(load_job(data.job(), {"seed=" + std::to_string(seed)}), "train"));
  };
  const FieldTable fields = raw_fields(Pipeline(split_from_json(split(0)).split.pipeline));
  const size_t arena = (chunk_layout(fields, 8).total_bytes + 4095) / 4096 * 4096;
  World world({.threads = 1, .chunk_buffers = 1, .memory_bytes = static_cast<int64_t>(2 * arena)});
  (void)world.expect<LoaderHello>();
  const std::string kept_open = split(1000);
  REQUIRE(world.prepare(kept_open).good);
  for (int64_t seed = 0; seed < 50; ++seed) {
    const std::string json = split(seed);
    REQUIRE(world.prepare(json).good);
    world.send(lease_of(json, 0, {1, 2}));
    const ChunkArrived chunk = world.expect_chunk();
    world.send(SplitClosed{fingerprint_of(json)});
    const SplitPrepared refused = world.prepare(split(seed + 500));
    CHECK_FALSE(refused.good);  // the chunk is being read: there is no memory yet for a third
    world.send(SplitClosed{refused.fingerprint, true});
    CHECK(chunk.payload.size() > 0);
    world.end().release(chunk.peer, chunk.token);
    (void)world.expect<ChunkBufferFree>();
  }
  world.send(lease_of(kept_open, 0, {1, 2}));
  const ChunkArrived chunk = world.expect_chunk();
  world.end().release(chunk.peer, chunk.token);
  (void)world.expect<ChunkBufferFree>();
  std::filesystem::remove(data.folder().path("data/" + TinyDataset::name(3)));
  CHECK(world.prepare(split(49)).dataset_size == 9);  // what was kept is looked at before it is used again
  world.send(SplitClosed{fingerprint_of(split(49)), true});
  CHECK(world.prepare(split(40)).dataset_size == 9);  // too long ago
  world.send(SplitClosed{fingerprint_of(split(40))});
  world.send(SplitClosed{12345});  // never heard of
  // Opened again while a chunk buffer is out: nothing was let go.
  REQUIRE(world.prepare(split(7)).good);
  world.send(lease_of(split(7), 0, {1}));
  const ChunkArrived out = world.expect_chunk();
  world.send(SplitClosed{fingerprint_of(split(7))});
  REQUIRE(world.prepare(split(7)).good);
  world.end().release(out.peer, out.token);
  (void)world.expect<ChunkBufferFree>();
  world.send(lease_of(split(7), 1, {1}));
  (void)world.expect_chunk();
}

TEST_CASE("leases that cannot be are an error, not a crash") {
  const TinyDataset data(20);
  const std::string json = json_of(data);
  const auto run = [&](const LeaseGranted& lease) {
    World world({.threads = 1, .chunk_buffers = 1});
    (void)world.expect<LoaderHello>();
    REQUIRE(world.prepare(json, 2).good);
    world.send(lease);
    try {
      (void)world.result();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::peer_lost;
    }
    return false;
  };
  LeaseGranted unknown = lease_of(json, 0, {1});
  unknown.fingerprint ^= 1;
  CHECK(run(unknown));
  CHECK(run(lease_of(json, 0, {1, 2, 3})));  // more than its chunk buffers hold
  CHECK(run(lease_of(json, 0, {})));
}

// A disk whose folders are listed only once open() was called.
class GatedDisk final : public FileSystem {
 public:
  void open() {
    if (!std::exchange(open_, true)) gate_.set_value();
  }
  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    return disk_.read_file(path, max_bytes, bytes);
  }
  std::unique_ptr<FileReader> open_file(const std::string& path) override { return disk_.open_file(path); }
  int64_t file_size(const std::string& path) override { return disk_.file_size(path); }
  Directory list_directory(const std::string& path) override {
    opened_.wait();
    return disk_.list_directory(path);
  }

 private:
  FileSystem& disk_ = posix_file_system();
  bool open_ = false;
  std::promise<void> gate_;
  std::shared_future<void> opened_ = gate_.get_future().share();
};

// Counts how often folders are listed.
class CountingDisk final : public FileSystem {
 public:
  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    return disk_.read_file(path, max_bytes, bytes);
  }
  std::unique_ptr<FileReader> open_file(const std::string& path) override { return disk_.open_file(path); }
  int64_t file_size(const std::string& path) override { return disk_.file_size(path); }
  Directory list_directory(const std::string& path) override {
    ++listed_;
    return disk_.list_directory(path);
  }
  int listed() { return listed_.exchange(0); }

 private:
  FileSystem& disk_ = posix_file_system();
  std::atomic<int> listed_{0};
};

// As if nothing had happened there for long.
void make_old(const TinyDataset& data) {
  const std::filesystem::path top = data.folder().path("data");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(top)) {
    if (entry.is_directory())
      std::filesystem::last_write_time(entry, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  }
  std::filesystem::last_write_time(top, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
}

TEST_CASE("a split that is open, or was, is looked at again: listed anew only where folders changed") {
  const TinyDataset data(10);
  make_old(data);
  const std::string json = json_of(data);
  CountingDisk disk;
  World world({.threads = 1, .chunk_buffers = 2, .files = &disk});
  (void)world.expect<LoaderHello>();
  const SplitPrepared first = world.prepare(json);
  REQUIRE(first.good);
  CHECK(disk.listed() == 6);
  world.send(SplitClosed{fingerprint_of(json)});
  CHECK(world.prepare(json).dataset_fingerprint == first.dataset_fingerprint);
  CHECK(disk.listed() == 0);

  const auto again = [&](Fingerprint fingerprint, Fingerprint like) {
    world.send(PrepareSplit{fingerprint, json, 8, like});
    return world.expect<SplitPrepared>();
  };
  const SplitPrepared same = again(77, fingerprint_of(json));
  CHECK(same.good);
  CHECK(same.same);
  CHECK(same.fingerprint == 77);
  CHECK(disk.listed() == 0);
  // A folder whose time says nothing, because it was changed a moment ago, or without a change of its pictures.
  data.folder().write("data/class1/notes.txt", "no picture");
  for (int twice = 0; twice < 2; ++twice) {
    CHECK(again(78, fingerprint_of(json)).same);
    CHECK(disk.listed() == 6);
  }
  make_old(data);
  CHECK(again(78, fingerprint_of(json)).same);
  CHECK(disk.listed() == 6);
  CHECK(again(78, fingerprint_of(json)).same);
  CHECK(disk.listed() == 0);

  std::filesystem::remove(data.folder().path("data/" + TinyDataset::name(1)));  // index 2
  const SplitPrepared changed = again(79, fingerprint_of(json));
  REQUIRE(changed.good);
  CHECK_FALSE(changed.same);
  CHECK(changed.dataset_size == 9);
  // Both lists serve: place 5 is class2's second picture in the older one, class3's first in the newer.
  const auto key_of_place = [&](Fingerprint fingerprint) {
    LeaseGranted lease = lease_of(json, 0, {5});
    lease.fingerprint = fingerprint;
    world.send(lease);
    const ChunkArrived chunk = world.expect_chunk();
    ChunkHeader header;
    std::vector<SampleRecord> records;
    decode_envelope(chunk.envelope, header, records);
    CHECK(header.fingerprint == fingerprint);
    world.end().release(chunk.peer, chunk.token);
    (void)world.expect<ChunkBufferFree>();
    return records.at(0).key;
  };
  CHECK(key_of_place(fingerprint_of(json)) == "class2/0001.png");
  CHECK(key_of_place(79) == "class3/0000.png");
  // The same for a list that was kept.
  world.send(SplitClosed{fingerprint_of(json)});
  world.send(SplitClosed{79});
  CHECK(world.prepare(json).dataset_size == 9);
}

TEST_CASE("what closed splits hold in memory does not come on top of what open ones may hold") {
  const TinyDataset one(10);
  const TinyDataset two(10);
  make_old(one);
  make_old(two);
  CountingDisk disk;
  const auto bytes =
      static_cast<int64_t>(std::filesystem::file_size(one.folder().path("data/" + TinyDataset::name(0))));
  for (const bool room : {true, false}) {
    LoaderOptions options{.threads = 1, .chunk_buffers = 4, .heartbeat_ns = 5 * kMillisecond, .files = &disk};
    options.sources.cache_bytes = bytes * (room ? 24 : 6);
    World world(options);
    (void)world.expect<LoaderHello>();
    const auto read_four = [&](const TinyDataset& data) {
      const std::string json = json_of(data);
      REQUIRE(world.prepare(json).good);
      world.send(lease_of(json, 0, {0, 1, 2, 3}));
      const ChunkArrived chunk = world.expect_chunk();
      world.end().release(chunk.peer, chunk.token);
      (void)world.expect<ChunkBufferFree>();
    };
    read_four(one);
    world.send(SplitClosed{fingerprint_of(json_of(one))});
    read_four(two);
    // What is too much goes with a heartbeat: with the first of two at the latest.
    const int before = world.beats();
    for (int i = 0; i < 100 && world.beats() < before + 2; ++i) CHECK(world.quiet(50 * kMillisecond));
    (void)disk.listed();
    REQUIRE(world.prepare(json_of(one)).good);
    CHECK(disk.listed() == (room ? 0 : 6));
  }
}

TEST_CASE(
    "leases that come while the dataset is being listed wait for it; revoked or impossible, they cost no chunk "
    "buffer") {
  const TinyDataset data(20);
  const std::string json = json_of(data);
  GatedDisk disk;
  World world({.threads = 1, .chunk_buffers = 4, .files = &disk});
  const std::unique_ptr<GatedDisk, void (*)(GatedDisk*)> opened_at_the_end(&disk, [](GatedDisk* d) { d->open(); });
  (void)world.expect<LoaderHello>();
  world.send(PrepareSplit{fingerprint_of(json), json, 8});
  world.send(lease_of(json, 0, {3}));
  world.send(lease_of(json, 1, {4}));
  world.send(LeaseRevoked{lease_of(json, 0, {3}).lease});
  (void)world.expect<ChunkBufferFree>();
  CHECK(world.quiet());
  disk.open();
  CHECK(world.expect<SplitPrepared>().good);
  ChunkHeader header;
  std::vector<SampleRecord> records;
  decode_envelope(world.expect_chunk().envelope, header, records);
  CHECK(header.lease.step == 1);
  CHECK(records.at(0).index == 4);
  CHECK(world.done().lease.step == 1);

  const Job job = load_job(data.job(), {"splits.train.dataset.folder=/no/such/folder"});
  const std::string nowhere = canonical_json(resolve_split(job, "train"));
  world.send(PrepareSplit{fingerprint_of(nowhere), nowhere, 8});
  world.send(lease_of(nowhere, 2, {1}));
  CHECK_FALSE(world.expect<SplitPrepared>().good);
  CHECK(world.expect<ChunkUndone>().lease.step == 2);
  (void)world.expect<ChunkBufferFree>();
}

TEST_CASE("heartbeats come by themselves; Goodbye, stop and a lost coordinator end it, each in its way") {
  {
    World world({.threads = 1, .heartbeat_ns = 5 * kMillisecond});
    (void)world.expect<LoaderHello>();
    CHECK(world.quiet(200 * kMillisecond));
    for (int i = 0; i < 9 && world.beats() < 5; ++i) CHECK(world.quiet(200 * kMillisecond));
    CHECK(world.beats() >= 5);
    world.send(Goodbye{false, 1, "a program failed"});
    CHECK_FALSE(world.result());
  }
  {
    World world({.threads = 1});
    (void)world.expect<LoaderHello>();
  }  // stop()
  {
    World world({.threads = 1});
    (void)world.expect<LoaderHello>();
    world.leave();
    CHECK_THROWS_WITH_AS((void)world.result(), doctest::Contains("coordinator"), Error);
  }
}

TEST_CASE("heartbeats go on while memory for chunk buffers is taken, however long that is") {
  TinyDataset data(10);
  const std::string json = json_of(data);
  const FieldTable fields = raw_fields(Pipeline(split_from_json(json).split.pipeline));
  constexpr int32_t kSamples = 1000;
  const int buffers = static_cast<int>((size_t{1} << 29) / chunk_layout(fields, kSamples).total_bytes) + 1;
  World world(
      {.threads = 1, .chunk_buffers = buffers, .memory_bytes = int64_t{1} << 30, .heartbeat_ns = 2 * kMillisecond});
  (void)world.expect<LoaderHello>();
  const int before = world.beats();
  REQUIRE(world.prepare(json, kSamples).good);
  CHECK(world.beats() - before >= 8);  // half a gigabyte takes 50 ms and more
}

TEST_CASE("a coordinator that falls silent, as one behind a broken network, ends the loader; one that beats does not") {
  World world({.threads = 1, .heartbeat_ns = 10 * kMillisecond, .silence_ns = kSecond});
  (void)world.expect<LoaderHello>();
  for (int beat = 0; beat < 30; ++beat) {
    world.send(Alive{});
    REQUIRE(world.quiet(50 * kMillisecond));
  }
  CHECK_THROWS_WITH_AS((void)world.result(), doctest::Contains("nothing was heard of it for 1 s"), Error);
}

TEST_CASE("a loader that is cut off stays for as long as its job may wait for it") {
  BalancerSpec balancer;
  balancer.lost_after_s = 10;
  balancer.wait_s = 300;
  CHECK(coordinator_silence_ns(balancer) == 20 * kSecond);
  balancer.on_all_lost = AllLostPolicy::wait;
  CHECK(coordinator_silence_ns(balancer) == 310 * kSecond);
  balancer.wait_s = 4;
  CHECK(coordinator_silence_ns(balancer) == 20 * kSecond);
}

TEST_CASE("where messages lie on their way for a while, more leases are asked for, and where they do not, none") {
  const TinyDataset data(20);
  for (const Nanoseconds delay : {Nanoseconds{0}, kSecond}) {
    World world({.threads = 1, .chunk_buffers = 8}, delay);
    (void)world.expect<LoaderHello>();
    const std::string json = json_of(data);
    REQUIRE(world.prepare(json).good);
    world.send(lease_of(json, 0, {0, 1}));
    const ChunkArrived chunk = world.expect_chunk();
    world.end().release(1, chunk.token);
    (void)world.expect<ChunkBufferFree>();  // the loader has been round its loop since
    // two small pictures last far less than a second: as many as chunk buffers
    CHECK(world.ahead() == (delay == 0 ? 0 : 8));
  }
}

TEST_CASE("lease depth follows the threads, and the loader's hello says it") {
  CHECK(lease_depth(1) == 2);
  CHECK(lease_depth(2) == 2);
  CHECK(lease_depth(8) == 5);
  for (const int threads : {1, 3, 8}) {
    World world({.threads = threads});
    CHECK(world.expect<LoaderHello>().depth == lease_depth(threads));
  }
}

}  // namespace
}  // namespace penstock
