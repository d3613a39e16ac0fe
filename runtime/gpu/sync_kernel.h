// Huffman decoding of a scan without an index, by many threads of a GPU; host and GPU compile the same.
//
//   sync_subsequences(memory, part, unit);    // round after round: where each subsequence of the bytes starts
//   sum_subsequences(memory, part, unit);     // what a group of them has
//   write_blocks(memory, part, unit);         // once more from the right start: coefficients and status
//
// How: the scan's bytes are cut into subsequences of equal length. What a decoder finds in one is a function F of its
//   bytes and of the place where it starts: bit, block of the MCU, coefficient of the block; predictions are sums,
//   and added up behind. The first round starts each at its first bit as if an MCU began there; in each one after,
//   one starts again where the one before ended, if that is elsewhere. Huffman codes find their way, so after few
//   rounds nothing changes.
// Why it is right: the record of each subsequence i is always F(start i), and the first start is the scan's own. So
//   where start i = end i-1 for all i up to some n, all of them start where decoding in order would get to, by
//   induction, and the first n subsequences have what it would have found. The last kernel checks exactly that, and
//   relies on no number of rounds: a scan whose starts do not agree yet, or never do, has a bad status, and the CPU
//   makes the picture.
// A thread writes whole blocks: a block that begins in one subsequence and ends in another is written by the first
//   one's thread; the other one's skips the rest of it. So blocks need no zeros beforehand: entropy_block() writes all
//   of each. (If subsequences were widened to runs of whole MCUs, the kernel for an index could decode them; but an MCU
//   has more bytes than a subsequence, and half of the threads would have no work.)
// Rounds: in a round after the first only every second group of subsequences is looked at, the others in the next
//   one; so a thread reads what nobody writes, and launches are all there is to wait for.
// Status: not good is what is not good in entropy_kernel.h, up to the last MCU that the CPU would read, and fewer than
//   24 bytes behind it without a marker: libjpeg reads ahead. That is stricter than decode/jpeg/entropy.h, and never
//   less strict: a picture without a bad status has the coefficients that the CPU would have found. Bytes behind do not
//   matter.
// Source: A. Weissenberger and B. Schmidt, "Accelerating JPEG Decompression on GPUs" (arXiv 2111.09219). Semantics:
//   jdhuff.c of libjpeg-turbo 2.1.5.
// Safety: bytes are untrusted. A thread reads within the part's bytes, writes within its records and the blocks that
//   are wanted, and ends after as many codes as its bytes have bits.
// Thread-safety: units of a launch write different records or blocks, but where the status is not good.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/entropy_kernel.h"

namespace penstock {

PENSTOCK_HOST_DEVICE inline bool same_place(const ScanPlace& a, const ScanPlace& b) {
  return a.byte == b.byte && a.bit == b.bit && a.mcu_block == b.mcu_block && a.next == b.next && a.stopped == b.stopped;
}

// Whether the next bit stands before `end`.
PENSTOCK_HOST_DEVICE inline bool stands_before(const ScanBits& scan, const uint8_t* end) {
  uint32_t bit = 0;
  return scan.at < end || scan.position(bit) < end;
}

PENSTOCK_HOST_DEVICE inline ScanBits scan_from(const ScanPlace& place, const uint8_t* bytes, uint32_t count) {
  ScanBits scan(bytes + place.byte, bytes + count);
  scan.refill();
  scan.take(static_cast<int>(place.bit));
  return scan;
}

PENSTOCK_HOST_DEVICE inline const uint8_t* subsequence_end(const uint8_t* bytes, uint32_t count, uint32_t number,
                                                           uint32_t subsequence_bytes) {
  const uint64_t end = (uint64_t{number} + 1) * subsequence_bytes;
  return bytes + (end < count ? end : count);
}

// F of the explanation above.
PENSTOCK_HOST_DEVICE inline void read_subsequence(const uint8_t* memory, const SyncPart& part, uint32_t number,
                                                  const ScanPlace& start, GpuSubsequence& record) {
  const uint8_t* const bytes = memory + part.bytes_at;
  const uint8_t* const end = subsequence_end(bytes, part.bytes, number, part.subsequence_bytes);
  ScanBits scan = scan_from(start, bytes, part.bytes);
  uint32_t mcu_block = start.mcu_block;
  uint32_t next = start.next;
  uint32_t blocks = 0;
  uint32_t dc[3] = {};
  bool stopped = scan.count < 0;
  while (!stopped && stands_before(scan, end)) {
    const McuBlock& block = part.mcu_block[mcu_block];
    int value = 0;
    if (next == 0) {
      int run = 0;
      int size = 0;
      stopped = !next_value(code_table(memory, block.dc_at), true, scan, run, size, value) || scan.count < 0;
      if (stopped) break;
      dc[block.component] += static_cast<uint32_t>(value);
      next = 1;
      continue;
    }
    stopped = !next_coefficient(code_table(memory, block.ac_at), scan, next, value) || scan.count < 0;
    if (stopped || next < 64) continue;
    next = 0;
    mcu_block = mcu_block + 1 == part.mcu_blocks ? 0 : mcu_block + 1;
    ++blocks;
  }
  ScanPlace place;
  place.stopped = 1;
  if (!stopped) {
    uint32_t bit = 0;
    place.byte = static_cast<uint32_t>(scan.position(bit) - bytes);
    place.bit = bit;
    place.mcu_block = mcu_block;
    place.next = next;
    place.stopped = 0;
  }
  record.start = start;
  record.end = place;
  record.blocks = blocks;
  for (int c = 0; c < 3; ++c) record.dc[c] = dc[c];
}

// As if an MCU began with the subsequence.
PENSTOCK_HOST_DEVICE inline ScanPlace assumed_start(const uint8_t* bytes, uint32_t byte) {
  ScanPlace place;
  place.byte = byte > 0 && bytes[byte] == 0 && bytes[byte - 1] == 0xFF ? byte + 1 : byte;
  return place;
}

PENSTOCK_HOST_DEVICE inline void sync_subsequences(uint8_t* memory, const SyncPart& part, uint32_t unit) {
  auto* const records = reinterpret_cast<GpuSubsequence*>(memory + part.subsequences_at);
  uint32_t number = (part.first + unit * part.step) * part.group;
  for (uint32_t left = part.group; left > 0 && number < part.subsequences; --left, ++number) {
    ScanPlace start;
    if (part.assumed != 0) {
      start = assumed_start(memory + part.bytes_at, number * part.subsequence_bytes);
    } else {
      if (number == 0) continue;
      start = records[number - 1].end;
      // One that has stopped is wrong, or will be found out; behind it nothing is known.
      if (start.stopped != 0 || same_place(start, records[number].start)) continue;
    }
    read_subsequence(memory, part, number, start, records[number]);
  }
}

PENSTOCK_HOST_DEVICE inline void sum_subsequences(uint8_t* memory, const SumPart& part, uint32_t unit) {
  const auto* const records = reinterpret_cast<const GpuSubsequence*>(memory + part.subsequences_at);
  const uint32_t first = unit * kSubsequencesOfSum;
  GpuSubsequenceSum sum;
  for (uint32_t i = first; i < first + kSubsequencesOfSum && i < part.subsequences; ++i) {
    sum.blocks += records[i].blocks;
    for (int c = 0; c < 3; ++c) sum.dc[c] += records[i].dc[c];
  }
  reinterpret_cast<GpuSubsequenceSum*>(memory + part.to_at)[unit] = sum;
}

// The sum over all subsequences before this one.
PENSTOCK_HOST_DEVICE inline GpuSubsequenceSum sum_before(const uint8_t* memory, const WritePart& part, uint32_t unit) {
  const auto* const records = reinterpret_cast<const GpuSubsequence*>(memory + part.subsequences_at);
  const auto* const sums = reinterpret_cast<const GpuSubsequenceSum*>(memory + part.sums_at);
  const uint32_t groups = unit / kSubsequencesOfSum;
  GpuSubsequenceSum before;
  for (uint32_t g = 0; g < groups; ++g) {
    before.blocks += sums[g].blocks;
    for (int c = 0; c < 3; ++c) before.dc[c] += sums[g].dc[c];
  }
  for (uint32_t i = groups * kSubsequencesOfSum; i < unit; ++i) {
    before.blocks += records[i].blocks;
    for (int c = 0; c < 3; ++c) before.dc[c] += records[i].dc[c];
  }
  return before;
}

// Whether none of the blocks is the crop's.
PENSTOCK_HOST_DEVICE inline bool none_wanted(const WritePart& part, uint32_t first_block, uint32_t last_block) {
  const uint32_t first = first_block / part.entropy.mcu_blocks;
  const uint32_t last = last_block / part.entropy.mcu_blocks;
  const auto first_row = static_cast<int32_t>(first / part.entropy.mcu_columns);
  const auto last_row = static_cast<int32_t>(last / part.entropy.mcu_columns);
  if (last_row < part.first_row) return true;
  return first_row == last_row && (static_cast<int32_t>(last % part.entropy.mcu_columns) < part.first_column ||
                                   static_cast<int32_t>(first % part.entropy.mcu_columns) >= part.end_column);
}

// The blocks that begin in the subsequence, the first of which is number before.blocks, or the one after where that has
// begun before.
PENSTOCK_HOST_DEVICE inline bool write_subsequence(uint8_t* memory, const WritePart& part, uint32_t unit,
                                                   const ScanPlace& start, const GpuSubsequenceSum& before) {
  const EntropyPart& entropy = part.entropy;
  const uint8_t* const bytes = memory + entropy.bytes_at;
  const uint8_t* const end = subsequence_end(bytes, entropy.bytes, unit, part.subsequence_bytes);
  ScanBits scan = scan_from(start, bytes, entropy.bytes);
  int32_t dc[3];
  for (int c = 0; c < 3; ++c) dc[c] = static_cast<int32_t>(before.dc[c]);
  uint32_t block = before.blocks;
  uint32_t mcu_block = block % entropy.mcu_blocks;
  if (start.next > 0) {
    uint32_t next = start.next;
    const CodeTable& codes = code_table(memory, entropy.mcu_block[mcu_block].ac_at);
    for (int value = 0; next < 64;) {
      if (!next_coefficient(codes, scan, next, value)) return false;
    }
    ++block;
    mcu_block = mcu_block + 1 == entropy.mcu_blocks ? 0 : mcu_block + 1;
  }
  auto row = static_cast<int32_t>(block / entropy.mcu_blocks / entropy.mcu_columns);
  auto column = static_cast<int32_t>(block / entropy.mcu_blocks % entropy.mcu_columns);
  while (block < part.blocks && scan.count >= 0 && stands_before(scan, end)) {
    const McuBlock& place = entropy.mcu_block[mcu_block];
    if (!entropy_block(code_table(memory, place.dc_at), code_table(memory, place.ac_at), entropy.places, scan,
                       dc[place.component], block_place(memory, entropy, place, row, column))) {
      return false;
    }
    ++block;
    if (++mcu_block < entropy.mcu_blocks) continue;
    mcu_block = 0;
    if (static_cast<uint32_t>(++column) < entropy.mcu_columns) continue;
    column = 0;
    ++row;
  }
  return scan.count >= 0 && (block < part.blocks || ends_without_warning(scan.at, bytes + entropy.bytes));
}

PENSTOCK_HOST_DEVICE inline void write_blocks(uint8_t* memory, const WritePart& part, uint32_t unit) {
  const auto* const records = reinterpret_cast<const GpuSubsequence*>(memory + part.subsequences_at);
  const GpuSubsequence& own = records[unit];
  const GpuSubsequenceSum before = sum_before(memory, part, unit);
  if (before.blocks >= part.blocks) return;
  const uint32_t reached = before.blocks + own.blocks;
  const bool linked = unit == 0 || same_place(records[unit - 1].end, own.start);
  bool good = linked && (unit + 1 < part.units || reached >= part.blocks);
  // The block that is not ended yet may be its own, too.
  if (good && (reached >= part.blocks || !none_wanted(part, before.blocks, reached))) {
    good = write_subsequence(memory, part, unit, own.start, before);
  }
  if (!good) *reinterpret_cast<uint32_t*>(memory + part.entropy.status_at) = 1;
}

}  // namespace penstock
