#include "runtime/client/attach.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/host_name.h"

namespace penstock {
namespace {

constexpr Nanoseconds kAttachLimit = 30 * kSecond;
constexpr Nanoseconds kSilence = 3 * kSecond;  // a server that is just starting takes less
constexpr Nanoseconds kHandshake = 10 * kSecond;
constexpr size_t kLongestName = 64;

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

std::string said(const char* name, const std::optional<int>& value) {
  return std::string(name) + (value ? " " + std::to_string(*value) : " not set");
}
std::string said(const ProgramPlace& place) {
  return said("RANK", place.rank) + ", " + said("WORLD_SIZE", place.world_size) + ", " +
         said("LOCAL_RANK", place.local_rank);
}
std::string trainers(int count) {
  return std::to_string(count) + (count == 1 ? " trainer" : " trainers");
}

std::string serving(const std::string& name, const ClientWelcome& receiver) {
  return "`penstock serve` of job '" + name + "' on host " + receiver.host;
}

// Are there as many programs as trainers? Any receiver of the node can tell.
void check_count(const std::string& name, const ProgramPlace& place, const ClientWelcome& receiver) {
  const std::string job = serving(name, receiver);
  const std::string start =
      "start one program for each trainer: torchrun --nproc_per_node=" + std::to_string(receiver.local_replicas) +
      ", or serve with another roles.trainers";
  if (place.world_size && *place.world_size != receiver.num_replicas) {
    throw Error(ErrorKind::usage,
                job + " feeds " + trainers(receiver.num_replicas) + ", and this program is one of " +
                    std::to_string(*place.world_size) + " (" + said(place) + ")",
                start);
  }
  if (place.local_rank && *place.local_rank >= receiver.local_replicas) {
    throw Error(ErrorKind::usage,
                job + " feeds " + trainers(receiver.local_replicas) + " on this host (" + said(place) + ")", start);
  }
}

// The receiver's word against the program's: a program that is fed as another trainer than it takes itself for would
// train on the wrong part of the data, in silence.
void check_rank(const std::string& name, const ProgramPlace& place, const ClientWelcome& receiver) {
  const std::string job = serving(name, receiver);
  if (place.rank && *place.rank != receiver.replica) {
    throw Error(ErrorKind::usage,
                job + " feeds trainer " + std::to_string(receiver.replica) +
                    " at this receiver, and this program has " + said(place),
                "set LOCAL_RANK, and number the nodes as `penstock serve` does in its table of ranks (torchrun "
                "--node-rank)");
  }
  if (!place.rank && receiver.num_replicas > 1) {
    throw Error(ErrorKind::usage,
                job + " feeds " + trainers(receiver.num_replicas) + ", and nothing says which of them this program is",
                "start it with torchrun, or set RANK, WORLD_SIZE and LOCAL_RANK");
  }
}

}  // namespace

std::string serving_name(const Job& job) {
  if (!job.name.empty()) {
    if (job.name.size() > kLongestName || !std::all_of(job.name.begin(), job.name.end(), plain)) {
      throw Error(ErrorKind::config, "name: '" + job.name + "' cannot be attached to",
                  "use up to " + std::to_string(kLongestName) + " letters, digits, '.', '_' and '-'");
    }
    return job.name;
  }
  if (job.path.empty()) {
    throw Error(ErrorKind::config, "a job without a file has no name to be found by", "give it one: name: my_job");
  }
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::weakly_canonical(job.path, ignored);
  std::string name = path.stem().string().substr(0, kLongestName / 2);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !plain(c); }, '_');
  return name + "-" + hash128(path.string()).hex().substr(0, 12);
}

// Containers that share a network share these names, and may well have equal jobs and users. A program can be served only
// where the receiver sees it as a process, so the namespace of processes is a part of the name.
std::string serving_socket(const std::string& name, int local_trainer) {
  struct stat space {};
  const bool known = ::stat("/proc/self/ns/pid", &space) == 0;
  return "penstock/" + std::to_string(::geteuid()) + "/serve/" + (known ? std::to_string(space.st_ino) + "/" : "") +
         name + "/p" + std::to_string(local_trainer);
}

bool is_served(const std::string& name) {
  const UniqueFd fd = try_connect_abstract(serving_socket(name, 0));
  return fd && peer_is_us(fd.get());
}

ClientWelcome handshake(PacketSocket& socket, const std::string& token, Nanoseconds timeout_ns) {
  socket.send(encode_client(ClientHello{token, ::getpid()}));
  Packet packet;
  if (!socket.receive_until(packet, timeout_ns)) {
    throw Error(ErrorKind::peer_lost,
                "the receiver on host " + host_name() +
                    (socket.closed() ? " hung up when this program said hello"
                                     : " did not answer this program's hello in " + in_seconds(timeout_ns)),
                "see the messages of `penstock run` or `penstock serve`");
  }
  const ClientMessage answer = decode_client(packet.bytes);
  if (const auto* refused = std::get_if<ClientRefused>(&answer)) {
    throw Error(static_cast<ErrorKind>(refused->error_kind), refused->error, refused->remedy);
  }
  const auto* welcome = std::get_if<ClientWelcome>(&answer);
  if (welcome == nullptr) {
    throw Error(ErrorKind::peer_lost, "the receiver answered something else than was asked",
                "link the program against the same version of penstock");
  }
  return *welcome;
}

Attached attach(const std::string& name, const Job& job, const ProgramPlace& place, const AttachCalls& calls) {
  const int local = place.local_rank.value_or(0);
  const MonotonicClock clock;
  const Nanoseconds wait_limit = std::min(kAttachLimit, static_cast<Nanoseconds>(job.trainer.timeout_s * 1e9));
  const Nanoseconds begun = clock.now();
  const std::string nobody = "nobody serves job '" + name + "' to user " + std::to_string(::geteuid()) +
                             ", local rank " + std::to_string(local) + ", on host " + host_name();
  bool announced = false;
  const auto meet = [&](int receiver) -> std::optional<Attached> {
    UniqueFd fd = try_connect_abstract(serving_socket(name, receiver));
    if (!fd) return std::nullopt;
    if (!peer_is_us(fd.get())) {
      throw Error(ErrorKind::peer_lost, "the socket '@" + serving_socket(name, receiver) + "' belongs to another user",
                  "give the job another name (name: in the job file)");
    }
    Attached found;
    found.socket = PacketSocket(std::move(fd));
    found.welcome = handshake(found.socket, "", std::min(kHandshake, wait_limit));
    return found;
  };
  for (int turn = 0;; ++turn) {
    if (auto found = meet(local)) {
      check_count(name, place, found->welcome);
      check_rank(name, place, found->welcome);
      return std::move(*found);
    }
    // No receiver of ours, but a first one: either it is just starting, or there are fewer trainers than programs.
    if (local > 0 && turn % 10 == 0) {
      if (const auto first = meet(0)) check_count(name, place, first->welcome);
    }
    const Nanoseconds waited = clock.now() - begun;
    if (waited > wait_limit) {
      throw Error(
          ErrorKind::peer_lost, nobody + " (waited " + in_seconds(wait_limit) + ")",
          "is `penstock serve " + job.path +
              "` running on this host, with the same name: and in the same namespaces of network and processes?");
    }
    if (waited > kSilence && !std::exchange(announced, true) && calls.on_warning) {
      calls.on_warning(nobody + " yet; waiting for `penstock serve " + job.path + "`, " + in_seconds(wait_limit) +
                       " at most");
    }
    if (turn % 10 == 9 && calls.while_waiting) calls.while_waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

bool end_serving(const std::string& name, Nanoseconds timeout_ns) {
  UniqueFd fd = try_connect_abstract(serving_socket(name, 0));
  if (!fd || !peer_is_us(fd.get())) return false;
  PacketSocket socket(std::move(fd));
  handshake(socket, "", kHandshake);
  socket.send(encode_client(ClientEndServing{}));
  Packet packet;
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + timeout_ns;
  while (!socket.closed() && clock.now() < deadline) (void)socket.receive_until(packet, 100 * kMillisecond);
  if (!socket.closed()) {
    throw Error(ErrorKind::peer_lost, "job '" + name + "' on host " + host_name() + " was told to end and has not",
                "see its messages; send its mpirun SIGTERM");
  }
  return true;
}

}  // namespace penstock
