// What abandon_test.py starts as seven ranks: what MPI's endpoint does about a peer that sends nonsense, and then a chunk
// (rank 2), about one that announces a chunk for which there is no memory (rank 3), about one that MPI fails for when it is
// asked who failed, just when a message of it was found (rank 4), about one whose chunk MPI does not receive (rank 5), about
// one that stops while a message of it is under way (rank 6), and about one that stops while a send to it and a chunk of it
// are under way, is given up, goes on, stops again and is abandoned (rank 1); and where MPI fails and it is nobody's
// failure. Rank 0 prints what it saw, a line each. With the word `asked` two ranks, of which rank 1 comes to no collective
// call, and rank 0 is asked to end while it waits there.
//
// Five functions of MPI are this program's own, in front of the library's. MPI_Isend cuts an envelope short, writes another
// size into it, or stops the process between a chunk's envelope and its payload, or when a message has begun to leave.
// MPI_Improbe fails once where it is told to, and behind a message of rank 4; MPI_Iprobe fails for one rank, and MPI_Irecv
// for another. MPI_Get_count makes too much of the first piece of rank 3.
#include <mpi.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/crc32c.h"
#include "tests/support/sanitized.h"
#include "transport/mpi_component.h"
#include "transport/transport.h"

namespace {

enum class Trouble { none, short_envelope, huge_chunk, stop_before_payload, stop_in_message };
std::atomic<Trouble> trouble = Trouble::none;
std::atomic<int> sends = 0;  // since there is trouble

constexpr uint64_t kHugeChunkBytes = uint64_t{3} << 30;  // less than a message may announce

constexpr size_t kSizes = 8 + 8;  // that an envelope begins with, before their checksum

// An envelope that begins with another size, and the checksum that belongs to it.
const void* announce(uint64_t size, const void* envelope, int count) {
  static std::vector<char> changed;
  changed.assign(static_cast<const char*>(envelope), static_cast<const char*>(envelope) + count);
  std::memcpy(changed.data(), &size, sizeof size);
  const uint32_t crc = penstock::crc32c(changed.data(), kSizes);
  std::memcpy(changed.data() + kSizes, &crc, sizeof crc);
  return changed.data();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int MPI_Isend(const void* bytes, int count, MPI_Datatype type, int to,
                                                                int tag, MPI_Comm comm, MPI_Request* request) {
  if (trouble != Trouble::none) {
    const int number = sends++;
    if (trouble == Trouble::short_envelope && number == 0) count = 5;
    if (trouble == Trouble::huge_chunk && number == 0) bytes = announce(kHugeChunkBytes, bytes, count);
    if (trouble == Trouble::stop_before_payload && number % 2 == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the envelope is on its way
      std::raise(SIGSTOP);
    }
  }
  const int code = PMPI_Isend(bytes, count, type, to, tag, comm, request);
  if (trouble == Trouble::stop_in_message && sends == 1) std::raise(SIGSTOP);
  return code;
}

namespace {

std::atomic<int> failing_looks = 0;
constexpr int kFailsWhenAsked = 4;
constexpr int kNotReceived = 5;
constexpr int kStopsInMessage = 6;
constexpr int kPayloadTag = 3;

}  // namespace

extern "C" __attribute__((visibility("default"))) int MPI_Improbe(int source, int tag, MPI_Comm comm, int* found,
                                                                  MPI_Message* message, MPI_Status* status) {
  if (failing_looks > 0 && failing_looks-- > 0) return MPI_ERR_OTHER;
  const int code = PMPI_Improbe(source, tag, comm, found, message, status);
  if (code == MPI_SUCCESS && *found != 0 && status->MPI_SOURCE == kFailsWhenAsked) failing_looks = 1;
  return code;
}

extern "C" __attribute__((visibility("default"))) int MPI_Iprobe(int source, int tag, MPI_Comm comm, int* found,
                                                                 MPI_Status* status) {
  return source == kFailsWhenAsked ? MPI_ERR_OTHER : PMPI_Iprobe(source, tag, comm, found, status);
}

extern "C" __attribute__((visibility("default"))) int MPI_Irecv(void* bytes, int count, MPI_Datatype type, int source,
                                                                int tag, MPI_Comm comm, MPI_Request* request) {
  return source == kNotReceived ? MPI_ERR_OTHER : PMPI_Irecv(bytes, count, type, source, tag, comm, request);
}

// So much that there is no memory for it, when the piece is to be dropped. (A sanitizer ends a process that gets none.)
extern "C" __attribute__((visibility("default"))) int MPI_Get_count(const MPI_Status* status, MPI_Datatype type,
                                                                    int* count) {
  static std::atomic<bool> exaggerates = penstock::kSanitizedFactor == 1;
  const int code = PMPI_Get_count(status, type, count);
  if (status->MPI_SOURCE == 3 && status->MPI_TAG == kPayloadTag && exaggerates.exchange(false)) *count = INT32_MAX;
  return code;
}

namespace {

using namespace penstock;

constexpr size_t kChunkBytes = size_t{8} << 20;  // more than any MPI sends without being asked

bool next(Endpoint& end, Incoming& incoming) {
  const MonotonicClock clock;
  for (const Nanoseconds deadline = clock.now() + 20 * kSecond; clock.now() < deadline;) {
    if (end.poll(incoming)) return true;
    std::vector<pollfd> fds;
    end.collect_fds(fds);
    ::poll(fds.data(), fds.size(), 10);
  }
  return false;
}

template <class T>
bool wait_for(Endpoint& end, T& wanted) {
  for (Incoming incoming; next(end, incoming);) {
    if (auto* found = std::get_if<T>(&incoming)) {
      wanted = std::move(*found);
      return true;
    }
  }
  return false;
}

bool is_stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.find(") T ") != std::string::npos;
}

double cpu_ms_in_a_second() {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  };
  const double before = now();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return now() - before;
}

// No more than a gigabyte besides what this process has.
void limit_memory() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 30);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &limit);
}

// Waits for so many losses, damages, chunks and messages, and prints them.
void show(Endpoint& end, int times) {
  Incoming incoming;
  while (times > 0 && next(end, incoming)) {
    if (const auto* lost = std::get_if<PeerLost>(&incoming)) {
      std::printf("lost %d: %s\n", lost->peer, lost->reason.c_str());
    } else if (const auto* damaged = std::get_if<PeerDamaged>(&incoming)) {
      std::printf("damaged %d: %s\n", damaged->peer, damaged->reason.c_str());
    } else if (const auto* chunk = std::get_if<ChunkArrived>(&incoming)) {
      const std::byte first = chunk->payload.front();
      const bool same =
          std::all_of(chunk->payload.begin(), chunk->payload.end(), [&](std::byte b) { return b == first; });
      std::printf("chunk of %d: %s %d\n", chunk->peer, same ? "all" : "not all", static_cast<int>(first));
      end.release(chunk->peer, chunk->token);
    } else if (const auto* message = std::get_if<MessageArrived>(&incoming)) {
      std::printf("rank %d has sent all\n", message->peer);
    } else {
      continue;
    }
    --times;
  }
  if (times > 0) std::printf("nothing more\n");
}

void wait_for_stop(int pid) {
  for (int i = 0; i < 2000 && !is_stopped(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// With a chunk of it half arrived, and a send to it.
void wait_until_stopped(Endpoint& end, int pid) {
  wait_for_stop(pid);
  std::printf("rank 1 %s\n", is_stopped(pid) ? "is stopped" : "goes on");
  end.send(1, Message(kChunkBytes, std::byte{2}));
  std::printf("flushed %d\n", end.flush(kSecond) ? 1 : 0);
}

void watch(Endpoint& end, const std::vector<std::string>& pids) {
  show(end, 5);
  end.send(kFailsWhenAsked, Message(1, std::byte{1}));
  show(end, 2);
  // Where MPI can read the memory of a stopped process, all of its message comes nevertheless.
  const int stops_in_message = std::stoi(pids[kStopsInMessage]);
  end.send(kStopsInMessage, Message(1, std::byte{1}));
  wait_for_stop(stops_in_message);
  std::set<PeerId> heard;
  const auto receive_from = [&](PeerId peer) {
    for (MessageArrived message; heard.count(peer) == 0 && wait_for(end, message);) heard.insert(message.peer);
    return heard.count(peer) != 0;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // what has left rank 6 is found
  end.send(1, Message(1, std::byte{1}));
  std::printf("rank 1 %s\n", receive_from(1) ? "answers" : "is not heard");
  ::kill(stops_in_message, SIGCONT);
  std::printf("rank %d %s\n", kStopsInMessage, receive_from(kStopsInMessage) ? "is heard" : "is not heard");
  const int stopping = std::stoi(pids[1]);
  wait_until_stopped(end, stopping);
  std::printf("cpu_ms %.1f\n", cpu_ms_in_a_second());
  end.give_up(1);
  std::printf("flushed %d\n", end.flush(5 * kSecond) ? 1 : 0);
  std::printf("cpu_ms %.1f\n", cpu_ms_in_a_second());
  ::kill(stopping, SIGCONT);
  show(end, 1);
  wait_until_stopped(end, stopping);
  end.abandon(1);
  std::printf("flushed %d\n", end.flush(5 * kSecond) ? 1 : 0);
  std::printf("cpu_ms %.1f\n", cpu_ms_in_a_second());
  failing_looks = 1;
  show(end, 6);
  std::fflush(stdout);
  for (const int rank : {1, 2, 3, kFailsWhenAsked, kNotReceived, kStopsInMessage})
    ::kill(std::stoi(pids[static_cast<size_t>(rank)]), SIGKILL);
}

// As many as have a chunk buffer, the next one when the one before has left: full of 1s, full of 2s.
void send_chunks_with(Trouble what, Endpoint& end, const Arena& arena, uint32_t chunks) {
  end.register_arena(arena);
  trouble = what;
  for (uint32_t i = 0; i < chunks; ++i) {
    std::memset(arena.chunk_buffer(i), static_cast<int>(i) + 1, kChunkBytes);
    end.send_chunk(0, Message(16, std::byte{3}), {1, i}, kChunkBytes);
    ChunkBufferReturned back;
    if (what == Trouble::stop_before_payload) (void)wait_for(end, back);
  }
  // After rank 3's only envelope, which is damaged, none comes that would tell of its pieces.
  if (what != Trouble::none && chunks == 1 && end.flush(15 * kSecond)) end.send(0, Message(1, std::byte{1}));
  for (;;) ::pause();
}

int be_asked_to_end() {
  static std::atomic<bool> asked = false;
  MpiOptions options;
  options.asked_to_end = [] { return asked.load(); };
  const std::unique_ptr<MpiSession> session = start_mpi(options);
  if (session->world().rank == 1) {
    for (;;) ::pause();
  }
  asked = true;
  try {
    (void)session->all_gather("");
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // mpirun may not pass on what it reads behind an end
  ::_exit(0);
}

}  // namespace

int main(int argc, char**) {
  try {
    if (argc > 1) return be_asked_to_end();
    const std::unique_ptr<MpiSession> session = start_mpi({});
    if (session->world().rank == 0) limit_memory();  // before any rank sends: all wait for rank 0 here
    const std::vector<std::string> pids = session->all_gather(std::to_string(::getpid()));
    const std::unique_ptr<Endpoint> end = session->endpoint();
    Arena arena;
    arena.id = 1;
    arena.chunk_buffer_bytes = kChunkBytes;
    arena.memory = SharedMemory::create("penstock-abandon-probe", 2 * kChunkBytes);
    const int rank = session->world().rank;
    if (rank == 2) send_chunks_with(Trouble::short_envelope, *end, arena, 2);
    // A sanitizer ends a process that gets no memory.
    if (rank == 3)
      send_chunks_with(kSanitizedFactor == 1 ? Trouble::huge_chunk : Trouble::short_envelope, *end, arena, 1);
    if (rank == kNotReceived) send_chunks_with(Trouble::none, *end, arena, 1);
    if (rank == 1) {
      MessageArrived message;
      if (!wait_for(*end, message)) return 1;
      end->send(0, Message(1, std::byte{1}));
      if (!end->flush(30 * kSecond)) return 1;
      send_chunks_with(Trouble::stop_before_payload, *end, arena, 2);
    }
    if (rank == kStopsInMessage) {
      MessageArrived message;
      if (!wait_for(*end, message)) return 1;
      trouble = Trouble::stop_in_message;
      end->send(0, Message(kChunkBytes, std::byte{1}));
      for (;;) ::pause();
    }
    if (rank == kFailsWhenAsked) {
      MessageArrived message;
      if (!wait_for(*end, message)) return 1;
      end->send(0, Message(1, std::byte{1}));
      for (;;) ::pause();
    }
    watch(*end, pids);
    ::_exit(0);  // MPI_Finalize would wait for the dead
  } catch (const std::exception& error) {
    std::fprintf(stderr, "abandon_probe: %s\n", error.what());
    return 1;
  }
}
