#include "runtime/receiver/client_connections.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {
namespace {

// Messages that are taken from one client before it is the next one's turn, so that one that talks without a pause
// keeps nobody waiting.
constexpr int kMostAtOnce = 256;

short ready(int fd, short events) {
  pollfd item{fd, events, 0};
  return ::poll(&item, 1, 0) > 0 ? item.revents : short{0};
}

}  // namespace

bool ClientConnections::Program::ended() const {
  return process && ready(process.get(), POLLIN) != 0;
}

void ClientConnections::listen(const std::string& name, const std::string& token, const ClientWelcome& welcome) {
  listening_ = listen_abstract(name);
  token_ = token;
  welcome_ = welcome;
}

void ClientConnections::adopt(UniqueFd client_socket) {
  MutexLock lock(mutex_);
  if (!disconnected_) adopted_.push_back(std::move(client_socket));
}

bool ClientConnections::let_in() {
  std::vector<UniqueFd> adopted;
  {
    MutexLock lock(mutex_);
    adopted.swap(adopted_);
  }
  for (UniqueFd& fd : adopted) connections_[next_++] = {PacketSocket(std::move(fd)), true, 0};
  if (listening_) {
    for (PacketSocket& socket : accept_strangers(listening_.get())) {
      connections_[next_++] = {std::move(socket), false, 0};
    }
  }
  return !adopted.empty();
}

void ClientConnections::refuse(int id, Connection& connection) {
  send(id, ClientRefused{static_cast<int32_t>(ErrorKind::usage), "this program does not belong to the job",
                         "start it with `penstock run`, or unset PENSTOCK_RECEIVER"});
  connection.socket.close();
}

// Anything but the hello that was expected closes the connection.
void ClientConnections::handshake(int id, Connection& connection, const ClientMessage& message,
                                  const Handlers& handlers) {
  const auto* hello = std::get_if<ClientHello>(&message);
  if (hello == nullptr || hello->token != token_) {
    refuse(id, connection);
    return;
  }
  connection.handshake_done = true;
  connection.socket.limit_messages(PacketSocket::kMaxMessage);
  const int pid = peer_pid(connection.socket.fd());
  const auto known = std::find_if(programs_.begin(), programs_.end(), [&](const auto& item) {
    return pid > 0 && item.second.pid == pid && !item.second.ended();
  });
  if (known != programs_.end()) {
    connection.program = known->first;
  } else {
    connection.program = next_program_++;
    programs_[connection.program] = {pid, watch_process(pid)};
    handlers.program(connection.program, pid, true, static_cast<int32_t>(programs_.size()));
  }
  send(id, welcome_);
}

void ClientConnections::end_programs(const Handlers& handlers) {
  for (auto it = programs_.begin(); it != programs_.end();) {
    const bool connected = std::any_of(connections_.begin(), connections_.end(),
                                       [&](const auto& item) { return item.second.program == it->first; });
    if (it->second.process ? !it->second.ended() : connected) {
      ++it;
      continue;
    }
    const int pid = it->second.pid;
    std::vector<int> ids;
    for (const auto& [id, connection] : connections_) {
      if (connection.program == it->first) ids.push_back(id);
    }
    for (const int id : ids) {
      connections_.erase(id);
      handlers.dropped(id);
    }
    const int64_t number = it->first;
    it = programs_.erase(it);
    handlers.program(number, pid, false, static_cast<int32_t>(programs_.size()));
  }
}

// Those that have said nothing yet, the oldest first: they are the ones that hold a connection and do not mean to use it.
void ClientConnections::hang_up_on_strangers() {
  const auto stranger = [](const auto& item) { return !item.second.handshake_done && !item.second.socket.closed(); };
  auto strangers = static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), stranger));
  for (auto it = connections_.begin(); strangers > kMostStrangers; ++it) {
    if (!stranger(*it)) continue;
    it->second.socket.close();
    --strangers;
  }
}

bool ClientConnections::poll(const Handlers& handlers) {
  end_programs(handlers);  // before their successors are let in
  bool moved = let_in();
  std::vector<int> closed;
  for (auto& [id, connection] : connections_) {
    connection.socket.write_pending();
    Packet packet;
    for (int taken = 0; taken < kMostAtOnce && !connection.socket.has_pending(); ++taken) {
      if (!connection.socket.receive(packet)) break;
      moved = true;
      try {
        const ClientMessage message = decode_client(packet.bytes);
        if (connection.handshake_done) {
          handlers.message(id, message);
        } else {
          handshake(id, connection, message, handlers);
        }
      } catch (const Error& error) {
        if (connection.handshake_done) {
          send(id, ClientFailed{error.exit_code(), error.message(), error.remedy()});
        } else {
          refuse(id, connection);
        }
      }
    }
  }
  hang_up_on_strangers();
  for (const auto& [id, connection] : connections_) {
    if (connection.socket.closed()) closed.push_back(id);
  }
  for (const int id : closed) {
    connections_.erase(id);
    handlers.dropped(id);
  }
  return moved;
}

int64_t ClientConnections::program(int connection) const {
  const auto it = connections_.find(connection);
  return it == connections_.end() ? 0 : it->second.program;
}

int ClientConnections::pid(int connection) const {
  const auto it = programs_.find(program(connection));
  return it == programs_.end() ? 0 : it->second.pid;
}

bool ClientConnections::living(int connection) const {
  const auto it = connections_.find(connection);
  if (it == connections_.end() || it->second.socket.closed()) return false;
  const auto program = programs_.find(it->second.program);
  if (program != programs_.end() && program->second.ended()) return false;
  return (ready(it->second.socket.fd(), POLLIN) & (POLLHUP | POLLERR)) == 0;
}

void ClientConnections::send(int connection, const ClientMessage& message, int fd) {
  if (const auto* refused = std::get_if<ClientRefused>(&message)) reported_problem_ = refused->error;
  const auto* failed = std::get_if<ClientFailed>(&message);
  const bool own_mistake = failed != nullptr && failed->error_kind == static_cast<int32_t>(ErrorKind::usage);
  if (failed != nullptr && !own_mistake) reported_problem_ = failed->error;
  const auto it = connections_.find(connection);
  if (it != connections_.end()) it->second.socket.send(encode_client(message), fd);
}

void ClientConnections::collect_fds(std::vector<pollfd>& fds) const {
  if (listening_) fds.push_back({listening_.get(), POLLIN, 0});
  for (const auto& [id, connection] : connections_) {
    fds.push_back({connection.socket.fd(), connection.socket.has_pending() ? short{POLLOUT} : short{POLLIN}, 0});
  }
  for (const auto& [number, program] : programs_) {
    if (program.process) fds.push_back({program.process.get(), POLLIN, 0});
  }
}

void ClientConnections::hang_up() noexcept {
  for (auto& [id, connection] : connections_) connection.socket.close();
  listening_.reset();
}

void ClientConnections::dismiss(const std::set<int>& except) {
  for (auto& [id, connection] : connections_) {
    if (except.count(id) == 0) connection.socket.close();  // dropped in the next poll()
  }
  listening_.reset();
}

void ClientConnections::disconnect() {
  {
    MutexLock lock(mutex_);
    disconnected_ = true;
    adopted_.clear();
  }
  listening_.reset();
  connections_.clear();
}

}  // namespace penstock
