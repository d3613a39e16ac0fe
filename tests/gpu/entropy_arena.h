// A file's entropy decoding in an arena, as batch_builder.h describes it to a GPU: kernels of one file, whose memory is
// watched.
//
//   // a McuRunPlanner or ScanPlanner that has planned the reader's file
//   EntropyArena arena(planner, reader);
//   const uint64_t more = arena.memory.add(bytes);  // what else the kernels need
//   arena.fill(planner);
//   ... kernels, of arena.part ...
//   CHECK(arena.memory.gaps_are_whole());
//   if (arena.good()) CHECK(arena.has_coefficients_of(reader));
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/zigzag.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/coefficient_reader.h"
#include "tests/decode/jpeg_files.h"
#include "tests/gpu/arena.h"

namespace penstock_test {

// The reader at a crop anywhere in a file of `spec`; false where its header, or what the reader looks at, was damaged.
inline bool open_at_any_crop(std::mt19937& random, std::span<const std::byte> file, const JpegSpec& spec,
                             penstock::CoefficientReader& reader) {
  penstock::ImageHeader header;
  if (!penstock::read_header(file, {}, header, {}).ok()) return false;
  const int x = draw(random, 0, spec.width - 1);
  const int y = draw(random, 0, spec.height - 1);
  const penstock::Box box{x, y, draw(random, 1, spec.width - x), draw(random, 1, spec.height - y)};
  return reader.open(file, header, box, 100);
}

struct EntropyArena {
  template <class Planner>
  EntropyArena(const Planner& planned, const penstock::CoefficientReader& reader) {
    using namespace penstock;
    const JpegFrame& frame = reader.frame();
    part.bytes = static_cast<uint32_t>(planned.bytes());
    part.bytes_at = memory.add(part.bytes);
    for (size_t i = 0; i < planned.tables().codes().size(); ++i) table_at.push_back(memory.add(sizeof(CodeTable)));
    part.status_at = memory.add(sizeof(uint32_t));
    coefficients_at = memory.add(reader.bytes());
    part.mcu_columns = static_cast<uint32_t>(frame.mcu_columns);
    part.restart_interval = static_cast<uint32_t>(frame.restart_interval);
    part.mcu_blocks = static_cast<uint32_t>(planned.tables().blocks());
    planned.tables().write_mcu_blocks(table_at, part.mcu_block);
    for (int c = 0; c < frame.components; ++c) {
      const CoefficientReader::Blocks& blocks = reader.blocks(c);
      part.h[c] = frame.component[static_cast<size_t>(c)].h;
      part.v[c] = frame.component[static_cast<size_t>(c)].v;
      part.coefficients[c] = {coefficients_at + blocks.at * sizeof(int16_t),
                              blocks.row_stride * sizeof(int16_t),
                              blocks.first_column,
                              blocks.first_row,
                              blocks.first_column + blocks.columns,
                              blocks.first_row + blocks.rows};
    }
    for (size_t k = 0; k < 64; ++k) part.places[k] = static_cast<uint8_t>(tile_offset(kZigzagOrder[k]));
  }

  template <class Planner>
  void fill(const Planner& planned) {
    memory.make();
    planned.copy_bytes(reinterpret_cast<std::byte*>(memory.data() + part.bytes_at));
    for (size_t i = 0; i < table_at.size(); ++i) {
      std::memcpy(memory.data() + table_at[i], &planned.tables().codes()[i]->codes.table(),
                  sizeof(penstock::CodeTable));
    }
    std::memset(memory.data() + part.status_at, 0, sizeof(uint32_t));
  }

  bool good() { return *reinterpret_cast<const uint32_t*>(memory.data() + part.status_at) == 0; }

  // Those that the CPU finds without an index; it must not refuse the file.
  bool has_coefficients_of(penstock::CoefficientReader& reader) {
    using namespace penstock;
    std::vector<int16_t> wanted(reader.bytes() / sizeof(int16_t));
    if (!reader.read(nullptr, wanted.data())) return false;
    const auto* const found = reinterpret_cast<const int16_t*>(memory.data() + coefficients_at);
    for (int c = 0; c < reader.frame().components; ++c) {
      const CoefficientReader::Blocks& blocks = reader.blocks(c);
      for (int row = 0; row < blocks.rows; ++row) {
        for (int column = 0; column < blocks.columns; ++column) {
          const size_t at =
              blocks.at + static_cast<size_t>(row) * blocks.row_stride + tile_block_begin(static_cast<size_t>(column));
          for (size_t r = 0; r < 8; ++r) {
            const size_t place = at + tile_offset(8 * r);
            if (std::memcmp(found + place, wanted.data() + place, 8 * sizeof(int16_t)) != 0) return false;
          }
        }
      }
    }
    return true;
  }

  Arena memory;
  penstock::EntropyPart part;
  std::vector<uint64_t> table_at;
  uint64_t coefficients_at = 0;
};

}  // namespace penstock_test
