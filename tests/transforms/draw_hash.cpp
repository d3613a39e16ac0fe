// Prints one hash over ten million draws of every function, for draw_hash_test.py to compare between compilers and CPU
// levels. No library is linked: what is hashed is draw.h alone.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "runtime/transforms/draw.h"

namespace {

uint64_t hash = 1469598103934665603ULL;

void add(uint64_t value) {
  hash = (hash ^ value) * 1099511628211ULL;
  hash ^= hash >> 29;
}

void add(double value) {
  add(penstock::draw_detail::bits_of(value));
}

}  // namespace

int main(int argc, char** argv) {
  const long total = argc > 1 ? std::atol(argv[1]) : 10'000'000;
  long draws = 0;
  for (uint64_t index = 0; draws < total; ++index) {
    const penstock::DrawKey key{.seed = index * 0x9e3779b97f4a7c15ULL,
                                .epoch = static_cast<uint32_t>(index % 90),
                                .index = index * 7919,
                                .occurrence = static_cast<uint16_t>(index % 3)};
    penstock::DrawStream stream(key, static_cast<uint16_t>(index % 5));
    add(stream.bits());
    add(stream.uniform01());
    // The arithmetic of RandomResizedCrop.
    const double area = 500.0 * 375.0 * stream.uniform(0.08, 1.0);
    const double low = penstock::draw_log(3.0 / 4.0);
    const double high = penstock::draw_log(4.0 / 3.0);
    const double aspect = penstock::draw_exp(stream.uniform(low, high));
    add(area);
    add(aspect);
    add(penstock::round_half_even(std::sqrt(area * aspect)));
    add(penstock::round_half_even(std::sqrt(area / aspect)));
    add(static_cast<uint64_t>(stream.below(static_cast<uint32_t>(index % 1000 + 1))));
    add(static_cast<uint64_t>(stream.bernoulli(0.5)));
    const double angle = stream.uniform(-1000.0, 1000.0);
    add(penstock::draw_sin(angle));
    add(penstock::draw_cos(angle));
    add(penstock::draw_log(stream.uniform(1e-300, 10.0)));
    add(penstock::draw_exp(stream.uniform(-700.0, 700.0)));
    uint8_t order[4];
    stream.permutation(order, 4);
    for (const uint8_t element : order) add(static_cast<uint64_t>(element));
    draws += stream.next_draw();
  }
  std::printf("%ld draws, hash %016" PRIx64 "\n", draws, hash);
  return 0;
}
