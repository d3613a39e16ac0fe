// A link from a GPU of one process to a GPU of another, for bytes that no CPU copies.
//
//   const std::string id = gpu->link_id();            // of the process that sends; told to the other
//   auto link = gpu->link(id, LinkEnd::sender);        // here;      neither call waits for the other
//   auto link = gpu->link(id, LinkEnd::receiver);      // there
//   while (link->state() == LinkState::joining) …;     // asked now and then
//   link->send(buffer_range, n);                       // here
//   link->receive(memory, n, *stream);                 // there: in the GPU stream, behind what it was told before
//   stream->wait(…);                                  // it has come
//
// State, at each end by itself:
//
//     joining --both ends are there--> joined --end(), a failed call, a deadline--> failed
//        '------------------------------------------------------------------------------^
//
// Order: the n-th receive() gets what the n-th send() gave; both must say the same number of bytes. Neither is known to
//   be over but by the receiver's GPU stream, and only its process may say that the sender's memory is free again.
// Waiting: send() never waits; the link has a thread of its own for it, so that a receiver that is late keeps up nobody
//   else. receive() waits, LinkTimeouts::move_ns at most, until the link has taken what it was told, which may need the
//   other end's answer.
// Failure: GpuError; a link that failed stays so, failure() says why, and GPU streams that were told to receive by it
//   end, with bytes that nobody knows. Two ends on one GPU are not joined, where the library refuses that: whoever
//   offers a link compares Gpu::identity() first.
// Ownership: the link must go before its GPU, and behind the GPU streams that receive by it were waited for. Its end
//   aborts what is under way, and waits for its thread.
// Thread-safety: state(), failure() and end() from any thread; send() and receive() from one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/clock.h"

namespace penstock {

class GpuStream;

enum class LinkEnd : uint8_t { sender, receiver };
enum class LinkState : uint8_t { joining, joined, failed };

struct LinkTimeouts {
  Nanoseconds join_ns = 60 * kSecond;  // for the other end to come
  Nanoseconds move_ns = 10 * kSecond;  // for what it was told to be taken
};

class GpuLink {
 public:
  virtual ~GpuLink() = default;
  virtual LinkState state() const = 0;
  virtual std::string failure() const = 0;  // empty: it has not failed
  virtual void send(const std::byte* from, size_t bytes) = 0;
  virtual void receive(std::byte* to, size_t bytes, GpuStream& stream) = 0;
  virtual void end(const std::string& why) noexcept = 0;
};

}  // namespace penstock
