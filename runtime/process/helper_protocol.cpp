#include "runtime/process/helper_protocol.h"

#include <algorithm>

namespace penstock {
std::vector<std::vector<std::byte>> spec_packets(const ProgramSpec& spec) {
  WireWriter whole;
  codec::put(whole, spec);
  const std::vector<std::byte> bytes = whole.take();
  std::vector<std::vector<std::byte>> packets;
  for (size_t at = 0; at < bytes.size(); at += kSpecPartBytes) {
    const size_t size = std::min(kSpecPartBytes, bytes.size() - at);
    const bool last = at + size == bytes.size();
    WireWriter out;
    codec::put(out, last ? HelperPacket::spec_end : HelperPacket::spec_part);
    out.raw(bytes.data() + at, size);
    packets.push_back(out.take());
  }
  return packets;
}

ProgramSpec decode_spec(std::span<const std::byte> bytes) {
  WireReader in(bytes, "program to start");
  ProgramSpec spec;
  codec::get(in, spec);
  in.end();
  return spec;
}

std::chrono::steady_clock::time_point deadline_after(double limit_s) {
  using Duration = std::chrono::steady_clock::duration;
  const std::chrono::duration<double> limit(std::clamp(limit_s, 0.0, 1e6));
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<Duration>(limit);
}

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

}  // namespace penstock
