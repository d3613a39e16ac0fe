// What every card must show, the one that is this CPU (card/host_card.h) and real ones: the CPU path's bytes.
//
//   check_batches(card);        // in a doctest test case
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/augment/pipeline.h"
#include "runtime/card/batch_builder.h"
#include "runtime/card/card.h"

namespace penstock_test {

// A card's memory and what belongs to it. What lies behind the memory that batches may use is watched.
struct CardBench {
  explicit CardBench(penstock::Card& card, size_t memory_bytes = size_t{8} << 20, size_t samples = 64);

  // Seals, uploads, launches, fetches all outputs.
  void run();
  const uint8_t* output(size_t place) const {
    return reinterpret_cast<const uint8_t*>(outputs.data()) + place * batch.output_bytes();
  }
  bool untouched(size_t place) const;  // the card wrote nothing to this output

  size_t memory_bytes;
  penstock::CardBlock memory;
  penstock::CardBlock upload;
  penstock::CardBlock outputs;
  penstock::BatchBuilder batch;
  std::unique_ptr<penstock::CardStream> stream;
};

struct Picture {
  std::vector<std::byte> file;
  penstock::ImageHeader header;
  penstock::Draws draws;
};

Picture picture_of(const penstock::Pipeline& pipeline, std::vector<std::byte> file, uint64_t index);
std::vector<uint8_t> made_by_cpu(const penstock::Pipeline& pipeline, const Picture& picture,
                                 penstock::Scratch& scratch);

// Pictures of all samplings and sizes, crops at every border, eleven pipelines, batches of 1 to 64.
void check_batches(penstock::Card& card);
// Every dtype and memory format of the finishing pass.
void check_finished(penstock::Card& card);
// Coefficients as no encoder writes them.
void check_inverse(penstock::Card& card);

}  // namespace penstock_test
