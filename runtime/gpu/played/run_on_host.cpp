#include "runtime/gpu/played/run_on_host.h"

#include "runtime/gpu/kernels.h"

namespace penstock {
namespace {

template <class Kernel>
void run_all(uint8_t* memory, const StageLaunch& launch) {
  const auto* const spans = reinterpret_cast<const PartSpan*>(memory + launch.spans_at);
  const auto* const parts = reinterpret_cast<const typename Kernel::Part*>(memory + launch.parts_at);
  for (uint32_t s = 0; s < launch.spans; ++s) {
    const typename Kernel::Part& part = parts[spans[s].part];
    for (uint32_t thread = 0; thread < kSpanThreads; ++thread) {
      const uint32_t unit = spans[s].first + thread;
      if (unit < part.units) Kernel::run(memory, launch.outputs, part, unit);
    }
  }
}

}  // namespace

void run_on_host(uint8_t* memory, const StageLaunch& launch) {
  with_kernel(launch.stage, [&]<class Kernel>() { run_all<Kernel>(memory, launch); });
}

}  // namespace penstock
