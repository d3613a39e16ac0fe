// What every GPU must show, the one that is this CPU (gpu/played/host_gpu.h) and real ones: the CPU path's bytes.
//
//   check_batches(gpu);         // in a doctest test case
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/gpu/batch_builder.h"
#include "runtime/gpu/gpu.h"
#include "runtime/transforms/pipeline.h"

namespace penstock_test {

// A GPU's memory and what belongs to it. What lies behind the memory that batches may use is watched.
struct GpuBench {
  explicit GpuBench(penstock::Gpu& gpu, size_t memory_bytes = size_t{8} << 20, size_t samples = 64);

  // Seals, uploads, launches, fetches all outputs.
  void run();
  const uint8_t* output(size_t place) const {
    return reinterpret_cast<const uint8_t*>(outputs.data()) + place * batch.output_bytes();
  }
  bool untouched(size_t place) const;  // the GPU wrote nothing to this output

  size_t memory_bytes;
  penstock::GpuBlock memory;
  penstock::GpuBlock upload;
  penstock::GpuBlock outputs;
  penstock::BatchBuilder batch;
  std::unique_ptr<penstock::GpuStream> stream;
};

struct Picture {
  std::vector<std::byte> file;
  penstock::ImageHeader header;
  penstock::Draws draws;
};

Picture picture_of(const penstock::Pipeline& pipeline, std::vector<std::byte> file, uint64_t index);
std::vector<uint8_t> made_by_cpu(const penstock::Pipeline& pipeline, const Picture& picture,
                                 penstock::Scratch& scratch);

// Makes pictures of random sizes and samplings by these pipelines, in batches of `size`, one of each pipeline, and
// compares them. `planned` hears of each that the GPU takes.
using Planned = std::function<void(const penstock::GpuSample&, const penstock::ImageHeader&, const std::string&)>;
struct BatchCounts {
  int made = 0;
  int by_mode[4] = {};  // GpuSample::EntropyMode
  int refused = 0;
  size_t most_launches = 0;
};
void compare_batches(GpuBench& bench, const std::vector<std::vector<penstock::TransformSpec>>& lists, size_t size,
                     std::mt19937& random, BatchCounts& counts, const Planned& planned = {});

// Hashes of images and records are those of base/hash.h.
void check_digests(penstock::Gpu& gpu);

// Pictures of all samplings and sizes, crops at every border, eleven pipelines, batches of 1 to 64.
void check_batches(penstock::Gpu& gpu);
// Damaged files and indexes: where the GPU decodes entropy, its statuses and bytes are the CPU's.
void check_statuses(penstock::Gpu& gpu);
// Files without an index, whole and damaged, cut at restart markers or into subsequences of any length: where the GPU
// decodes entropy, its statuses and bytes are the CPU's; and files in which codes never find their way come back
// unmade.
void check_search(penstock::Gpu& gpu);
// Pictures with the same Huffman tables, which are uploaded once, and one with others.
void check_shared_tables(penstock::Gpu& gpu);
// Every dtype and memory format of the finishing pass.
void check_finished(penstock::Gpu& gpu);
// Coefficients as no encoder writes them.
void check_inverse(penstock::Gpu& gpu);

// Pixel transforms over their parameters' ranges, before, between and behind resizes, in batches of 1 to 64.
void check_pixels(penstock::Gpu& gpu);
// Hue, saturation and grey of all 2^24 colours; without PENSTOCK_FULL=1 one setting of each, and an eighth of the colours.
void check_all_colours(penstock::Gpu& gpu);
// The table that contrast makes of each mean.
void check_tones(penstock::Gpu& gpu);
// How few launches a batch of samples with steps in all orders takes.
void check_launches(penstock::Gpu& gpu);

}  // namespace penstock_test
