// A receiver between scripted loaders and scripted clients: which chunks it takes, what its batch buffers go through,
// and that nobody's misbehaviour reaches anybody else's batches.
#include "runtime/receiver/receiver.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/client_protocol.h"
#include "tests/support/fake_endpoint.h"
#include "transport/unix_socket.h"

namespace penstock {
namespace {

constexpr PeerId kLoader = 1;
constexpr size_t kImageBytes = 3 * 4 * 4;

std::string split_json(const std::string& name, int batch = 4) {
  const Job job =
      parse_job("splits:\n  " + name +
                    ":\n    mode: train\n    dataset: {folder: /data}\n    pipeline: [{CenterCrop: {size: 4}}]\n"
                    "    sampler: {shuffle: true}\n    batch_size: " +
                    std::to_string(batch) + "\n",
                "job.yaml");
  return canonical_json(resolve_split(job, name));
}

// The training program, by hand.
class Client {
 public:
  explicit Client(UniqueFd fd) : socket_(std::move(fd)) {}

  void send(const ClientMessage& message) { socket_.send(encode_client(message)); }
  ClientMessage receive() {
    Packet packet;
    if (!socket_.receive_until(packet, 10 * kSecond)) {
      throw std::runtime_error(socket_.closed() ? "the receiver hung up" : "the receiver said nothing");
    }
    if (packet.fd) fd_ = std::move(packet.fd);
    return decode_client(packet.bytes);
  }
  template <class T>
  T expect() {
    ClientMessage message = receive();
    if (auto* failed = std::get_if<ClientFailed>(&message); failed != nullptr && !std::is_same_v<T, ClientFailed>) {
      throw std::runtime_error("failed: " + failed->error);
    }
    if (!std::holds_alternative<T>(message)) throw std::runtime_error("message " + std::to_string(message.index()));
    return std::get<T>(std::move(message));
  }
  bool silent(Nanoseconds time = 50 * kMillisecond) {
    Packet packet;
    return !socket_.receive_until(packet, time);
  }
  bool hung_up() {
    Packet packet;
    return !socket_.receive_until(packet, 10 * kSecond) && socket_.closed();
  }
  ClientIteration iterate(int32_t split, int64_t epoch = 0, int64_t step = 0) {
    send(ClientIterate{split, epoch, step});
    const auto iteration = expect<ClientIteration>();
    if (iteration.with_memory) {
      pools_[iteration.pool] = SharedMemory::open(
          std::move(fd_), iteration.batch_buffer_bytes * static_cast<size_t>(iteration.batch_buffers),
          SharedMemory::Access::read_write);
    }
    batch_buffer_bytes_[iteration.pool] = iteration.batch_buffer_bytes;
    return iteration;
  }
  std::byte* batch_buffer(const ClientBatch& batch) {
    return pools_.at(batch.pool).data() + batch_buffer_bytes_.at(batch.pool) * static_cast<size_t>(batch.batch_buffer);
  }
  void hang_up() { socket_.close(); }

 private:
  PacketSocket socket_;
  UniqueFd fd_;
  std::map<int32_t, SharedMemory> pools_;
  std::map<int32_t, uint64_t> batch_buffer_bytes_;
};

// A receiver in its thread, with one loader that does what the test says.
class World {
 public:
  explicit World(int prefetch = 2, int hold = 0, double retry_s = 0) : wire_(std::make_shared<FakeWire>()) {
    ReceiverOptions options;
    options.prefetch = prefetch;
    options.hold = hold;
    options.coordination.receivers = {0};
    options.coordination.loaders = {kLoader};
    options.coordination.nodes = {0, 0};
    options.coordination.chunk_samples = 2;
    options.coordination.balancer.lease_timeout_s = 1000;
    options.coordination.balancer.lost_after_s = 1000;
    options.coordination.balancer.retry_s = retry_s;
    receiver_ = make_receiver(options, std::make_unique<FakeEndpoint>(wire_));
    thread_ = std::thread([this] {
      try {
        receiver_->run();
      } catch (const Error& error) {
        failure_ = std::make_unique<Error>(error);
      }
      receiver_->disconnect_clients();
      ended_ = true;
    });
    send(LoaderHello{32, 32, 1});
  }
  ~World() {
    receiver_->stop();
    thread_.join();
  }

  FakeWire& wire() { return *wire_; }
  Receiver& receiver() { return *receiver_; }
  void send(const ControlMessage& message) { wire_->deliver(MessageArrived{kLoader, encode(message)}); }

  Client client() {
    auto [mine, theirs] = packet_socket_pair();
    receiver_->adopt(std::move(theirs));
    return Client(std::move(mine));
  }
  ClientOpened open(Client& client, const std::string& json, int64_t size = 12) {
    client.send(ClientOpen{json, -1, -1});
    PrepareSplit prepare;
    if (!known_.count(json)) {
      prepare = wire_->expect<PrepareSplit>(kLoader);
      known_.insert(json);
      SplitPrepared answer;
      answer.fingerprint = prepare.fingerprint;
      answer.good = true;
      answer.dataset_size = size;
      answer.dataset_fingerprint = std::string(32, '0');
      answer.classes = {"a", "b"};
      send(answer);
    }
    return client.expect<ClientOpened>();
  }
  // What the loader does once it hears that a split is closed everywhere.
  void forget(const std::string& json) {
    (void)wire_->expect<SplitClosed>(kLoader);
    known_.erase(json);
  }
  LeaseGranted lease() { return wire_->expect<LeaseGranted>(kLoader); }

  // The pixel value of a sample tells which it is.
  static uint8_t pixel_of(int64_t index) { return static_cast<uint8_t>(index * 5 + 1); }

  struct Made {
    ChunkHeader header;
    std::vector<SampleRecord> records;
    Message payload;
  };
  Made make(const LeaseGranted& lease) {
    Made made;
    made.header.lease = lease.lease;
    made.header.fingerprint = lease.fingerprint;
    made.header.epoch = lease.epoch;
    made.header.replica = lease.replica;
    made.header.first_row = lease.first_row;
    made.header.samples = static_cast<int32_t>(lease.samples.size());
    const FieldTable fields{{"image", FieldKind::image, DType::uint8, {3, 4, 4}},
                            {"label", FieldKind::tensor, DType::int64, {}}};
    const FieldLayout layout = chunk_layout(fields, made.header.samples);
    made.header.payload_bytes = layout.total_bytes;
    made.payload.resize(layout.total_bytes);
    for (size_t i = 0; i < lease.samples.size(); ++i) {
      SampleRecord record;
      record.planned = lease.samples[i];
      record.index = record.planned.index;
      record.key = "k" + std::to_string(record.index);
      made.records.push_back(record);
      std::memset(made.payload.data() + i * kImageBytes, pixel_of(record.index), kImageBytes);
      const int64_t label = record.index + 1000;
      std::memcpy(made.payload.data() + layout.offsets[1] + i * 8, &label, 8);
    }
    return made;
  }
  // Returns the token that release() must name.
  uint64_t send(const Made& made, PeerId loader = kLoader) {
    payloads_.push_back(std::make_unique<Message>(made.payload));
    wire_->deliver(ChunkArrived{loader, encode_envelope(made.header, made.records), *payloads_.back(), ++token_});
    return token_;
  }
  void done(const LeaseGranted& lease) { send(ChunkDone{lease.lease, 1000, 1000, 1000}); }
  // Makes the next `count` leases well.
  void work(int count) {
    for (int i = 0; i < count; ++i) {
      const LeaseGranted next = lease();
      send(make(next));
      done(next);
      send(ChunkBufferFree{0});
    }
  }
  bool released(uint64_t token, int times = 1) {
    return FakeWire::wait_until([&] { return wire_->releases(token) == times; });
  }
  // The error that ended run().
  const Error* failure() {
    return FakeWire::wait_until([&] { return ended_.load(); }) ? failure_.get() : nullptr;
  }
  nlohmann::json stats(Client& client) {
    client.send(ClientStats{});
    return parse_json(client.expect<ClientStatsJson>().json);
  }

 private:
  std::shared_ptr<FakeWire> wire_;
  std::unique_ptr<Receiver> receiver_;
  std::thread thread_;
  std::atomic<bool> ended_{false};
  std::unique_ptr<Error> failure_;
  std::set<std::string> known_;
  std::vector<std::unique_ptr<Message>> payloads_;
  uint64_t token_ = 100;
};

const int64_t* indices(Client& client, const ClientBatch& batch) {
  return reinterpret_cast<const int64_t*>(client.batch_buffer(batch));
}

// Every sample of a batch is what make() gave for its index.
void check_contents(Client& client, const ClientBatch& batch, int64_t batch_size = 4) {
  const FieldTable fields{{"image", FieldKind::image, DType::uint8, {3, 4, 4}},
                          {"label", FieldKind::tensor, DType::int64, {}}};
  const BatchBufferLayout layout = batch_buffer_layout(fields, batch_size);
  for (int64_t i = 0; i < batch.samples; ++i) {
    const int64_t index = indices(client, batch)[i];
    const std::byte* image = client.batch_buffer(batch) + layout.fields[0] + static_cast<size_t>(i) * kImageBytes;
    for (size_t p = 0; p < kImageBytes; ++p) REQUIRE(image[p] == static_cast<std::byte>(World::pixel_of(index)));
    int64_t label = 0;
    std::memcpy(&label, client.batch_buffer(batch) + layout.fields[1] + i * 8, 8);
    REQUIRE(label == index + 1000);
  }
}

TEST_CASE("chunks in any order become batches in order, then the end") {
  World world;
  Client client = world.client();
  const ClientOpened opened = world.open(client, split_json("train"), 10);
  CHECK(opened.steps == 3);
  CHECK(opened.classes == std::vector<std::string>{"a", "b"});
  const ClientIteration iteration = client.iterate(opened.split_id);
  CHECK(iteration.batch_buffers == 3);  // two of prefetch and one in use
  client.send(ClientNext{iteration.iteration});
  std::vector<LeaseGranted> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(world.lease());  // two steps of two chunks
  for (size_t i = leases.size(); i-- > 1;) world.send(world.make(leases[i]));
  CHECK(client.silent());  // step 1 is whole, step 0 is not
  world.send(world.make(leases[0]));
  auto batch = client.expect<ClientBatch>();
  CHECK(batch.step == 0);
  CHECK(batch.samples == 4);
  check_contents(client, batch);
  client.send(ClientRelease{batch.pool, batch.batch_buffer});
  client.send(ClientNext{iteration.iteration});
  batch = client.expect<ClientBatch>();
  CHECK(batch.step == 1);
  check_contents(client, batch);
  client.send(ClientNext{iteration.iteration});
  world.work(1);
  batch = client.expect<ClientBatch>();
  CHECK(batch.samples == 2);
  check_contents(client, batch);
  client.send(ClientNext{iteration.iteration});
  (void)client.expect<ClientEnd>();
  const auto stats = world.stats(client);
  CHECK(stats["splits"]["train"]["images"] == 10);
  CHECK(stats["dropped_chunks"] == 0);
}

TEST_CASE("a chunk that another loader makes a second time is compared, and goes nowhere") {
  World world;
  Client client = world.client();
  const ClientIteration iteration = client.iterate(world.open(client, split_json("train"), 8).split_id);
  client.send(ClientNext{iteration.iteration});
  World::Made first = world.make(world.lease());
  first.header.compared = true;
  world.send(first);
  World::Made second = first;
  second.header.lease.generation |= kRemakeBit;
  CHECK(world.released(world.send(second)));  // by the same loader: says nothing
  const LeaseGranted next = world.lease();
  World::Made other = world.make(next);
  other.header.compared = true;
  world.send(other);
  World::Made again = other;
  again.header.lease.generation |= kRemakeBit;
  CHECK(world.released(world.send(again, kLoader + 1)));
  CHECK(world.released(world.send(again, kLoader + 1)));  // it is not expected any more
  check_contents(client, client.expect<ClientBatch>());
  const auto stats = world.stats(client);
  CHECK(stats["compared_chunks"] == 1);
  CHECK(stats["dropped_chunks"] == 0);
  // One that does not hold together is a damaged chunk, as others are.
  World::Made cut = world.make(world.lease());
  cut.header.compared = true;
  world.send(cut);
  World::Made bad = cut;
  bad.header.lease.generation |= kRemakeBit;
  bad.payload.resize(8);
  CHECK(world.released(world.send(bad, kLoader + 1)));
  CHECK(world.stats(client)["compared_chunks"] == 1);
}

TEST_CASE("each client's share stands beside the receiver's sum") {
  World world;
  Client one = world.client();
  Client two = world.client();
  const auto take = [&](Client& client, const std::string& split, int batches) {
    const ClientIteration iteration = client.iterate(world.open(client, split_json(split), 8).split_id);
    client.send(ClientNext{iteration.iteration});
    world.work(2 * batches);
    for (int i = 0; i < batches; ++i) {
      if (i > 0) client.send(ClientNext{iteration.iteration});
      const auto batch = client.expect<ClientBatch>();
      client.send(ClientRelease{batch.pool, batch.batch_buffer});
    }
  };
  CHECK(world.stats(one)["client"] == nlohmann::json::object());
  take(one, "train", 2);
  const auto alone = world.stats(one);
  CHECK(alone["client"] == alone["splits"]);
  CHECK(alone["client"]["train"]["images"] == 8);
  take(two, "val", 1);
  CHECK(world.stats(one)["client"] == alone["client"]);
  const auto other = world.stats(two);
  CHECK(other["client"].size() == 1);
  CHECK(other["client"]["val"]["images"] == 4);
  CHECK(other["client"]["val"]["ranges"].size() == 1);  // of an iteration that goes on
  CHECK(other["splits"].size() == 2);
}

TEST_CASE("a chunk counts once: repetitions and older generations are dropped, and released all the same") {
  World world;
  Client client = world.client();
  const ClientOpened opened = world.open(client, split_json("train"));
  const ClientIteration iteration = client.iterate(opened.split_id);
  client.send(ClientNext{iteration.iteration});
  const LeaseGranted first = world.lease();
  const LeaseGranted second = world.lease();
  World::Made made = world.make(first);
  CHECK(world.released(world.send(made)));
  // The same again, as a slow executor would bring it, but with other pixels: they must go nowhere.
  World::Made late = made;
  late.header.lease.generation += 7;
  std::fill(late.payload.begin(), late.payload.end(), std::byte{0xee});
  CHECK(world.released(world.send(late)));
  // The other one comes from a generation that was revoked meanwhile: equal contents, so it is welcome.
  World::Made older = world.make(second);
  older.header.lease.generation -= 1;
  CHECK(world.released(world.send(older)));
  const auto batch = client.expect<ClientBatch>();
  check_contents(client, batch);
  // After delivery the batch buffer is the program's.
  std::vector<std::byte> before(client.batch_buffer(batch), client.batch_buffer(batch) + 4096);
  CHECK(world.released(world.send(late)));
  CHECK(std::equal(before.begin(), before.end(), client.batch_buffer(batch)));
  CHECK(world.stats(client)["dropped_chunks"] == 2);
}

TEST_CASE("chunks of an iteration that ended are dropped; the next iteration is not touched by them") {
  World world;
  Client client = world.client();
  const ClientOpened opened = world.open(client, split_json("train"));
  const ClientIteration old = client.iterate(opened.split_id);
  std::vector<LeaseGranted> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(world.lease());
  world.send(world.make(leases[0]));
  client.send(ClientStop{old.iteration});
  const ClientIteration fresh = client.iterate(opened.split_id, 1);
  CHECK(fresh.pool == old.pool);
  CHECK_FALSE(fresh.with_memory);
  client.send(ClientNext{fresh.iteration});
  std::vector<LeaseGranted> next{world.lease(), world.lease()};
  CHECK(next[0].epoch == 1);
  for (size_t i = 1; i < 4; ++i) {
    World::Made stale = world.make(leases[i]);
    std::fill(stale.payload.begin(), stale.payload.end(), std::byte{0xee});
    CHECK(world.released(world.send(stale)));
  }
  for (const LeaseGranted& lease : next) world.send(world.make(lease));
  const auto batch = client.expect<ClientBatch>();
  CHECK(batch.epoch == 1);
  check_contents(client, batch);
  CHECK(world.stats(client)["dropped_chunks"] == 3);
  client.send(ClientNext{old.iteration});
  CHECK(client.expect<ClientFailed>().error.find("has ended") != std::string::npos);
}

TEST_CASE("a chunk that does not fit its lease is to be made again; where nobody is left to do it, its rank is named") {
  const std::vector<std::pair<const char*, std::function<void(World::Made&)>>> wrongs{
      {"fingerprint", [](World::Made& m) { m.header.fingerprint ^= 1; }},
      {"arithmetic", [](World::Made& m) { m.header.arithmetic = 1; }},
      {"epoch", [](World::Made& m) { ++m.header.epoch; }},
      {"first row", [](World::Made& m) { m.header.first_row += 1; }},
      {"payload size", [](World::Made& m) { m.header.payload_bytes -= 64; }},
      {"payload cut", [](World::Made& m) { m.payload.resize(64); }},
      {"payload checksum",
       [](World::Made& m) { m.header.payload_crc = 1 + crc32c(m.payload.data(), m.payload.size()); }},
      {"fewer samples",
       [](World::Made& m) {
         m.header.samples = 1;
         m.records.resize(1);
         m.payload.resize(128);
         m.header.payload_bytes = 128;
       }},
      {"no samples",
       [](World::Made& m) {
         m.header.samples = 0;
         m.records.clear();
         m.payload.clear();
         m.header.payload_bytes = 0;
       }},
  };
  for (const auto& [name, spoil] : wrongs) {
    const std::string what = name;  // clang 14 captures no structured binding
    CAPTURE(what);
    World world;
    Client client = world.client();
    const ClientOpened opened = world.open(client, split_json("train"));
    const ClientIteration iteration = client.iterate(opened.split_id);
    client.send(ClientNext{iteration.iteration});
    World::Made made = world.make(world.lease());
    spoil(made);
    const uint64_t token = world.send(made);
    CHECK(world.released(token));
    const std::string problem = client.expect<ClientFailed>().error;
    CHECK(problem.find("rank 1 (loader)") != std::string::npos);
  }
  {
    World world(2, 0, /*retry_s=*/60);
    Client client = world.client();
    const ClientIteration iteration = client.iterate(world.open(client, split_json("train")).split_id);
    client.send(ClientNext{iteration.iteration});
    World::Made made = world.make(world.lease());
    made.header.payload_crc = 1 + crc32c(made.payload.data(), made.payload.size());
    world.send(made);
    world.send(ChunkBufferFree{0});
    world.work(6);  // all others, and this one once more
    check_contents(client, client.expect<ClientBatch>());
  }
  World world;  // a right checksum, for contrast
  Client client = world.client();
  const ClientIteration iteration = client.iterate(world.open(client, split_json("train")).split_id);
  client.send(ClientNext{iteration.iteration});
  for (int i = 0; i < 2; ++i) {
    World::Made made = world.make(world.lease());
    made.header.payload_crc = crc32c(made.payload.data(), made.payload.size());
    world.send(made);
  }
  CHECK(client.expect<ClientBatch>().step == 0);
}

// As many batches as there are batch buffers, none of them given back.
std::vector<ClientBatch> hold_all(World& world, Client& client, const ClientIteration& iteration) {
  std::vector<ClientBatch> held;
  for (int32_t i = 0; i < iteration.batch_buffers; ++i) {
    client.send(ClientNext{iteration.iteration});
    world.work(2);
    held.push_back(client.expect<ClientBatch>());
  }
  return held;
}

TEST_CASE("all batch buffers held: one notice, silence, and the batch once a batch buffer is back") {
  World world(/*prefetch=*/1, /*hold=*/0);
  Client client = world.client();
  const ClientOpened opened = world.open(client, split_json("train"), 40);
  const ClientIteration iteration = client.iterate(opened.split_id);
  const std::vector<ClientBatch> held = hold_all(world, client, iteration);
  client.send(ClientNext{iteration.iteration});
  CHECK(client.expect<ClientNotice>().text.find("holds all") != std::string::npos);
  CHECK(client.silent());
  LeaseGranted none;
  CHECK_FALSE(world.wire().take(kLoader, none));  // nothing is leased that has no batch buffer
  for (const ClientBatch& batch : held) check_contents(client, batch);
  client.send(ClientRelease{held[1].pool, held[1].batch_buffer});
  client.send(ClientRelease{held[1].pool, held[1].batch_buffer});  // twice, and nonsense: harmless
  client.send(ClientRelease{held[1].pool, 99});
  client.send(ClientRelease{77, 0});
  world.work(2);
  const auto batch = client.expect<ClientBatch>();
  CHECK(batch.batch_buffer == held[1].batch_buffer);
  CHECK(batch.step == iteration.batch_buffers);
  check_contents(client, batch);
}

TEST_CASE("batches held from a broken-off iteration stay untouched by the next") {
  World world(2, 2);
  Client client = world.client();
  const ClientOpened opened = world.open(client, split_json("train"), 40);
  ClientIteration iteration = client.iterate(opened.split_id);
  client.send(ClientNext{iteration.iteration});
  world.work(4);
  const auto kept = client.expect<ClientBatch>();
  client.send(ClientStop{iteration.iteration});
  const std::vector<std::byte> before(client.batch_buffer(kept), client.batch_buffer(kept) + 4096);
  LeaseGranted late;
  FakeWire::wait_until([&] { return world.wire().take(kLoader, late); }, std::chrono::milliseconds(200));
  iteration = client.iterate(opened.split_id, 1);
  for (int step = 0; step < 8; ++step) {
    client.send(ClientNext{iteration.iteration});
    for (;;) {  // leases of the old iteration may still come first
      const LeaseGranted lease = world.lease();
      world.send(world.make(lease));
      world.done(lease);
      world.send(ChunkBufferFree{0});
      if (lease.lease.lease_stream == iteration.iteration && lease.lease.chunk == 1 && lease.lease.step == step) break;
      if (lease.lease.lease_stream == iteration.iteration && lease.lease.step > step) break;
    }
    const auto batch = client.expect<ClientBatch>();
    CHECK(batch.step == step);
    CHECK(batch.batch_buffer != kept.batch_buffer);
    check_contents(client, batch);
    client.send(ClientRelease{batch.pool, batch.batch_buffer});
  }
  CHECK(std::equal(before.begin(), before.end(), client.batch_buffer(kept)));
}

TEST_CASE("two iterations and two splits side by side have batch buffers of their own") {
  World world;
  Client client = world.client();
  const ClientOpened train = world.open(client, split_json("train"));
  const ClientOpened val = world.open(client, split_json("val", 2));
  const ClientIteration a = client.iterate(train.split_id);
  const ClientIteration b = client.iterate(train.split_id);
  const ClientIteration c = client.iterate(val.split_id);
  CHECK(std::set<int32_t>{a.pool, b.pool, c.pool}.size() == 3);
  // Nobody reads a or b, yet c is served: prefetching cannot starve a validation iteration.
  client.send(ClientNext{c.iteration});
  std::optional<ClientBatch> batch;
  for (bool first = false; !first;) {
    const LeaseGranted lease = world.lease();
    if (lease.lease.lease_stream != c.iteration) continue;
    world.send(world.make(lease));
    world.done(lease);
    first = lease.lease.step == 0;
  }
  batch = client.expect<ClientBatch>();
  CHECK(batch->pool == c.pool);
  check_contents(client, *batch, 2);
}

TEST_CASE("a client that hangs up is forgotten; the receiver serves the next one") {
  World world;
  {
    Client client = world.client();
    const ClientOpened opened = world.open(client, split_json("train"));
    const ClientIteration iteration = client.iterate(opened.split_id);
    client.send(ClientNext{iteration.iteration});
    (void)world.lease();
    client.hang_up();
    world.forget(split_json("train"));  // nobody has it open any more: loaders are told, and asked anew
  }
  Client client = world.client();
  const ClientOpened opened = world.open(client, split_json("train"));
  const ClientIteration iteration = client.iterate(opened.split_id);
  client.send(ClientNext{iteration.iteration});
  for (int fresh = 0; fresh < 2;) {
    const LeaseGranted lease = world.lease();
    world.send(world.make(lease));
    world.done(lease);
    world.send(ChunkBufferFree{0});
    fresh += lease.lease.lease_stream == iteration.iteration && lease.lease.step == 0 ? 1 : 0;
  }
  check_contents(client, client.expect<ClientBatch>());
}

TEST_CASE("a client's iterations and batch buffers are its own: what another one says of them does nothing") {
  World world(/*prefetch=*/1, /*hold=*/0);
  Client client = world.client();
  Client stranger = world.client();
  const ClientOpened opened = world.open(client, split_json("train"), 40);
  const ClientIteration iteration = client.iterate(opened.split_id);
  const std::vector<ClientBatch> held = hold_all(world, client, iteration);
  std::vector<std::byte> before(client.batch_buffer(held[0]),
                                client.batch_buffer(held[0]) + iteration.batch_buffer_bytes);

  stranger.send(ClientIterate{opened.split_id, 0, 0});
  CHECK(stranger.expect<ClientFailed>().error == "the split was not opened");
  stranger.send(ClientNext{iteration.iteration});
  CHECK(stranger.expect<ClientFailed>().error == "this iteration has ended");
  stranger.send(ClientStop{iteration.iteration});
  for (const ClientBatch& batch : held) stranger.send(ClientRelease{batch.pool, batch.batch_buffer});
  (void)world.stats(stranger);  // all of it has been heard

  // Every batch buffer is still held, so nothing is written to.
  client.send(ClientNext{iteration.iteration});
  CHECK(client.expect<ClientNotice>().held_iteration == iteration.iteration);
  CHECK(client.silent());
  CHECK(std::equal(before.begin(), before.end(), client.batch_buffer(held[0])));
  client.send(ClientRelease{held[1].pool, held[1].batch_buffer});
  world.work(2);
  const auto batch = client.expect<ClientBatch>();
  CHECK(batch.step == iteration.batch_buffers);
  check_contents(client, batch);
}

TEST_CASE("what the loader cannot do reaches the client as an error, not as silence") {
  World world;
  Client client = world.client();
  const ClientOpened opened = world.open(client, split_json("train"));
  const ClientIteration iteration = client.iterate(opened.split_id);
  client.send(ClientNext{iteration.iteration});
  std::optional<ClientFailed> failed;
  for (int i = 0; i < 20 && !failed; ++i) {
    LeaseGranted lease;
    if (FakeWire::wait_until([&] { return world.wire().take(kLoader, lease); }, std::chrono::milliseconds(200))) {
      world.send(ChunkUndone{lease.lease, "cannot read '/data/x.jpg': Input/output error"});
      world.send(ChunkBufferFree{0});
    } else if (!client.silent(0)) {
      break;
    }
    if (i >= 2 && !failed) {
      try {
        failed = client.expect<ClientFailed>();
      } catch (const std::runtime_error&) {
      }
    }
  }
  REQUIRE(failed.has_value());
  CHECK(failed->error.find("/data/x.jpg") != std::string::npos);
  CHECK(failed->error_kind == static_cast<int32_t>(ErrorKind::runtime));
}

TEST_CASE("a loader's refusal of a split is the client's error") {
  World world;
  Client client = world.client();
  client.send(ClientOpen{split_json("train"), -1, -1});
  const auto prepare = world.wire().expect<PrepareSplit>(kLoader);
  SplitPrepared answer;
  answer.fingerprint = prepare.fingerprint;
  answer.error_kind = static_cast<int32_t>(ErrorKind::dataset);
  answer.error = "no folder '/data'";
  answer.remedy = "check the path";
  world.send(answer);
  const auto refused = client.expect<ClientRefused>();
  CHECK(refused.error.find("no folder '/data'") != std::string::npos);
  CHECK(refused.remedy == "check the path");
  CHECK(refused.error_kind == static_cast<int32_t>(ErrorKind::dataset));
}

TEST_CASE("nonsense from a client is answered, and harms nobody") {
  World world;
  Client client = world.client();
  client.send(ClientOpen{"not json", -1, -1});
  CHECK(client.expect<ClientRefused>().error_kind == static_cast<int32_t>(ErrorKind::config));
  client.send(ClientOpen{split_json("train"), 1, -1});  // int64 images do not exist
  CHECK(client.expect<ClientRefused>().error_kind == static_cast<int32_t>(ErrorKind::usage));
  client.send(ClientIterate{99, 0, 0});
  (void)client.expect<ClientFailed>();
  client.send(ClientNext{99});
  (void)client.expect<ClientFailed>();
  client.send(ClientEnd{});
  (void)client.expect<ClientFailed>();
  client.send(ClientStop{12345});
  client.send(ClientStats{});
  (void)client.expect<ClientStatsJson>();
}

TEST_CASE("a loader whose chunk cannot be read is given up, is told so, and joins again") {
  World world;
  world.wire().deliver(PeerDamaged{kLoader, "rank 1 sent a chunk's envelope that is too short"});
  CHECK(world.wire().expect<GivenUp>(kLoader).incarnation == 1);
  CHECK(FakeWire::wait_until([&] { return world.wire().given_up(kLoader); }));
  world.send(LoaderHello{32, 32, 1, 1});
  Client client = world.client();
  world.open(client, split_json("train"));  // the loader is asked to open it
}

TEST_CASE("another trainer's rank that falls silent ends the job by name, and everybody hears why") {
  auto wire = std::make_shared<FakeWire>();
  ReceiverOptions options;
  options.whole_job = true;
  options.num_replicas = 2;
  options.coordination.receivers = {0, 2};
  options.coordination.loaders = {kLoader};
  options.coordination.balancer.lost_after_s = 1000;
  options.heartbeat_ns = 10 * kMillisecond;
  options.silence_ns = kSecond;
  options.hosts = {"a", "a", "b"};
  const auto receiver = make_receiver(options, std::make_unique<FakeEndpoint>(wire));
  std::atomic<bool> ended{false};
  std::thread thread([&] {
    receiver->run();
    ended = true;
  });
  for (int beat = 0; beat < 30; ++beat) {
    wire->deliver(MessageArrived{2, encode(Alive{})});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK_FALSE(ended);
  (void)wire->expect<Alive>(kLoader);
  (void)wire->expect<Alive>(2);
  const Goodbye said = wire->expect<Goodbye>(2);
  thread.join();
  CHECK_FALSE(said.good);
  CHECK_FALSE(said.all_alive);
  CHECK(said.exit_code == static_cast<int>(ErrorKind::peer_lost));
  CHECK(said.reason.find("lost a trainer (rank 2, host b): nothing was heard of it for 1 s") != std::string::npos);
}

// The second of two trainers' ranks; rank 0 coordinates.
ReceiverOptions of_rank_2() {
  ReceiverOptions options;
  options.whole_job = true;
  options.self = 2;
  options.replica = 1;
  options.num_replicas = 2;
  return options;
}

TEST_CASE("a trainer's rank reports to the coordinator that it lives, and does not wait for a silent one for ever") {
  auto wire = std::make_shared<FakeWire>();
  ReceiverOptions options = of_rank_2();
  options.heartbeat_ns = 10 * kMillisecond;
  options.silence_ns = 500 * kMillisecond;
  const auto receiver = make_receiver(options, std::make_unique<FakeEndpoint>(wire));
  std::string problem;
  std::atomic<bool> ended{false};
  std::thread thread([&] {
    try {
      receiver->run();
    } catch (const Error& error) {
      problem = error.what();
    }
    ended = true;
  });
  for (int beat = 0; beat < 30; ++beat) {
    wire->deliver(MessageArrived{0, encode(Alive{})});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK_FALSE(ended);
  (void)wire->expect<Alive>(0);
  thread.join();
  CHECK(problem.find("lost trainer 0 (rank 0), which coordinates: nothing was heard of it for 1 s") !=
        std::string::npos);
}

TEST_CASE("a damaged message that comes while a failure is being told does not take the place of its cause") {
  auto wire = std::make_shared<FakeWire>();
  ReceiverOptions options = of_rank_2();
  const auto receiver = make_receiver(options, std::make_unique<FakeEndpoint>(wire));
  std::string problem;
  std::thread thread([&] {
    try {
      receiver->run();
    } catch (const Error& error) {
      problem = error.what();
    }
  });
  wire->deliver(MessageArrived{0, encode(LoaderHello{})});  // which is not for it, and ends the job
  const auto told = wire->expect<ReceiverDone>(0);
  CHECK_FALSE(told.good);
  CHECK(told.problem.find("a message that is not for this receiver") != std::string::npos);
  wire->deliver(MessageArrived{0, Message(7)});
  Goodbye goodbye;
  goodbye.reason = told.problem;
  wire->deliver(MessageArrived{0, encode(goodbye)});
  thread.join();
  CHECK(problem.empty());
  CHECK(receiver->goodbye().reason == told.problem);
}

TEST_CASE("a program without the job's token is refused; with it, it is welcome") {
  auto wire = std::make_shared<FakeWire>();
  ReceiverOptions options;
  options.coordination.receivers = {0};
  options.coordination.loaders = {kLoader};
  const auto receiver = make_receiver(options, std::make_unique<FakeEndpoint>(wire));
  const std::string name = "penstock-test/" + std::to_string(::getpid()) + "/receiver";
  receiver->listen(name, "right");
  std::thread thread([&] { receiver->run(); });
  {
    Client stranger(connect_abstract(name, kSecond));
    stranger.send(ClientHello{"wrong", 1});
    CHECK(stranger.expect<ClientRefused>().error.find("does not belong") != std::string::npos);
    CHECK(stranger.hung_up());
    Client rude(connect_abstract(name, kSecond));
    rude.send(ClientStats{});
    (void)rude.expect<ClientRefused>();
    Client welcome(connect_abstract(name, kSecond));
    welcome.send(ClientHello{"right", 1});
    CHECK(welcome.expect<ClientWelcome>().num_replicas == 1);
    welcome.send(ClientStats{});
    (void)welcome.expect<ClientStatsJson>();

    // Noise before the hello ends the connection; silence lasts until others come; and neither keeps anybody waiting.
    const UniqueFd noise = connect_abstract(name, kSecond);
    REQUIRE(::send(noise.get(), "\0noise", 6, MSG_NOSIGNAL) == 6);
    Client babble(connect_abstract(name, kSecond));
    babble.send(ClientNext{1});
    (void)babble.expect<ClientRefused>();
    CHECK(babble.hung_up());
    std::vector<UniqueFd> silent(200);
    for (UniqueFd& one : silent) one = connect_abstract(name, kSecond);
    pollfd first{silent.front().get(), POLLIN, 0};
    CHECK(::poll(&first, 1, 5000) == 1);

    // Who reads no answers is not read from: what it sends waits in the kernel, which takes no more in the end.
    const UniqueFd deaf = connect_abstract(name, kSecond);
    const auto says = [&](const ClientMessage& message) {
      Message packet = encode_client(message);
      packet.insert(packet.begin(), std::byte{0});
      return ::send(deaf.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
    };
    REQUIRE(says(ClientHello{"right", 1}));
    int taken = 0;
    for (int refused = 0; refused < 50 && taken < 100'000;) {
      if (says(ClientStats{})) {
        ++taken;
      } else {
        ++refused;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    CHECK(taken < 10'000);
    welcome.send(ClientStats{});
    (void)welcome.expect<ClientStatsJson>();
  }
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  receiver->stop();
  thread.join();
  CHECK(clock.now() - begun < 10 * kSecond);
  receiver->disconnect_clients();
  CHECK_THROWS_AS((void)connect_abstract(name, 10 * kMillisecond), Error);
}

}  // namespace
}  // namespace penstock
