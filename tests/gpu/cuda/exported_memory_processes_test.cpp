// GPU memory that one process fills and another reads, and what becomes of it when one of them is killed. With
// PENSTOCK_GPUS=host the GPU is this CPU, else it is the first GPU: then this is what CUDA's exported memory does.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/switches.h"
#include "runtime/base/wire.h"
#include "runtime/gpu/buffer_ranges.h"
#include "runtime/gpu/gpu_finisher.h"
#include "runtime/gpu/gpus.h"
#include "transport/unix_socket.h"

namespace {

using namespace penstock;

constexpr Nanoseconds kSoon = 20 * kSecond;
constexpr uint64_t kChunks = 300;

const Finisher& finisher() {
  static const Finisher one({.dtype = DType::float32, .memory_format = MemoryFormat::channels_last}, 3, 20, 30);
  return one;
}
constexpr size_t kImage = size_t{3} * 20 * 30;
constexpr int64_t kChunk = 4;

std::vector<uint8_t> pixels_of(uint64_t chunk) {
  std::mt19937 random(static_cast<uint32_t>(chunk) + 77);
  std::vector<uint8_t> pixels(kChunk * kImage);
  for (uint8_t& value : pixels) value = static_cast<uint8_t>(random());
  return pixels;
}

// What is said of a buffer range, to and from.
struct Word {
  uint64_t chunk = 0;
  uint64_t id = 0;
  uint64_t at = 0;
};
void send(PacketSocket& socket, const Word& word) {
  WireWriter out;
  out.u64(word.chunk);
  out.u64(word.id);
  out.u64(word.at);
  socket.send(out.bytes());
  socket.flush(kSoon);
}
bool receive(PacketSocket& socket, Word& word) {
  Packet packet;
  if (!socket.receive_until(packet, kSoon)) return false;
  WireReader in(packet.bytes, "word");
  word = {in.u64(), in.u64(), in.u64()};
  return true;
}

// The loader's side: makes chunks on its GPU, and exports them.
class Exporter {
 public:
  Exporter(PacketSocket& socket, size_t buffer_ranges)
      : socket_(socket), buffer_ranges_(*gpu_, buffer_ranges * range_bytes()) {
    WireWriter out;
    out.u64(buffer_ranges_.bytes());
    socket.send(out.bytes(), buffer_ranges_.fd());
  }
  static size_t range_bytes() { return (kChunk * kImage + 255) / 256 * 256; }

  // False where there is no room.
  bool export_range(uint64_t chunk) {
    const auto buffer_range = buffer_ranges_.take(kChunk * kImage);
    if (!buffer_range) return false;
    const std::vector<uint8_t> pixels = pixels_of(chunk);
    const GpuBlock made(*gpu_, pixels.size(), GpuMemory::device);
    stream_->upload(made.data(), reinterpret_cast<const std::byte*>(pixels.data()), pixels.size());
    stream_->copy(buffer_range->data, made.data(), pixels.size());
    stream_->wait(kSoon);
    if (!buffer_ranges_.export_range(buffer_range->id, 1)) throw Error(ErrorKind::runtime, "the trainer is gone");
    send(socket_, {chunk, buffer_range->id, buffer_range->at});
    return true;
  }
  BufferRanges& buffer_ranges() { return buffer_ranges_; }

 private:
  std::unique_ptr<Gpu> gpu_ = open_trainers_gpu(0);
  PacketSocket& socket_;
  BufferRanges buffer_ranges_;
  std::unique_ptr<GpuStream> stream_ = gpu_->stream();
};

// The trainer's side: finishes chunks from the loader's memory, on a GPU of its own.
class Borrower {
 public:
  explicit Borrower(PacketSocket& socket) : finishing_(gpu_, finisher()) {
    Packet packet;
    if (!socket.receive_until(packet, kSoon)) throw Error(ErrorKind::runtime, "no memory was shared");
    WireReader in(packet.bytes, "memory");
    exported_ = gpu_->open_exported(std::move(packet.fd), in.u64());
  }
  // Whether the tensor is what finishing the chunk's pixels here gives.
  bool right(const Word& word) {
    const std::vector<uint8_t> pixels = pixels_of(word.chunk);
    std::vector<std::byte> wanted(kChunk * finisher().bytes_per_sample());
    std::vector<std::byte> tensor(wanted.size());
    for (size_t i = 0; i < kChunk; ++i) {
      finisher().run(pixels.data() + i * kImage, wanted.data() + i * finisher().bytes_per_sample());
    }
    const GpuBlock memory(*gpu_, wanted.size(), GpuMemory::device);
    finishing_.finish({{images_in(*exported_, word.at, kChunk * kImage), kChunk, true}}, memory.data());
    finishing_.wait();
    stream_->download(tensor.data(), memory.data(), tensor.size());
    stream_->wait(kSoon);
    return tensor == wanted;
  }

 private:
  std::shared_ptr<Gpu> gpu_ = open_trainers_gpu(0);
  std::unique_ptr<GpuStream> stream_ = gpu_->stream();
  GpuFinisher finishing_;
  std::unique_ptr<ExportedMemory> exported_;
};

// What the other process does: its end of a socket, and its exit code.
int read_all_chunks(PacketSocket& socket) {
  Borrower borrower(socket);
  Word word;
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    if (!receive(socket, word) || word.chunk != chunk) return 1;
    if (!borrower.right(word)) return 2;
    send(socket, word);
  }
  return 0;
}
int export_until_killed(PacketSocket& socket) {
  Exporter exporter(socket, 5);
  for (uint64_t chunk = 0; exporter.export_range(chunk); ++chunk) {
  }
  Word word;
  return receive(socket, word) ? 1 : 2;
}
int export_and_die(PacketSocket& socket) {
  Exporter exporter(socket, 1);
  if (!exporter.export_range(3)) return 1;
  return ::raise(SIGKILL);
}
int read_two_until_killed(PacketSocket& socket) {
  Borrower borrower(socket);
  Word word;
  for (int i = 0; i < 2; ++i) {
    if (!receive(socket, word) || !borrower.right(word)) return 1;
  }
  send(socket, word);  // of the last one
  ::pause();
  return 2;
}
// Shares as many bytes as it is told.
int share_until_killed(PacketSocket& socket) {
  Word word;
  if (!receive(socket, word)) return 1;
  const std::unique_ptr<Gpu> gpu = open_trainers_gpu(0);
  const std::unique_ptr<ExportedMemory> exported = gpu->export_memory(word.at);
  WireWriter out;
  out.u64(exported->bytes());
  socket.send(out.bytes(), exported->fd());
  socket.flush(kSoon);
  ::pause();
  return 2;
}

using Role = int (*)(PacketSocket& socket);
constexpr std::array<Role, 5> kRoles = {read_all_chunks, export_until_killed, export_and_die, read_two_until_killed,
                                        share_until_killed};

// Processes of the test's own, made before this one has anything to do with a GPU: CUDA does not survive a fork. Each
// waits for its first byte, and ends with its role, or when it is killed, or when this process is gone.
class Children {
 public:
  Children() {
    for (size_t i = 0; i < kRoles.size(); ++i) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) std::exit(1);
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::close(ends[0]);
        for (auto& [other, socket] : children_) socket.close();
        ::_exit(play(kRoles[i], ends[1]));
      }
      ::close(ends[1]);
      children_.push_back({pid, PacketSocket(UniqueFd(ends[0]))});
    }
  }
  ~Children() {
    for (auto& [pid, socket] : children_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  std::pair<pid_t, PacketSocket> take(Role role) {
    for (size_t i = 0; i < kRoles.size(); ++i) {
      if (kRoles[i] == role) return {std::exchange(children_[i].first, -1), std::move(children_[i].second)};
    }
    std::abort();
  }

 private:
  static int play(Role role, int fd) {
    PacketSocket socket{UniqueFd(fd)};
    Word go;
    while (!socket.closed()) {
      if (!receive(socket, go)) continue;  // the tests before take their time
      try {
        return role(socket);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        return 99;
      }
    }
    return 98;
  }

  std::vector<std::pair<pid_t, PacketSocket>> children_;
};
Children children;

class Child {
 public:
  explicit Child(Role role) {
    // Before anything is begun: is there a GPU?
    if (const std::string why = why_no_gpu(); !why.empty()) {
      std::printf("SKIP: %s\n", why.c_str());
      std::exit(77);
    }
    std::tie(pid_, socket_) = children.take(role);
    REQUIRE(pid_ > 0);
    send(socket_, {});
  }
  ~Child() {
    if (pid_ > 0) (void)kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  PacketSocket& socket() { return socket_; }
  int kill() {
    ::kill(pid_, SIGKILL);
    return wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_ = -1;
  PacketSocket socket_;
};

bool is_gpu() {
  return switches().gpus != "host";
}

}  // namespace

TEST_CASE(
    "a trainer's process finishes what a loader's has made, through few buffer ranges, and without a byte of it by the "
    "host") {
  Child trainer(read_all_chunks);
  Exporter exporter(trainer.socket(), 3);
  uint64_t back = 0;
  const auto take_back = [&] {
    Word word;
    REQUIRE(receive(trainer.socket(), word));
    CHECK(word.chunk == back++);
    exporter.buffer_ranges().give_back(word.id, 1);
  };
  for (uint64_t chunk = 0; chunk < kChunks;) {
    if (exporter.export_range(chunk)) {
      ++chunk;
    } else {
      CHECK(exporter.buffer_ranges().figures().out == 3);
      take_back();
    }
  }
  while (back < kChunks) take_back();
  CHECK(trainer.wait() == 0);
  CHECK(exporter.buffer_ranges().figures().out == 0);
  CHECK(exporter.buffer_ranges().figures().exported == kChunks);
}

TEST_CASE("what a loader exported before it was killed stays what it was") {
  Child loader(export_until_killed);
  Borrower borrower(loader.socket());
  std::vector<Word> words(5);
  for (Word& word : words) REQUIRE(receive(loader.socket(), word));
  CHECK(borrower.right(words[0]));
  const int status = loader.kill();
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  for (const Word& word : words) CHECK(borrower.right(word));
}

TEST_CASE("memory that was handed over and not opened yet outlives its loader, too") {
  Child loader(export_and_die);
  CHECK(WIFSIGNALED(loader.wait()));
  Borrower borrower(loader.socket());
  Word word;
  REQUIRE(receive(loader.socket(), word));
  CHECK(borrower.right(word));
}

TEST_CASE("a trainer that is killed leaves all of its loader's memory free") {
  Child trainer(read_two_until_killed);
  Exporter exporter(trainer.socket(), 4);
  for (uint64_t chunk = 0; chunk < 4; ++chunk) REQUIRE(exporter.export_range(chunk));
  Word word;
  REQUIRE(receive(trainer.socket(), word));
  exporter.buffer_ranges().give_back(word.id, 1);
  CHECK(exporter.buffer_ranges().figures().out == 3);
  (void)trainer.kill();
  CHECK_FALSE(receive(trainer.socket(), word));  // the hang-up, by which a receiver knows it
  exporter.buffer_ranges().forget(1);
  for (int i = 0; i < 4; ++i) CHECK(exporter.buffer_ranges().take(Exporter::range_bytes()));
}

TEST_CASE("memory of a process that was killed goes back when the last one that has it open lets go") {
  Child loader(share_until_killed);
  const std::unique_ptr<Gpu> gpu = open_trainers_gpu(0);
  // So large that a GPU has no room for two.
  const auto bytes =
      is_gpu() ? static_cast<size_t>(static_cast<double>(gpu->info().memory_bytes) * 0.6) : size_t{64} << 20;
  send(loader.socket(), {0, 0, bytes});
  Packet packet;
  REQUIRE(loader.socket().receive_until(packet, 3 * kSoon));
  WireReader in(packet.bytes, "memory");
  const size_t exported_bytes = in.u64();
  std::unique_ptr<ExportedMemory> exported = gpu->open_exported(std::move(packet.fd), exported_bytes);
  CHECK(exported->bytes() >= bytes);
  (void)loader.kill();
  const auto room_for_another = [&] {
    try {
      const std::unique_ptr<ExportedMemory> another = gpu->export_memory(bytes);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  if (is_gpu()) CHECK_FALSE(room_for_another());
  exported.reset();
  bool room = room_for_another();
  for (int i = 0; i < 100 && !room; ++i) {  // the driver takes its time with a process that was killed
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    room = room_for_another();
  }
  CHECK(room);
}

TEST_CASE("what is no memory of a GPU is an error by name") {
  if (!why_no_gpu().empty()) return;
  const std::unique_ptr<Gpu> gpu = open_trainers_gpu(0);
  UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  try {
    gpu->open_exported(std::move(nothing), 1 << 20);
    FAIL("/dev/null was opened as memory");
  } catch (const Error& error) {
    CHECK_FALSE(error.message().empty());
    if (is_gpu()) CHECK(error.message().find(gpu->info().name) != std::string::npos);
  }
}
