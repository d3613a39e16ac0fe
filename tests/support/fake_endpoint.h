// An Endpoint whose other end is a test: what a receiver sends is looked at, what it receives is scripted.
//
//   auto wire = std::make_shared<FakeWire>();
//   Receiver receiver(options, std::make_unique<FakeEndpoint>(wire));  // run() in a thread
//   wire->deliver(MessageArrived{1, encode(LoaderHello{...})});      // as if rank 1 had sent it
//   auto lease = wire->expect<LeaseGranted>(1);                      // the next one that was sent to rank 1
//   wire->wait_until([&] { return wire->releases(token) == 1; });
//
// Thread-safety: everything from any thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/protocol/messages.h"
#include "transport/transport.h"
#include "transport/wakeup.h"

namespace penstock {

class FakeWire {
 public:
  void deliver(Incoming incoming) {
    {
      const std::lock_guard lock(mutex_);
      incoming_.push_back(std::move(incoming));
    }
    wakeup_.set();
  }

  // Takes the oldest message of kind T sent to `peer` that was not taken yet; throws when none comes in time.
  template <class T>
  T expect(PeerId peer) {
    T found;
    const bool got = wait_until([&] { return take(peer, found); });
    if (!got) throw std::runtime_error("the expected message was not sent");
    return found;
  }
  // Takes one that is there already.
  template <class T>
  bool take(PeerId peer, T& found) {
    const std::lock_guard lock(mutex_);
    for (auto it = sent_.begin(); it != sent_.end(); ++it) {
      if (it->first != peer || !std::holds_alternative<T>(it->second)) continue;
      found = std::get<T>(std::move(it->second));
      sent_.erase(it);
      return true;
    }
    return false;
  }
  int releases(uint64_t token) const {
    const std::lock_guard lock(mutex_);
    const auto it = released_.find(token);
    return it == released_.end() ? 0 : it->second;
  }
  bool given_up(PeerId peer) const {
    const std::lock_guard lock(mutex_);
    return given_up_.count(peer) != 0;
  }
  static bool wait_until(const std::function<bool()>& done,
                         std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  friend class FakeEndpoint;
  mutable std::mutex mutex_;
  std::deque<Incoming> incoming_;
  std::deque<std::pair<PeerId, ControlMessage>> sent_;
  std::map<uint64_t, int> released_;
  std::set<PeerId> given_up_;
  Wakeup wakeup_;
};

class FakeEndpoint final : public Endpoint {
 public:
  explicit FakeEndpoint(std::shared_ptr<FakeWire> wire) : wire_(std::move(wire)) {}

  Capabilities capabilities(PeerId) const override { return {"fake", true}; }
  void send(PeerId peer, Message message) override {
    const std::lock_guard lock(wire_->mutex_);
    wire_->sent_.emplace_back(peer, decode(message));
  }
  void send_chunk(PeerId, Message, ChunkBufferRef, size_t) override {
    throw std::logic_error("a receiver sends no chunks");
  }
  void release(PeerId, uint64_t token) override {
    const std::lock_guard lock(wire_->mutex_);
    ++wire_->released_[token];
  }
  void give_up(PeerId peer) override {
    const std::lock_guard lock(wire_->mutex_);
    wire_->given_up_.insert(peer);
  }
  bool peers_map_arenas() const noexcept override { return false; }
  void register_arena(const Arena&) override {}
  void forget_arena(uint32_t) override {}
  bool poll(Incoming& incoming) override {
    const std::lock_guard lock(wire_->mutex_);
    if (wire_->incoming_.empty()) {
      wire_->wakeup_.clear();
      return false;
    }
    incoming = std::move(wire_->incoming_.front());
    wire_->incoming_.pop_front();
    return true;
  }
  void collect_fds(std::vector<pollfd>& fds) const override { fds.push_back({wire_->wakeup_.fd(), POLLIN, 0}); }
  bool flush(Nanoseconds) override { return true; }

 private:
  std::shared_ptr<FakeWire> wire_;
};

}  // namespace penstock
