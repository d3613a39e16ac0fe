#include "runtime/trainer/client_connections.h"

#include <utility>

#include "runtime/base/error.h"

namespace penstock {

void ClientConnections::listen(const std::string& name, const std::string& token) {
  listening_ = listen_abstract(name);
  token_ = token;
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
  for (UniqueFd& fd : adopted) connections_[next_++] = {PacketSocket(std::move(fd)), true};
  if (listening_) {
    while (UniqueFd fd = accept_one(listening_.get())) {
      if (peer_is_us(fd.get())) connections_[next_++] = {PacketSocket(std::move(fd)), false};
    }
  }
  return !adopted.empty();
}

// False: not the hello that was expected; the connection is closed.
bool ClientConnections::greet(Connection& connection, const ClientMessage& message) {
  const auto* hello = std::get_if<ClientHello>(&message);
  if (hello != nullptr && hello->token == token_) {
    connection.greeted = true;
    return true;
  }
  connection.socket.send(encode_client(
      ClientRefused{static_cast<int32_t>(ErrorKind::usage), "this program does not belong to the job",
                    "start it with `penstock run`, or unset PENSTOCK_PORT"}));
  connection.socket.flush(kSecond);
  connection.socket.close();
  return false;
}

bool ClientConnections::poll(const Handlers& handlers) {
  bool moved = let_in();
  std::vector<int> closed;
  for (auto& [id, connection] : connections_) {
    connection.socket.write_pending();
    Packet packet;
    while (connection.socket.receive(packet)) {
      moved = true;
      try {
        const ClientMessage message = decode_client(packet.bytes);
        if (connection.greeted) {
          handlers.message(id, message);
        } else {
          greet(connection, message);
        }
      } catch (const Error& error) {
        tell(id, ClientFailed{error.exit_code(), error.message(), error.remedy()});
      }
    }
    if (connection.socket.closed()) closed.push_back(id);
  }
  for (const int id : closed) {
    connections_.erase(id);
    handlers.dropped(id);
  }
  return moved;
}

void ClientConnections::tell(int connection, const ClientMessage& message, int fd) {
  const auto it = connections_.find(connection);
  if (it != connections_.end()) it->second.socket.send(encode_client(message), fd);
}

void ClientConnections::collect_fds(std::vector<pollfd>& fds) const {
  if (listening_) fds.push_back({listening_.get(), POLLIN, 0});
  for (const auto& [id, connection] : connections_) {
    fds.push_back({connection.socket.fd(), connection.socket.poll_events(), 0});
  }
}

void ClientConnections::hang_up() noexcept {
  for (auto& [id, connection] : connections_) connection.socket.close();
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
