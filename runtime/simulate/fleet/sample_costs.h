// What each sample of a simulated data set is and costs: numbers that follow from a seed and its index alone, so that two
// fleets which make the same samples differ by the fleets.
//
//   SampleCosts costs(spec.samples, seed);
//   costs.bytes(index);  costs.work_ns(index, making);    // `making`: a number of this attempt, for the noise
//
// Thread-safety: const calls from any thread.
#pragma once

#include <cstdint>

#include "runtime/simulate/fleet/fleet_spec.h"
#include "runtime/simulate/seeded_random.h"

namespace penstock {

class SampleCosts {
 public:
  SampleCosts(const SampleModel& model, uint64_t seed) : model_(model), seed_(seed) {}

  int64_t bytes(int64_t index) const {
    if (model_.known_bytes) return (*model_.known_bytes)[static_cast<size_t>(index)];
    SeededRandom random = number(1, index);
    return model_.bytes.draw(random);
  }
  Nanoseconds work_ns(int64_t index, int64_t making) const {
    SeededRandom random = number(2, index);
    double work = static_cast<double>(model_.work_ns.draw(random));
    if (model_.ns_per_byte > 0) work += model_.ns_per_byte * static_cast<double>(bytes(index));
    SeededRandom noise = number(3, making);
    return static_cast<Nanoseconds>(work * (static_cast<double>(model_.noise.draw(noise)) * 1e-6));
  }
  // A stream of numbers of its own for each pair.
  SeededRandom number(uint64_t kind, int64_t which) const {
    SeededRandom mixed(seed_ + kind * 0x632be59bd9b4e019u);
    return SeededRandom(mixed.bits() ^ (static_cast<uint64_t>(which) * 0xd1342543de82ef95u));
  }

 private:
  const SampleModel& model_;
  uint64_t seed_;
};

}  // namespace penstock
