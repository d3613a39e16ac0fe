// What a rank and its helper say to each other, over a pair of sequenced-packet sockets: one packet, one thing.
//
//   rank ──▶ helper                              helper ──▶ rank
//   spec_part*, spec_end  a ProgramSpec, in parts    ready          it is in its own session, and listens
//   signal   i32                                     started        i64 pid
//   stop     f64 grace_s                             start_failed   text
//   ask      are you there?                          exited         i64 pid, i32 status of waitpid
//   (hang-up: as stop, with the spec's grace)        here           the answer to ask
//                                                    ended          u8 clean; the last one
//
//   for (const auto& packet : spec_packets(spec)) send(packet);
//   ProgramSpec spec = decode_spec(bytes_of_all_parts);       // Error(peer_lost) where it is none
//
// A packet is a u8 kind and what the table says, as codec.h writes it. Parts, because a sequenced-packet socket
//   takes packets up to its send buffer, and environments can be larger.
// Thread-safety: pure functions. Ownership: none. Failure: as said.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/codec.h"
#include "runtime/process/program_start.h"

namespace penstock {

enum class HelperPacket : uint8_t {
  ready = 1,
  spec_part,
  spec_end,
  signal,
  stop,
  ask,
  started,
  start_failed,
  exited,
  here,
  ended
};

template <class... T>
std::vector<std::byte> helper_packet(HelperPacket kind, const T&... values) {
  WireWriter out;
  codec::put(out, kind);
  (codec::put(out, values), ...);
  return out.take();
}

inline constexpr size_t kSpecPartBytes = 32 << 10;

std::vector<std::vector<std::byte>> spec_packets(const ProgramSpec& spec);
ProgramSpec decode_spec(std::span<const std::byte> bytes);

// Both sides' waits have an end, given in seconds.
std::chrono::steady_clock::time_point deadline_after(double limit_s);
int milliseconds_until(std::chrono::steady_clock::time_point deadline);  // for poll(): rounded up, never negative

// Processes stuck in the kernel cannot be ended by anyone; after this long whoever ends them says so and leaves.
inline constexpr double kKillLimit_s = 10;

}  // namespace penstock
