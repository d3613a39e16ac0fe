// What transport.h promises, checked over every transport that needs no launcher: order, size, chunk buffers, loss,
// leaks.
#include <dirent.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "runtime/base/error.h"
#include "transport/inproc/inproc.h"
#include "transport/mesh.h"
#include "transport/shm/shm.h"

namespace penstock::transport_contract_test {
namespace {

std::string unique_job() {
  static int count = 0;
  return "test" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

using Ends = std::vector<std::unique_ptr<Endpoint>>;

struct Inproc {
  static Ends make(int ranks) {
    InprocWorld world(ranks);
    Ends ends;
    for (int i = 0; i < ranks; ++i) ends.push_back(world.endpoint(i));
    return ends;
  }
};

std::vector<std::unique_ptr<ShmEndpoint>> make_shm(const std::vector<PeerId>& ranks) {
  const std::string job = unique_job();
  std::vector<std::unique_ptr<ShmEndpoint>> ends;
  for (const PeerId rank : ranks) {
    ends.push_back(
        std::make_unique<ShmEndpoint>(ShmOptions{.job = job, .token = "secret", .self = rank, .node_peers = ranks}));
  }
  for (const auto& end : ends) end->connect();
  return ends;
}

struct Shm {
  static Ends make(int ranks) {
    std::vector<PeerId> ids;
    for (int i = 0; i < ranks; ++i) ids.push_back(i);
    Ends ends;
    for (auto& end : make_shm(ids)) ends.push_back(std::move(end));
    return ends;
  }
};

// Ranks 0 and 1 reach each other over shm, everybody else over inproc.
struct Both {
  static Ends make(int ranks) {
    InprocWorld world(ranks);
    auto near = make_shm({0, 1});
    Ends ends;
    for (int i = 0; i < ranks; ++i) {
      auto mesh = std::make_unique<Mesh>();
      std::vector<PeerId> far;
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer != i && (i > 1 || peer > 1)) far.push_back(peer);
      }
      mesh->add(world.endpoint(i), far);
      if (i < 2) mesh->add(std::move(near[static_cast<size_t>(i)]), {1 - i});
      ends.push_back(std::move(mesh));
    }
    return ends;
  }
};

// Polls all living ends in turn and keeps what each of them got.
struct Net {
  explicit Net(Ends made) : ends(std::move(made)), got(ends.size()) {}

  bool pump(const std::function<bool()>& done, Nanoseconds timeout = 20 * kSecond) {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + timeout;
    while (!done()) {
      bool moved = false;
      for (size_t i = 0; i < ends.size(); ++i) {
        Incoming incoming;
        if (ends[i] && ends[i]->poll(incoming)) {
          got[i].push_back(std::move(incoming));
          moved = true;
        }
      }
      if (moved) continue;
      if (clock.now() > deadline) return false;
      std::vector<pollfd> fds;
      for (const auto& end : ends) {
        if (end) end->collect_fds(fds);
      }
      ::poll(fds.data(), fds.size(), 20);
    }
    return true;
  }
  // Everything that is on its way has arrived when nothing comes for a while.
  void settle() {
    (void)pump([] { return false; }, 50 * kMillisecond);
  }
  template <class T>
  std::vector<const T*> all(size_t rank) const {
    std::vector<const T*> found;
    for (const Incoming& incoming : got[rank]) {
      if (const auto* item = std::get_if<T>(&incoming)) found.push_back(item);
    }
    return found;
  }

  Ends ends;
  std::vector<std::vector<Incoming>> got;
};

Message message_of(size_t size, uint32_t seed) {
  Message message(size);
  uint64_t random = seed;
  for (size_t at = 0; at < size; at += sizeof random) {  // eight bytes at a time: there are megabytes of them
    random = random * 6364136223846793005U + 1442695040888963407U;
    const uint64_t mixed = random ^ random >> 29;
    std::memcpy(message.data() + at, &mixed, std::min(sizeof mixed, size - at));
  }
  return message;
}

// For a loader at `end`.
Arena make_arena(const Endpoint& end, uint32_t id, size_t chunk_buffers, size_t chunk_buffer_bytes) {
  Arena arena;
  arena.id = id;
  arena.chunk_buffer_bytes = chunk_buffer_bytes;
  if (end.peers_map_arenas()) {
    arena.memory = SharedMemory::create("penstock-test", chunk_buffers * chunk_buffer_bytes);
    arena.memory.seal_future_writes();
  } else {
    arena.memory = SharedMemory::create_private("penstock-test", chunk_buffers * chunk_buffer_bytes);
  }
  return arena;
}

void fill_chunk_buffer(const Arena& arena, uint32_t chunk_buffer, size_t bytes, uint32_t seed) {
  const Message content = message_of(bytes, seed);
  std::copy(content.begin(), content.end(), arena.chunk_buffer(chunk_buffer));
}

int open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  int count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

#define TRANSPORTS Inproc, Shm, Both

TEST_CASE_TEMPLATE("messages arrive whole and in the order of each sender", T, TRANSPORTS) {
  Net net(T::make(3));
  constexpr uint32_t kCount = 400;
  const auto size_of_message = [](uint32_t i) { return (i * 37) % 300 + (i % 50 == 0 ? 200'000 : 0); };
  for (uint32_t i = 0; i < kCount; ++i) {
    net.ends[0]->send(2, message_of(size_of_message(i), i));
    net.ends[1]->send(2, message_of(size_of_message(i), i + 10'000));
    net.ends[2]->send(0, message_of(3, i));
  }
  REQUIRE(net.pump([&] { return net.got[2].size() == 2 * kCount && net.got[0].size() == kCount; }));
  std::map<PeerId, uint32_t> next;
  for (const MessageArrived* m : net.all<MessageArrived>(2)) {
    const uint32_t i = next[m->peer]++;
    REQUIRE(m->message == message_of(size_of_message(i), m->peer == 0 ? i : i + 10'000));
  }
  CHECK(next == std::map<PeerId, uint32_t>{{0, kCount}, {1, kCount}});
}

TEST_CASE_TEMPLATE("a descriptor comes with its message, between what was sent before and after it", T, TRANSPORTS) {
  const int before = open_descriptors();
  {
    Net net(T::make(2));
    const SharedMemory memory = SharedMemory::create("penstock-test", 4096);
    memory.data()[7] = std::byte{42};
    REQUIRE(net.ends[0]->capabilities(1).carries_descriptors);
    const Arena arena = make_arena(*net.ends[0], 1, 1, 4096);
    net.ends[0]->register_arena(arena);
    net.ends[0]->send(1, message_of(10, 1));
    net.ends[0]->send_with(1, message_of(300'000, 2), memory.fd());
    net.ends[0]->send_chunk(1, message_of(20, 3), {1, 0}, 100);
    net.ends[0]->send(1, message_of(10, 4));
    REQUIRE(net.pump([&] { return net.got[1].size() == 4; }));
    auto* const plain = std::get_if<MessageArrived>(&net.got[1][0]);
    auto* const with = std::get_if<MessageArrived>(&net.got[1][1]);
    REQUIRE((plain != nullptr && with != nullptr && std::holds_alternative<ChunkArrived>(net.got[1][2])));
    CHECK_FALSE(plain->fd);
    CHECK(with->message == message_of(300'000, 2));
    REQUIRE(with->fd);
    CHECK(with->fd.get() != memory.fd());
    const SharedMemory theirs = SharedMemory::open(std::move(with->fd), 4096, SharedMemory::Access::read);
    CHECK(theirs.data()[7] == std::byte{42});
    memory.data()[7] = std::byte{43};
    CHECK(theirs.data()[7] == std::byte{43});
    net.ends[0]->send_with(1, message_of(10, 5), memory.fd());  // nobody takes it
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE_TEMPLATE("megabytes both ways at once do not block", T, TRANSPORTS) {
  Net net(T::make(2));
  for (uint32_t i = 0; i < 4; ++i) {  // all sent before anybody reads
    net.ends[0]->send(1, message_of(3'000'000 + i, i));
    net.ends[1]->send(0, message_of(5'000'000 + i, i + 100));
  }
  REQUIRE(net.pump([&] { return net.got[0].size() == 4 && net.got[1].size() == 4; }));
  for (uint32_t i = 0; i < 4; ++i) {
    REQUIRE(net.all<MessageArrived>(1)[i]->message == message_of(3'000'000 + i, i));
    REQUIRE(net.all<MessageArrived>(0)[i]->message == message_of(5'000'000 + i, i + 100));
  }
  CHECK(net.ends[0]->flush(kSecond));
}

TEST_CASE_TEMPLATE("what was sent wakes a poll on the receiver's descriptors", T, TRANSPORTS) {
  Net net(T::make(2));
  net.settle();  // connections are made
  for (int round = 0; round < 3; ++round) {
    net.ends[0]->send(1, message_of(8, 1));
    std::vector<pollfd> fds;
    net.ends[1]->collect_fds(fds);
    REQUIRE(::poll(fds.data(), fds.size(), 2000) > 0);
    REQUIRE(net.pump([&] { return net.got[1].size() == static_cast<size_t>(round) + 1; }));
    net.settle();
    fds.clear();
    net.ends[1]->collect_fds(fds);
    CHECK(::poll(fds.data(), fds.size(), 0) == 0);  // and an idle one sleeps
  }
}

TEST_CASE_TEMPLATE("a chunk's payload is the chunk buffer, and every chunk buffer comes back once", T, TRANSPORTS) {
  constexpr uint32_t kChunkBuffers = 8;
  constexpr size_t kBytes = 10'000;
  Net net(T::make(3));
  const Arena first = make_arena(*net.ends[1], 1, kChunkBuffers, 12'288);
  const Arena second = make_arena(*net.ends[1], 7, kChunkBuffers, 12'288);
  for (const Arena* arena : {&first, &second}) net.ends[1]->register_arena(*arena);
  for (const Arena* arena : {&first, &second}) {
    for (uint32_t chunk_buffer = 0; chunk_buffer < kChunkBuffers; ++chunk_buffer) {
      const size_t bytes = kBytes + chunk_buffer;
      fill_chunk_buffer(*arena, chunk_buffer, bytes, arena->id * 100 + chunk_buffer);
      net.ends[1]->send_chunk(chunk_buffer % 2 == 0 ? 0 : 2, message_of(50, chunk_buffer), {arena->id, chunk_buffer},
                              bytes);
    }
  }
  REQUIRE(net.pump([&] {
    return net.all<ChunkArrived>(0).size() == kChunkBuffers && net.all<ChunkArrived>(2).size() == kChunkBuffers;
  }));
  net.settle();
  CHECK(net.got[1].empty());  // nothing comes back before it is released
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    size_t nth = 0;
    for (const ChunkArrived* chunk : net.all<ChunkArrived>(rank)) {
      const auto chunk_buffer = static_cast<uint32_t>(nth % (kChunkBuffers / 2) * 2 + rank / 2);
      const uint32_t arena = nth++ < kChunkBuffers / 2 ? 1 : 7;
      REQUIRE(chunk->peer == 1);
      REQUIRE(chunk->envelope == message_of(50, chunk_buffer));
      const Message expected = message_of(kBytes + chunk_buffer, arena * 100 + chunk_buffer);
      REQUIRE(Message(chunk->payload.begin(), chunk->payload.end()) == expected);
    }
    for (const ChunkArrived* chunk : net.all<ChunkArrived>(rank)) {
      net.ends[rank]->release(1, chunk->token);
      net.ends[rank]->release(1, chunk->token);  // again: harmless
    }
  }
  REQUIRE(net.pump([&] { return net.all<ChunkBufferReturned>(1).size() >= 2 * kChunkBuffers; }));
  net.settle();
  std::multiset<std::pair<uint32_t, uint32_t>> chunk_buffers;
  for (const ChunkBufferReturned* item : net.all<ChunkBufferReturned>(1)) {
    chunk_buffers.insert({item->chunk_buffer.arena, item->chunk_buffer.index});
    CHECK(item->peer == (item->chunk_buffer.index % 2 == 0 ? 0 : 2));
  }
  CHECK(chunk_buffers.size() == 2 * kChunkBuffers);
  CHECK(std::set<std::pair<uint32_t, uint32_t>>(chunk_buffers.begin(), chunk_buffers.end()).size() ==
        2 * kChunkBuffers);
  // The chunk buffer is ours again: it can be filled and sent anew.
  fill_chunk_buffer(first, 0, kBytes, 999);
  net.ends[1]->send_chunk(0, {}, {1, 0}, kBytes);
  REQUIRE(net.pump([&] { return net.all<ChunkArrived>(0).size() == kChunkBuffers + 1; }));
  const auto& payload = net.all<ChunkArrived>(0).back()->payload;
  CHECK(Message(payload.begin(), payload.end()) == message_of(kBytes, 999));
}

TEST_CASE_TEMPLATE("a receiver's death is reported once and brings its chunk buffers back", T, TRANSPORTS) {
  Net net(T::make(3));
  const Arena arena = make_arena(*net.ends[1], 1, 8, 4096);
  net.ends[1]->register_arena(arena);
  for (uint32_t chunk_buffer = 0; chunk_buffer < 3; ++chunk_buffer)
    net.ends[1]->send_chunk(0, {}, {1, chunk_buffer}, 100);
  REQUIRE(net.pump([&] { return net.all<ChunkArrived>(0).size() == 3; }));
  net.ends[0]->release(1, net.all<ChunkArrived>(0)[0]->token);  // one released, two read, two more on their way
  for (uint32_t chunk_buffer = 3; chunk_buffer < 5; ++chunk_buffer)
    net.ends[1]->send_chunk(0, {}, {1, chunk_buffer}, 100);
  net.ends[0].reset();
  REQUIRE(net.pump([&] {
    return net.all<ChunkBufferReturned>(1).size() >= 5 && !net.all<PeerLost>(1).empty() &&
           !net.all<PeerLost>(2).empty();
  }));
  // Whatever is sent now is dropped; a chunk buffer comes straight back.
  net.ends[1]->send(0, message_of(100, 1));
  net.ends[1]->send_chunk(0, {}, {1, 5}, 100);
  net.ends[1]->release(0, 77);
  net.settle();
  std::multiset<uint32_t> chunk_buffers;
  for (const ChunkBufferReturned* item : net.all<ChunkBufferReturned>(1))
    chunk_buffers.insert(item->chunk_buffer.index);
  CHECK(chunk_buffers == std::multiset<uint32_t>{0, 1, 2, 3, 4, 5});
  for (const size_t rank : {size_t{1}, size_t{2}}) {
    REQUIRE(net.all<PeerLost>(rank).size() == 1);
    CHECK(net.all<PeerLost>(rank)[0]->peer == 0);
    CHECK_FALSE(net.all<PeerLost>(rank)[0]->reason.empty());
  }
  // The living go on.
  net.ends[2]->send(1, message_of(5, 5));
  CHECK(net.pump([&] { return net.all<MessageArrived>(1).size() == 1; }));
}

TEST_CASE_TEMPLATE("last words are heard, also from a peer that did not listen", T, TRANSPORTS) {
  Net net(T::make(2));
  net.settle();
  for (uint32_t i = 0; i < 5; ++i) net.ends[0]->send(1, message_of(10, i));  // never read: 1 does not poll again
  for (uint32_t i = 0; i < 5; ++i) net.ends[1]->send(0, message_of(10, i + 50));
  net.ends[1].reset();
  REQUIRE(net.pump([&] { return !net.all<PeerLost>(0).empty(); }));
  const auto messages = net.all<MessageArrived>(0);
  REQUIRE(messages.size() == 5);
  for (uint32_t i = 0; i < 5; ++i) CHECK(messages[i]->message == message_of(10, i + 50));
  CHECK(std::holds_alternative<PeerLost>(net.got[0].back()));
}

TEST_CASE_TEMPLATE("a chunk that is none of its arena's chunk buffers is refused at once", T, TRANSPORTS) {
  Net net(T::make(2));
  const Arena arena = make_arena(*net.ends[1], 1, 2, 4096);
  net.ends[1]->register_arena(arena);
  CHECK_THROWS_AS(net.ends[1]->send_chunk(0, {}, {2, 0}, 1), Error);
  CHECK_THROWS_AS(net.ends[1]->send_chunk(0, {}, {1, 2}, 1), Error);
  CHECK_THROWS_AS(net.ends[1]->send_chunk(0, {}, {1, 0}, 4097), Error);
  net.ends[1]->send_chunk(0, {}, {1, 1}, 4096);
  CHECK(net.pump([&] { return net.all<ChunkArrived>(0).size() == 1; }));
  CHECK(net.ends[1]->capabilities(0).detects_loss);
}

TEST_CASE_TEMPLATE("two hundred worlds leave no descriptor and no socket name behind", T, TRANSPORTS) {
  const auto one_world = [] {
    Net net(T::make(2));
    const Arena arena = make_arena(*net.ends[1], 3, 2, 4096);
    net.ends[1]->register_arena(arena);
    net.ends[1]->send_chunk(0, {}, {3, 0}, 64);
    net.ends[0]->send(1, message_of(300'000, 1));
    REQUIRE(net.pump([&] { return net.all<ChunkArrived>(0).size() == 1; }));
  };
  one_world();
  const int before = open_descriptors();
  for (int i = 0; i < 200; ++i) one_world();
  CHECK(open_descriptors() == before);
}

TEST_CASE("a mesh has no way to a stranger") {
  Mesh mesh;
  CHECK_THROWS_AS(mesh.send(3, {}), Error);
  Incoming incoming;
  CHECK_FALSE(mesh.poll(incoming));
  InprocWorld world(1);
  CHECK_THROWS_AS(world.endpoint(0)->send(9, {}), Error);
}

}  // namespace
}  // namespace penstock::transport_contract_test
