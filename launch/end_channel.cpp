#include "launch/end_channel.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/json_text.h"
#include "runtime/base/random_hex.h"
#include "runtime/base/switches.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

constexpr size_t kMostText = size_t{64} << 10;
constexpr size_t kMostOfRank = size_t{16} << 20;  // a report
constexpr int kMostAtOnce = 1024;                 // that are let in before anybody is heard
constexpr int kMostSilent = 64;                   // besides the job's ranks
constexpr Nanoseconds kConnectTimeout = 10 * kSecond;
// Only a report fills the socket, and only launch that is stopped (Ctrl-Z) leaves it full.
constexpr int kSendTimeout_ms = 60'000;
// The listening socket is not polled while no descriptors are left, so that the next look must come by itself.
constexpr int kLookAgain_ms = 200;
// A trainer's host that has not answered for so long is lost. Ranks that are left have noticed it before.
constexpr double kLeastSilence_s = 60;
constexpr double kMostSilence_s = 65'000;  // the kernel takes half of it, up to 32,767 s

sockaddr_in any_port(uint32_t address) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(address);
  return name;
}

// By which other hosts may reach this one. IPv4, as Open MPI's own connections by default.
std::string own_addresses() {
  std::string list;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return list;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const bool usable = one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET &&
                        (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    char text[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    list += (list.empty() ? "" : ",") + std::string(text);
  }
  ::freeifaddrs(all);
  return list;
}

// A host that is lost closes no connection, and by itself the kernel would take two hours to notice. Connections of loaders
// are left as they are: the job goes on without a loader, and it may come back.
void expect_answers(const UniqueFd& fd, double limit_s) {
  constexpr int kProbes = 6;
  const int idle_s = static_cast<int>(limit_s / 2);
  const int interval_s = std::max(idle_s / kProbes, 1);
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
}

bool equal_in_constant_time(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// A connection to the first of the addresses that takes one; all are tried at once, because one that leads nowhere is
// noticed late.
UniqueFd connect_to_any(const std::string& addresses, uint16_t port) {
  std::vector<UniqueFd> tried;
  std::istringstream list(addresses);
  for (std::string text; std::getline(list, text, ',');) {
    sockaddr_in name = any_port(0);
    name.sin_port = htons(port);
    if (::inet_pton(AF_INET, text.c_str(), &name.sin_addr) != 1) continue;
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) continue;
    const int result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name);
    if (result == 0 || errno == EINPROGRESS) tried.push_back(std::move(fd));
  }
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + kConnectTimeout;
  while (!tried.empty() && clock.now() < deadline) {
    std::vector<pollfd> fds;
    for (const UniqueFd& fd : tried) fds.push_back({fd.get(), POLLOUT, 0});
    (void)::poll(fds.data(), fds.size(), 200);
    for (size_t i = fds.size(); i-- > 0;) {
      if (fds[i].revents == 0) continue;
      int problem = 0;
      socklen_t length = sizeof problem;
      (void)::getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &problem, &length);
      if (problem == 0) return std::move(tried[i]);
      tried.erase(tried.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return {};
}

}  // namespace

EndListener::EndListener(const JobOutcome::Spec& spec, bool remote, Nanoseconds now)
    : ranks_(spec.ranks),
      silence_s_(std::clamp(3 * spec.lost_after_s, kLeastSilence_s, kMostSilence_s)),
      job_(spec, now),
      listening_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      token_(random_hex(32)) {
  sockaddr_in name = any_port(remote ? INADDR_ANY : INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  auto* const any = reinterpret_cast<sockaddr*>(&name);
  if (!listening_ || ::bind(listening_.get(), any, length) != 0 || ::listen(listening_.get(), 1024) != 0 ||
      ::getsockname(listening_.get(), any, &length) != 0) {
    throw Error(ErrorKind::runtime, system_error_text("cannot listen for the ranks' ends"),
                "start the job by the mpirun line that `penstock launch` prints");
  }
  std::string addresses = remote ? own_addresses() : "";
  if (addresses.empty()) addresses = "127.0.0.1";  // of a host without a network, all ranks may be here by its name
  address_ = addresses + ":" + std::to_string(ntohs(name.sin_port));
}

void EndListener::collect_fds(std::vector<pollfd>& fds) const {
  if (!no_descriptors_) fds.push_back({listening_.get(), POLLIN, 0});
  for (const Connection& connection : connections_) fds.push_back({connection.fd.get(), POLLIN, 0});
}

void EndListener::read(Nanoseconds now) {
  for (int i = 0; i < kMostAtOnce; ++i) {
    UniqueFd fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    no_descriptors_ = !fd && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    if (!fd) break;
    const int on = 1;
    (void)::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    connections_.push_back({std::move(fd), {}, -1});
  }
  connections_.remove_if([&](Connection& connection) {
    if (read_lines(connection, now)) return false;
    if (connection.rank >= 0) job_.hung_up(connection.rank, now, status_left_by(connection.pid));
    return true;
  });
  hang_up_on_strangers();
}

void EndListener::read_last_words(const Clock& clock, Nanoseconds limit) {
  for (;;) {
    const Nanoseconds now = clock.now();
    read(now);
    if (now >= limit || !job_.awaits_last_words()) return;
    std::vector<pollfd> fds;
    collect_fds(fds);
    const auto left_ms = (limit - now + kMillisecond - 1) / kMillisecond;
    (void)::poll(fds.data(), fds.size(), static_cast<int>(std::min<Nanoseconds>(left_ms, kLookAgain_ms)));
  }
}

// Otherwise they would take the descriptors by which launch follows the job.
void EndListener::hang_up_on_strangers() {
  const auto stranger = [](const Connection& one) { return one.rank < 0; };
  auto strangers = std::count_if(connections_.begin(), connections_.end(), stranger);
  connections_.remove_if([&](const Connection& one) { return stranger(one) && strangers-- > kMostSilent + ranks_; });
}

// False: nothing more will come.
bool EndListener::read_lines(Connection& connection, Nanoseconds now) {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::recv(connection.fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return false;
    size_t begin = connection.text.size();  // of what has not been looked through
    connection.text.append(buffer.data(), static_cast<size_t>(got));
    for (size_t end = 0; (end = connection.text.find('\n', begin)) != std::string::npos; begin = 0) {
      if (!read_line(connection, connection.text.substr(0, end), now)) return false;
      connection.text.erase(0, end + 1);
    }
    if (connection.text.size() > (connection.rank < 0 ? kMostText : kMostOfRank)) return false;
  }
}

bool EndListener::read_line(Connection& connection, const std::string& line, Nanoseconds now) {
  const nlohmann::json message = parse_json_or_nothing(line);
  if (!message.is_object()) return false;
  if (connection.rank < 0) return handshake(connection, message, now);
  if (const auto report = message.find("report"); connection.rank == 0 && report != message.end()) {
    if (report->is_string()) report_ = report->get<std::string>();
  }
  if (const auto back = message.find("back"); connection.rank == 0 && back != message.end()) {
    if (back->is_string()) job_.came_back(back->get<std::string>());
  }
  if (message.contains("running")) {
    const bool loads = message.value("loads", nlohmann::json()) == true;
    if (!loads) expect_answers(connection.fd, silence_s_);
    job_.running(connection.rank, now, loads);
  }
  const nlohmann::json why = message.value("why", nlohmann::json());
  const std::string cause = why.is_string() ? why.get<std::string>() : "";
  if (message.contains("will_end") && message["will_end"].is_number_integer()) {
    job_.will_end(connection.rank, message["will_end"].get<int>(), cause, now);
  }
  if (message.contains("end") && message["end"].is_number_integer()) {
    job_.ended(connection.rank, message["end"].get<int>(), cause, now,
               message.value("mpi_ended", nlohmann::json(true)) == true);
  }
  return true;
}

// False: none of the job's ranks, or one that is known already. Two for one rank would be two words about its end.
bool EndListener::handshake(Connection& connection, const nlohmann::json& message, Nanoseconds now) {
  const bool whole = message.contains("token") && message["token"].is_string() && message.contains("rank") &&
                     message["rank"].is_number_integer() && message.contains("host") && message["host"].is_string();
  if (!whole || !equal_in_constant_time(message["token"].get<std::string>(), token_)) return false;
  const auto rank = message["rank"].get<int64_t>();
  if (rank < 0 || rank >= ranks_ || !known_.insert(static_cast<int>(rank)).second) return false;
  connection.rank = static_cast<int>(rank);
  job_.began(connection.rank, message["host"].get<std::string>(), now);
  const nlohmann::json pid = message.value("pid", nlohmann::json());
  if (pid.is_number_integer() && process_has(pid.get<pid_t>(), token_)) connection.pid = pid.get<pid_t>();
  return true;
}

EndReporter EndReporter::from_environment() {
  EndReporter reporter;
  const std::string address = environment_value(kEndChannelVariable);
  const std::string token = environment_value(kEndTokenVariable);
  const std::string rank = environment_value("OMPI_COMM_WORLD_RANK");
  ::unsetenv(kEndChannelVariable);
  ::unsetenv(kEndTokenVariable);
  const size_t colon = address.find(':');
  int number = 0;
  if (colon == std::string::npos || token.empty() || rank.empty()) return reporter;
  const auto [end, failed] = std::from_chars(rank.data(), rank.data() + rank.size(), number);
  if (failed != std::errc() || end != rank.data() + rank.size()) return reporter;
  const int port = std::atoi(address.c_str() + colon + 1);
  reporter.fd_ = connect_to_any(address.substr(0, colon), static_cast<uint16_t>(port));
  if (!reporter.fd_) {
    reporter.problem_ =
        "rank " + rank + " (host " + host_name() + ") cannot connect to `penstock launch` at " + address +
        " (TCP), which will not hear how this rank ends\n  help: let connections from this host to that "
        "one pass, or start the job by the mpirun line that `penstock launch` prints";
  }
  reporter.send(json_text_replacing({{"token", token}, {"rank", number}, {"host", host_name()}, {"pid", ::getpid()}}));
  return reporter;
}

void EndReporter::running(bool loads) {
  send(json_text_replacing({{"running", true}, {"loads", loads}}));
}

bool EndReporter::report(const std::string& text) {
  const std::string line = json_text_replacing(nlohmann::json::object({{"report", text}}));
  if (line.size() < kMostOfRank) send(line);
  return fd_ && line.size() < kMostOfRank;
}

void EndReporter::came_back(const std::string& loaders) {
  send(json_text_replacing(nlohmann::json::object({{"back", loaders}})));
}

void EndReporter::will_end(int exit_code, const std::string& why) {
  send(json_text_replacing({{"will_end", exit_code}, {"why", why.substr(0, kMostText / 16)}}));
}

void EndReporter::ended(int exit_code, const std::string& why, bool mpi_ended) {
  send(json_text_replacing({{"end", exit_code}, {"why", why.substr(0, kMostText / 16)}, {"mpi_ended", mpi_ended}}));
  fd_.reset();
}

void EndReporter::send(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t sent = 0; fd_ && sent < text.size();) {
    const ssize_t count = ::send(fd_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    pollfd writable{fd_.get(), POLLOUT, 0};
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
    if (!full || ::poll(&writable, 1, kSendTimeout_ms) <= 0) fd_.reset();
  }
}

}  // namespace penstock
