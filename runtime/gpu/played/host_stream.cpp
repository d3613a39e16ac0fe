#include "runtime/gpu/played/host_stream.h"

#include <cstring>
#include <utility>

#include "runtime/gpu/played/run_on_host.h"

namespace penstock {

HostStream::~HostStream() {
  try {
    HostStream::wait(0);
  } catch (const std::exception&) {  // nobody is left who could be told
  }
}

void HostStream::launch(std::byte* memory, const StageLaunch& launch) {
  work_.push_back({[memory, launch] { run_on_host(reinterpret_cast<uint8_t*>(memory), launch); },
                   &times_.stage_ns[static_cast<size_t>(launch.stage)]});
}

void HostStream::wait(Nanoseconds) {
  const MonotonicClock clock;
  Nanoseconds begun = clock.now();
  for (const Work& one : std::exchange(work_, {})) {
    one.run();
    const Nanoseconds now = clock.now();
    *one.time += now - std::exchange(begun, now);
  }
}

GpuTimes HostStream::take_times() {
  return std::exchange(times_, {});
}

void HostStream::copy(std::byte* to, const std::byte* from, size_t bytes, Nanoseconds& time) {
  work_.push_back({[to, from, bytes] { std::memcpy(to, from, bytes); }, &time});
}

}  // namespace penstock
