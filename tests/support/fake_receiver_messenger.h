// A ReceiverMessenger whose other ends are a test: what parts of a receiver send is kept, in order.
//
//   FakeReceiverMessenger out;
//   ExportRegistry exports(out);
//   exports.offered(3, …);
//   CHECK(out.for_clients.at(0).first == 5);             // connection and message
//   out.look = [](int connection, const ClientMessage& message, int fd) { … };    // the descriptor is open meanwhile
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/receiver/receiver_messenger.h"

namespace penstock {

struct FakeReceiverMessenger final : ReceiverMessenger {
  void to_coordinator(const ControlMessage& message) override { for_coordinator.push_back(message); }
  void to_rank(PeerId peer, const ControlMessage& message) override { for_ranks.emplace_back(peer, message); }
  void to_client(int connection, const ClientMessage& message, int fd) override {
    if (look) look(connection, message, fd);
    for_clients.emplace_back(connection, message);
  }
  void notice(const std::string& text) override { notices.push_back(text); }
  void still_alive() override { ++signs_of_life; }

  std::function<void(int connection, const ClientMessage& message, int fd)> look;  // at what clients are sent
  std::vector<ControlMessage> for_coordinator;
  std::vector<std::pair<PeerId, ControlMessage>> for_ranks;
  std::vector<std::pair<int, ClientMessage>> for_clients;
  std::vector<std::string> notices;
  int signs_of_life = 0;
};

}  // namespace penstock
