// What a client's other threads want to say while one of them waits for the receiver, for long, with the socket's lock.
//
//   outbox.put(encode_client(ClientRelease{pool, batch_buffer}));  // any thread, at any time: a batch was dropped
//   outbox.put_stopped(iteration);                           // an iteration is over
//   for (const Message& m : outbox.take()) socket.send(m);   // who has the socket, every few milliseconds
//   for (const uint64_t iteration : outbox.take_stopped()) ...
//
// Its lock is held for a few instructions and nothing else is locked inside, so destructors may wait for it.
// Thread-safety: everything from any thread. Ownership: the messages, until they are taken. Failure: std::bad_alloc.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/thread_annotations.h"
#include "transport/transport.h"

namespace penstock {

class Outbox {
 public:
  void put(Message message) {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
  }
  void put_stopped(uint64_t iteration) {
    MutexLock lock(mutex_);
    stopped_.push_back(iteration);
  }
  std::vector<Message> take() {
    MutexLock lock(mutex_);
    return std::exchange(messages_, {});
  }
  std::vector<uint64_t> take_stopped() {
    MutexLock lock(mutex_);
    return std::exchange(stopped_, {});
  }

 private:
  Mutex mutex_;
  std::vector<Message> messages_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<uint64_t> stopped_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock
