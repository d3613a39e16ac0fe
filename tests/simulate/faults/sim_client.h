// A training program in a simulated world: it takes what its receiver sends, as the client protocol says, and checks
// every sample of it.
//
//   auto [mine, theirs] = packet_socket_pair();  receiver.adopt(std::move(theirs));
//   SimClient client(loop, std::move(mine), script, [&] { turn the receiver; });
//   client.turn();                          // after each turn of the receiver: takes what has come
//   client.finished();  client.failure();
//
// Thread-safety: none. Failure: what does not fit what was promised stands in failure().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/protocol/client_protocol.h"
#include "runtime/simulate/event_loop.h"
#include "transport/unix_socket.h"

namespace penstock {

class SimClient {
 public:
  struct Epoch {
    int64_t batches = -1;  // after which it breaks off; -1: all
  };
  struct Script {
    std::string split_json;
    int64_t batch_size = 1;
    std::vector<Epoch> epochs;
    std::function<Nanoseconds()> step_takes;
    int hold = 0;        // batches that it keeps while it asks for the next
    bool checks = true;  // what it is given
  };
  SimClient(EventLoop& loop, UniqueFd socket, Script script, std::function<void()> receivers_turn);

  bool turn();  // true: it has sent something
  bool finished() const noexcept { return state_ == State::finished; }
  const std::string& failure() const noexcept { return failure_; }  // empty: none
  // The job's: it said so.
  const std::string& refusal() const noexcept { return refusal_; }
  int64_t batches() const noexcept { return batches_; }
  Nanoseconds longest_wait_ns() const noexcept { return longest_wait_; }
  Nanoseconds opening_took_ns() const noexcept { return opening_took_; }

 private:
  enum class State : uint8_t { opening, beginning, waiting, stepping, finished };

  void send(const ClientMessage& message);
  void handle(const ClientMessage& message, UniqueFd fd);
  void begin_epoch();
  void ask();
  void take(const ClientBatch& batch);
  void check(const ClientBatch& batch);
  void let_go(const ClientBatch& batch);
  void end_epoch(bool broken_off);
  void fail(const std::string& why);

  EventLoop& loop_;
  PacketSocket socket_;
  Script script_;
  std::function<void()> receivers_turn_;
  State state_ = State::opening;
  ClientOpened opened_;
  ClientIteration iteration_;
  size_t epoch_ = 0;
  int64_t taken_ = 0;  // batches of the epoch
  int64_t batches_ = 0;
  Nanoseconds asked_at_ = 0;
  Nanoseconds longest_wait_ = 0;
  Nanoseconds opening_took_ = 0;
  std::vector<ClientBatch> held_;
  std::map<int32_t, SharedMemory> pools_;
  std::map<int32_t, uint64_t> batch_buffer_bytes_;
  std::string failure_;
  std::string refusal_;
  bool sent_ = false;
};

}  // namespace penstock
