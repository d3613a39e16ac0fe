// What only shm has: real processes, strangers that connect, announcements that cannot be true.
#include "transport/shm/shm.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {

std::string unique_job() {
  static int count = 0;
  return "test" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

ShmOptions options_of(const std::string& job, PeerId self) {
  return {.job = job, .token = "secret", .self = self, .node_peers = {0, 1}, .connect_timeout_ns = 10 * kSecond};
}

template <class T>
bool wait_for(Endpoint& end, T& wanted, Nanoseconds timeout = 10 * kSecond) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + timeout;
  while (clock.now() < deadline) {
    Incoming incoming;
    if (!end.poll(incoming)) {
      std::vector<pollfd> fds;
      end.collect_fds(fds);
      ::poll(fds.data(), fds.size(), 10);
      continue;
    }
    if (auto* found = std::get_if<T>(&incoming)) {
      wanted = std::move(*found);
      return true;
    }
  }
  return false;
}

int mappings_of(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(name) != std::string::npos ? 1 : 0;
  return found;
}

TEST_CASE("between processes: chunks are read in place and outlive the sender's kill -9") {
  const std::string job = unique_job();
  ShmEndpoint receiver(options_of(job, 0));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      Arena arena;
      arena.id = 1;
      arena.chunk_buffer_bytes = 4096;
      arena.memory = SharedMemory::create("penstock-test", 4 * 4096);
      arena.memory.seal_future_writes();
      ShmEndpoint loader(options_of(job, 1));
      loader.connect();
      loader.register_arena(arena);
      std::memset(arena.chunk_buffer(2), 0x5a, 4096);
      loader.send_chunk(0, Message(3, std::byte{9}), {1, 2}, 4096);
      ChunkBufferReturned back;
      if (!wait_for(loader, back) || back.chunk_buffer != ChunkBufferRef{1, 2}) ::_exit(2);
      std::memset(arena.chunk_buffer(3), 0x77, 4096);
      loader.send_chunk(0, {}, {1, 3}, 4096);
      for (;;) ::pause();
    } catch (...) {
      ::_exit(3);
    }
  }
  receiver.connect();
  ChunkArrived first;
  REQUIRE(wait_for(receiver, first));
  CHECK(first.envelope == Message(3, std::byte{9}));
  CHECK(first.payload.size() == 4096);
  CHECK(first.payload[4095] == std::byte{0x5a});
  receiver.release(1, first.token);
  ChunkArrived second;
  REQUIRE(wait_for(receiver, second));
  ::kill(child, SIGKILL);
  PeerLost lost;
  REQUIRE(wait_for(receiver, lost));
  CHECK(lost.peer == 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  for (const std::byte b : second.payload) REQUIRE(b == std::byte{0x77});
  CHECK(mappings_of("penstock-test") == 1);
  receiver.abandon(1);
  CHECK(mappings_of("penstock-test") == 0);
}

TEST_CASE("a forgotten arena is unmapped at both ends") {
  const std::string job = unique_job();
  ShmEndpoint receiver(options_of(job, 0));
  ShmEndpoint loader(options_of(job, 1));
  loader.connect();
  for (uint32_t id = 1; id < 4; ++id) {
    Arena arena;
    arena.id = id;
    arena.chunk_buffer_bytes = 4096;
    arena.memory = SharedMemory::create("penstock-forgotten", 4096);
    arena.memory.seal_future_writes();
    loader.register_arena(arena);
    loader.send_chunk(0, {}, {id, 0}, 100);
    ChunkArrived chunk;
    REQUIRE(wait_for(receiver, chunk));
    CHECK(mappings_of("penstock-forgotten") == 2);
    receiver.release(1, chunk.token);
    ChunkBufferReturned back;
    REQUIRE(wait_for(loader, back));
    loader.forget_arena(id);
    loader.forget_arena(id);  // again: changes nothing
    CHECK_THROWS_AS(loader.send_chunk(0, {}, {id, 0}, 100), Error);
    loader.send(0, Message(1, std::byte{1}));
    MessageArrived message;
    REQUIRE(wait_for(receiver, message));
    CHECK(mappings_of("penstock-forgotten") == 1);
  }
  CHECK(mappings_of("penstock-forgotten") == 0);
}

// Somebody who speaks the protocol by hand.
struct Stranger {
  explicit Stranger(const std::string& job) : socket(connect_abstract(shm_socket_name(job, 0), kSecond)) {}
  void hello(PeerId rank, const std::string& token) {
    WireWriter out;
    out.u8(1);
    out.i32(rank);
    out.text(token);
    socket.send(out.bytes());
  }
  void arena(uint32_t id, uint64_t bytes, uint64_t chunk_buffer_bytes, int fd) {
    WireWriter out;
    out.u8(3);
    out.u32(id);
    out.u64(bytes);
    out.u64(chunk_buffer_bytes);
    socket.send(out.bytes(), fd);
  }
  void chunk(uint32_t arena_id, uint32_t chunk_buffer, uint64_t bytes) {
    WireWriter out;
    out.u8(4);
    out.u32(arena_id);
    out.u32(chunk_buffer);
    out.u64(bytes);
    socket.send(out.bytes());
  }
  PacketSocket socket;
};

bool is_hung_up(PacketSocket& socket, Endpoint& end) {
  for (int i = 0; i < 200 && !socket.closed(); ++i) {
    Incoming incoming;
    while (end.poll(incoming)) {
    }
    Packet packet;
    (void)socket.receive_until(packet, kMillisecond);
  }
  return socket.closed();
}

TEST_CASE("strangers are hung up on, and do the job no harm") {
  const std::string job = unique_job();
  ShmEndpoint receiver(options_of(job, 0));
  Stranger wrong_token(job);
  wrong_token.hello(1, "guess");
  CHECK(is_hung_up(wrong_token.socket, receiver));
  Stranger wrong_rank(job);
  wrong_rank.hello(5, "secret");
  CHECK(is_hung_up(wrong_rank.socket, receiver));
  for (const size_t size : {1u, 3u, 9u, 200u}) {
    Stranger babble(job);
    babble.socket.send(std::vector<std::byte>(size, std::byte{1}));
    CHECK(is_hung_up(babble.socket, receiver));
  }
  Stranger silent(job);
  // The rank that belongs here is let in; a second one that claims to be it is not.
  ShmEndpoint loader(options_of(job, 1));
  loader.connect();
  loader.send(0, Message(4, std::byte{4}));
  MessageArrived message;
  REQUIRE(wait_for(receiver, message));
  CHECK(message.peer == 1);
  Stranger twin(job);
  twin.hello(1, "secret");
  CHECK(is_hung_up(twin.socket, receiver));
  loader.send(0, Message(2, std::byte{5}));
  CHECK(wait_for(receiver, message));
}

TEST_CASE("announcements outside the announced memory are told apart from chunks, and what comes after them arrives") {
  const SharedMemory memory = SharedMemory::create("penstock-test", 2 * 4096);
  const auto refuses = [&](const std::function<void(Stranger&)>& act) {
    const std::string job = unique_job();
    ShmEndpoint receiver(options_of(job, 0));
    Stranger loader(job);
    loader.hello(1, "secret");
    act(loader);
    loader.socket.send(Message(1, std::byte{2}));  // an empty message: always good
    bool refused = false;
    const Nanoseconds until = MonotonicClock().now() + 20 * kSecond;
    while (MonotonicClock().now() < until) {
      Incoming incoming;
      if (!receiver.poll(incoming)) continue;
      if (const auto* damaged = std::get_if<PeerDamaged>(&incoming)) {
        CHECK(damaged->peer == 1);
        CHECK_FALSE(damaged->reason.empty());
        refused = true;
      }
      if (std::holds_alternative<MessageArrived>(incoming)) return refused;
    }
    FAIL("the message behind it did not arrive");
    return false;
  };
  const auto good_arena = [&](Stranger& s) { s.arena(1, 2 * 4096, 4096, memory.fd()); };
  CHECK_FALSE(refuses([&](Stranger& s) {
    good_arena(s);
    s.chunk(1, 1, 4096);
  }));
  CHECK(refuses([&](Stranger& s) { s.chunk(1, 0, 1); }));
  CHECK(refuses([&](Stranger& s) {
    good_arena(s);
    s.chunk(1, 2, 1);
  }));
  CHECK(refuses([&](Stranger& s) {
    good_arena(s);
    s.chunk(1, 0, 4097);
  }));
  CHECK(refuses([&](Stranger& s) {
    good_arena(s);
    s.chunk(1, 0xffffffff, 1);
  }));
  CHECK(refuses([&](Stranger& s) {
    good_arena(s);
    good_arena(s);
  }));
  CHECK(refuses([&](Stranger& s) { s.arena(1, 3 * 4096, 4096, memory.fd()); }));
  CHECK(refuses([&](Stranger& s) { s.arena(1, 4096, 4096, -1); }));
  CHECK(refuses([&](Stranger& s) { s.arena(1, 4096, 0, memory.fd()); }));
  // 2^62 bytes a chunk buffer: four of them would wrap to nothing.
  CHECK(refuses([&](Stranger& s) {
    s.arena(1, 4096, uint64_t{1} << 62, memory.fd());
    s.chunk(1, 3, 1);
  }));
  CHECK(refuses([&](Stranger& s) { s.socket.send(std::vector<std::byte>(1, std::byte{99})); }));
  CHECK(refuses([&](Stranger& s) { s.socket.send(std::vector<std::byte>(1, std::byte{4})); }));
}

TEST_CASE("messages sent before the peer came are kept for it, in order") {
  const std::string job = unique_job();
  ShmEndpoint receiver(options_of(job, 0));
  for (int i = 0; i < 5; ++i) receiver.send(1, Message(1, static_cast<std::byte>(i)));
  ShmEndpoint loader(options_of(job, 1));
  loader.connect();
  Incoming incoming;
  (void)receiver.poll(incoming);
  receiver.send(1, Message(1, std::byte{5}));
  for (int i = 0; i < 6; ++i) {
    MessageArrived message;
    REQUIRE(wait_for(loader, message));
    CHECK(message.message == Message(1, static_cast<std::byte>(i)));
  }
}

TEST_CASE("flush waits for a peer that has not come yet: its last words are not lost") {
  const std::string job = unique_job();
  auto receiver = std::make_unique<ShmEndpoint>(options_of(job, 0));
  receiver->send(1, Message(1, std::byte{7}));
  CHECK_FALSE(receiver->flush(20 * kMillisecond));  // nobody came
  ShmEndpoint loader(options_of(job, 1));
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    loader.connect();
  });
  CHECK(receiver->flush(10 * kSecond));
  receiver.reset();
  late.join();
  MessageArrived message;
  REQUIRE(wait_for(loader, message));
  CHECK(message.message == Message(1, std::byte{7}));
}

TEST_CASE(
    "flush waits neither for a peer that was given up with a full socket, until it is heard, nor for one that never "
    "came") {
  const std::string job = unique_job();
  ShmOptions options = options_of(job, 0);
  options.node_peers = {0, 1, 2};
  ShmEndpoint receiver(options);
  ShmEndpoint stopped(options_of(job, 1));
  stopped.connect();
  Incoming incoming;
  (void)receiver.poll(incoming);
  receiver.send(1, Message(size_t{4} << 20, std::byte{1}));  // more than a socket holds
  CHECK_FALSE(receiver.flush(20 * kMillisecond));
  receiver.send(2, Message(1, std::byte{2}));
  receiver.give_up(1);
  CHECK_FALSE(receiver.flush(20 * kMillisecond));
  receiver.give_up(2);
  CHECK(receiver.flush(20 * kMillisecond));
  stopped.send(0, Message(1, std::byte{3}));
  MessageArrived message;
  REQUIRE(wait_for(receiver, message));
  CHECK_FALSE(receiver.flush(20 * kMillisecond));  // it goes on, and is to have all of it
  std::thread reads([&] { CHECK(wait_for(stopped, message)); });
  CHECK(receiver.flush(10 * kSecond));
  reads.join();
  CHECK(message.message.size() == size_t{4} << 20);
}

TEST_CASE("what is sent to a peer that died before it had connected is not waited for") {
  const std::string job = unique_job();
  ShmOptions options = options_of(job, 0);
  options.node_peers = {0, 1};
  ShmEndpoint receiver(options);
  receiver.send(1, Message(1, std::byte{1}));
  CHECK_FALSE(receiver.flush(20 * kMillisecond));
  receiver.abandon(1);
  CHECK(receiver.flush(20 * kMillisecond));
}

TEST_CASE("peers that talk without a pause are heard in turn") {
  const std::string job = unique_job();
  const auto options = [&](PeerId self) {
    ShmOptions o = options_of(job, self);
    o.node_peers = {0, 1, 2, 3};
    return o;
  };
  ShmEndpoint receiver(options(0));
  std::vector<std::unique_ptr<ShmEndpoint>> loaders;
  for (PeerId self = 1; self <= 3; ++self) {
    loaders.push_back(std::make_unique<ShmEndpoint>(options(self)));
    loaders.back()->connect();
    for (int i = 0; i < 20; ++i) loaders.back()->send(0, {std::byte{1}});
  }
  std::vector<PeerId> received;
  while (received.size() < 60) {
    MessageArrived message;
    REQUIRE(wait_for(receiver, message));
    received.push_back(message.peer);
  }
  for (size_t i = 0; i + 3 <= received.size(); i += 3) {
    CHECK(std::set<PeerId>(received.begin() + static_cast<std::ptrdiff_t>(i),
                           received.begin() + static_cast<std::ptrdiff_t>(i) + 3)
              .size() == 3);
  }
}

TEST_CASE("nobody there is an error that names the rank") {
  ShmOptions options = options_of(unique_job(), 1);
  options.connect_timeout_ns = 20 * kMillisecond;
  ShmEndpoint loader(options);
  CHECK_THROWS_WITH_AS(loader.connect(), doctest::Contains("rank 1 waited 0 s for rank 0 of this node"), Error);
}

}  // namespace
}  // namespace penstock
