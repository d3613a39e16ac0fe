#include "runtime/process/helper_protocol.h"

#include <algorithm>

#include "runtime/base/wire.h"

namespace penstock {
namespace {

std::vector<std::byte> encode(const ProgramSpec& spec) {
  WireWriter out;
  for (const auto* list : {&spec.argv, &spec.environment}) {
    out.u32(static_cast<uint32_t>(list->size()));
    for (const std::string& entry : *list) out.text(entry);
  }
  out.text(spec.folder);
  out.u32(static_cast<uint32_t>(spec.cpus.size()));
  for (const int cpu : spec.cpus) out.i32(cpu);
  out.u8(spec.keep_stdin ? 1 : 0);
  out.u8(spec.relay_output ? 1 : 0);
  out.f64(spec.grace_s);
  return out.take();
}

}  // namespace

std::vector<std::vector<std::byte>> spec_packets(const ProgramSpec& spec) {
  const std::vector<std::byte> bytes = encode(spec);
  std::vector<std::vector<std::byte>> packets;
  for (size_t at = 0; at < bytes.size(); at += kSpecPartBytes) {
    const size_t size = std::min(kSpecPartBytes, bytes.size() - at);
    const bool last = at + size == bytes.size();
    WireWriter out;
    out.u8(code(last ? HelperPacket::spec_end : HelperPacket::spec_part));
    out.raw(bytes.data() + at, size);
    packets.push_back(out.take());
  }
  return packets;
}

ProgramSpec decode_spec(std::span<const std::byte> bytes) {
  WireReader in(bytes, "program to start");
  ProgramSpec spec;
  for (auto* list : {&spec.argv, &spec.environment}) {
    for (uint32_t left = in.u32(); left > 0; --left) list->push_back(in.text());
  }
  spec.folder = in.text();
  for (uint32_t left = in.u32(); left > 0; --left) spec.cpus.push_back(in.i32());
  spec.keep_stdin = in.u8() != 0;
  spec.relay_output = in.u8() != 0;
  spec.grace_s = in.f64();
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
