// Huffman decoding of one run of MCUs between two restart points, by one thread of a GPU; host and GPU compile the
// same. Restart points are an index's, or restart markers. Without any: sync_kernel.h.
//
//   entropy_mcu_run(memory, part, unit);      // memory: of the batch (batch_layout.h); unit < part.units
//
// Writes whole every wanted block of the run's MCUs, and part's status where the run of MCUs is not good: a code that
//   does not exist, a run that leaves its block, bits beyond the run's end, or an end elsewhere than where the index
//   says or a restart marker stands. Those are the statuses of decode/jpeg/indexed_rows.h and, at restart markers,
//   whose order and number the planner has seen to (mcu_run_planner.h), of decode/jpeg/entropy.h; so a picture without
//   one has the coefficients that the CPU would have found; with one, the CPU makes it and decides.
// Semantics: jdhuff.c of libjpeg-turbo 2.1.5, as in decode/jpeg/entropy.h.
// Safety: bytes and index are untrusted. A thread reads within part.bytes, writes within the blocks that are wanted,
//   and ends after as many codes as its MCUs can have.
// Thread-safety: different runs of MCUs write different blocks; any number of them write the same value as status.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"
#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/huffman_table.h"
#include "runtime/gpu/batch_layout.h"

namespace penstock {

// What one thread knows of the scan: the next bit is the highest of `bits`, `count` of them are the scan's. Less than
// none means that some were taken which are not there.
struct ScanBits {
  const uint8_t* begin;
  const uint8_t* at;  // behind the last byte in `bits`, and behind the zero that followed an 0xFF
  const uint8_t* end;
  uint64_t bits = 0;
  int count = 0;

  PENSTOCK_HOST_DEVICE ScanBits(const uint8_t* from, const uint8_t* to) : begin(from), at(from), end(to) {}

  // 57 or more, while there are as many before a marker or the end.
  PENSTOCK_HOST_DEVICE void refill() {
    while (count >= 0 && count <= 56 && at < end) {
      const unsigned byte = *at;
      if (byte == 0xFF && (end - at < 2 || at[1] != 0)) return;
      bits |= static_cast<uint64_t>(byte) << (56 - count);
      count += 8;
      at += byte == 0xFF ? 2 : 1;
    }
  }
  PENSTOCK_HOST_DEVICE void take(int n) {
    bits <<= n;
    count -= n;
  }
  // The byte that holds the next bit, and that bit's number.
  PENSTOCK_HOST_DEVICE const uint8_t* position(uint32_t& bit) const {
    const uint8_t* byte = at;
    const int back = (count + 7) / 8;
    for (int i = 0; i < back; ++i) {
      --byte;
      if (byte > begin && *byte == 0 && byte[-1] == 0xFF) --byte;
    }
    bit = static_cast<uint32_t>(8 * back - count);
    return byte;
  }
};

// A code and the bits behind it: false where there is none. `run`: the symbol's upper half.
PENSTOCK_HOST_DEVICE inline bool next_value(const CodeTable& table, bool dc, ScanBits& scan, int& run, int& size,
                                            int& value) {
  if (scan.count < 32) scan.refill();
  int symbol = 0;
  const int length = table.symbol(scan.bits, symbol);
  if (length == 0) return false;
  scan.take(length);
  run = dc ? 0 : symbol >> 4;
  size = dc ? symbol : symbol & 15;
  value = 0;
  if (size > 0) {
    value = extend_value(static_cast<unsigned>(scan.bits >> (64 - size)), size);
    scan.take(size);
  }
  return true;
}

// One code of a block's coefficients behind the first, of which number `next` is to come: 64 where the block has
// ended, else coefficient next - 1 has this value, and where it is 0 nothing was said but zeros.
PENSTOCK_HOST_DEVICE inline bool next_coefficient(const CodeTable& table, ScanBits& scan, uint32_t& next, int& value) {
  int run = 0;
  int size = 0;
  if (!next_value(table, false, scan, run, size, value)) return false;
  if (size == 0) {
    next = run == 15 ? next + 16 : 64;
    // libjpeg-turbo goes on, but no encoder ends a block by sixteen zeros.
    return run != 15 || next < 64;
  }
  next += static_cast<uint32_t>(run) + 1;
  return next <= 64;  // libjpeg-turbo goes on here as well
}

// `to`: the block's place in its tile, or null where it is not wanted. `places`: EntropyPart's.
PENSTOCK_HOST_DEVICE inline bool entropy_block(const CodeTable& dc, const CodeTable& ac, const uint8_t* places,
                                               ScanBits& scan, int32_t& prediction, int16_t* to) {
  if (to != nullptr) {
    for (size_t row = 0; row < 8; ++row) *reinterpret_cast<CoefficientRow*>(to + tile_offset(8 * row)) = {};
  }
  int run = 0;
  int size = 0;
  int value = 0;
  if (!next_value(dc, true, scan, run, size, value)) return false;
  prediction = static_cast<int32_t>(static_cast<uint32_t>(prediction) + static_cast<uint32_t>(value));
  if (to != nullptr) to[0] = static_cast<int16_t>(prediction);
  for (uint32_t next = 1; next < 64;) {
    if (!next_coefficient(ac, scan, next, value)) return false;
    if (to != nullptr && value != 0) to[places[next - 1]] = static_cast<int16_t>(value);
  }
  return scan.count >= 0;
}

// Between here and the next restart point: libjpeg-turbo would meet it.
PENSTOCK_HOST_DEVICE inline bool no_marker(const uint8_t* at, const uint8_t* end, const uint8_t* limit) {
  for (; at < end; ++at) {
    if (*at != 0xFF) continue;
    if (limit - at < 2 || at[1] != 0) return false;
    ++at;
  }
  return true;
}

// libjpeg reads ahead, and the file's end met there is an error of its own
// (EntropyDecoder::library_would_stop_without_warning()).
PENSTOCK_HOST_DEVICE inline bool ends_without_warning(const uint8_t* at, const uint8_t* end) {
  for (int left = 24; left > 0; --left, ++at) {
    if (at >= end) return false;
    if (*at != 0xFF) continue;
    if (end - at < 2 || at[1] == 0xFF) return false;
    if (at[1] != 0) return true;
    ++at;
  }
  return true;
}

// Over the marker between two restart intervals, where nothing but the bits that fill a byte stands before it.
PENSTOCK_HOST_DEVICE inline bool pass_restart(ScanBits& scan, int32_t* dc) {
  if (scan.count >= 8 || scan.end - scan.at < 2 || scan.at[0] != 0xFF || scan.at[1] == 0) return false;
  scan = ScanBits(scan.at + 2, scan.end);
  for (int c = 0; c < 3; ++c) dc[c] = 0;
  return true;
}

PENSTOCK_HOST_DEVICE inline bool ends_where_it_should(const GpuMcuRun& mcu_run, const uint8_t* bytes,
                                                      const ScanBits& scan, const int32_t* dc) {
  if (mcu_run.end == GpuMcuRun::End::marker) return scan.count < 8 && scan.at == bytes + mcu_run.end_byte;
  if (mcu_run.end == GpuMcuRun::End::no_warnings) return ends_without_warning(scan.at, scan.end);
  uint32_t bit = 0;
  const uint8_t* const byte = scan.position(bit);
  const uint8_t* const end = bytes + mcu_run.end_byte;
  if (mcu_run.end == GpuMcuRun::End::early) {
    return (byte < end || (byte == end && bit <= mcu_run.end_bit)) && no_marker(scan.at, end, scan.end);
  }
  if (byte != end || bit != mcu_run.end_bit) return false;
  for (int c = 0; c < 3; ++c) {
    if (dc[c] != mcu_run.end_dc[c]) return false;
  }
  return true;
}

// Where this block of MCU (column, row) goes, or null where the crop does not need it.
PENSTOCK_HOST_DEVICE inline int16_t* block_place(uint8_t* memory, const EntropyPart& part, const McuBlock& mcu_block,
                                                 int32_t row, int32_t column) {
  const GpuCoefficients& place = part.coefficients[mcu_block.component];
  const int32_t across = column * part.h[mcu_block.component] + static_cast<int32_t>(mcu_block.across);
  const int32_t down = row * part.v[mcu_block.component] + static_cast<int32_t>(mcu_block.down);
  if (across < place.first_column || across >= place.end_column || down < place.first_row || down >= place.end_row) {
    return nullptr;
  }
  return reinterpret_cast<int16_t*>(memory + place.at +
                                    static_cast<uint64_t>(down - place.first_row) * place.row_bytes) +
         tile_block_begin(static_cast<size_t>(across - place.first_column));
}

PENSTOCK_HOST_DEVICE inline const CodeTable& code_table(const uint8_t* memory, uint64_t at) {
  return *reinterpret_cast<const CodeTable*>(memory + at);
}

PENSTOCK_HOST_DEVICE inline bool read_mcu_run(uint8_t* memory, const EntropyPart& part, const GpuMcuRun& mcu_run) {
  const uint8_t* const bytes = memory + part.bytes_at;
  ScanBits scan(bytes + mcu_run.byte, bytes + part.bytes);
  scan.refill();
  scan.take(static_cast<int>(mcu_run.bit));
  int32_t dc[3] = {mcu_run.dc[0], mcu_run.dc[1], mcu_run.dc[2]};
  for (uint32_t n = 0; n < mcu_run.mcus; ++n) {
    const bool restarts = n > 0 && part.restart_interval != 0 && n % part.restart_interval == 0;
    if (restarts && !pass_restart(scan, dc)) return false;
    const auto row = static_cast<int32_t>((mcu_run.first_mcu + n) / part.mcu_columns);
    const auto column = static_cast<int32_t>((mcu_run.first_mcu + n) % part.mcu_columns);
    for (uint32_t t = 0; t < part.mcu_blocks; ++t) {
      const McuBlock& mcu_block = part.mcu_block[t];
      int16_t* const to = block_place(memory, part, mcu_block, row, column);
      const CodeTable& dc_codes = code_table(memory, mcu_block.dc_at);
      const CodeTable& ac_codes = code_table(memory, mcu_block.ac_at);
      if (!entropy_block(dc_codes, ac_codes, part.places, scan, dc[mcu_block.component], to)) return false;
    }
  }
  return ends_where_it_should(mcu_run, bytes, scan, dc);
}

PENSTOCK_HOST_DEVICE inline void entropy_mcu_run(uint8_t* memory, const EntropyPart& part, uint32_t unit) {
  const GpuMcuRun& mcu_run = reinterpret_cast<const GpuMcuRun*>(memory + part.mcu_runs_at)[unit];
  if (!read_mcu_run(memory, part, mcu_run)) *reinterpret_cast<uint32_t*>(memory + part.status_at) = 1;
}

}  // namespace penstock
