// Entropy decoding of baseline scans in lanes: many runs of MCUs at once, each in a lane of its own. With AVX-512
// these are the sixteen of a vector, with AVX2 those of two (entropy_lanes_avx2.h). Other CPUs have no lanes, and decode
// by entropy.h.
//
//   struct Feeder : LaneFeeder { bool feed(size_t lane, const LaneEnd* end, LaneUnit& unit) override; } feeder;
//   // asks for lane_shape().count runs of MCUs at first
//   decode_lanes(tables, layout, bytes, coefficients, feeder);
//
// A lane takes a run of MCUs (a LaneUnit: where its first bit is, how many blocks), decodes it to its end and asks the
//   feeder for another; the call returns when every lane was told that there is none. So lanes stay busy, whatever the
//   lengths of the runs of MCUs.
// One step of a lane, without branches: the tables of the block at hand by its number within the MCU; an entry by the
//   next `kLookupBits`; value, position, bits and block by arithmetic under masks; one store of two neighbouring
//   coefficients. Coefficients are stored in zigzag order, as stores of two then never touch what another step has
//   written. Some steps are made from 57 bits, then the bits are fetched anew.
// Output: blocks of 64 int16 in zigzag order, one after the other in the scan's order; place must be zero beforehand,
//   and one block more than the run of MCUs has must be writable: with zeros, unless the run of MCUs fails. DC values
//   stay differences.
// Failure: LaneEnd says so where a run of MCUs went past its last bit, met a code that does not exist, or led past a
//   block's end. What entropy.h calls "not supported" is among these, and some that it takes, so whoever meets them
//   decodes by entropy.h or by the library.
// Safety: the bits are untrusted: nothing is read beyond `kLanePadding` bytes after a run's last bit, nothing
//   written outside its blocks and the one behind them. The feeder sees to it that `bytes` holds that much.
// Source of the method: decoding interleaved streams in vector lanes by gathering table entries, as known from entropy
//   coders made for it (F. Giesen, "Interleaved entropy coders", arXiv 1402.3392); here the streams are runs of MCUs
//   between restart points of an ordinary file.
// Thread-safety: free functions; the feeder is called from the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/jpeg/lane_tables.h"
#include "runtime/decode/jpeg/stuffing.h"

namespace penstock {

inline constexpr size_t kLanePadding = 32;
inline constexpr size_t kMostLanes = 16;  // on any CPU
inline constexpr uint32_t kBlockBytes = 64 * sizeof(int16_t);

struct LaneUnit {
  uint32_t bit = 0;       // of `bytes`: the first of the run of MCUs, at an MCU's beginning
  uint32_t end_bit = 0;   // none of these or later ones belong to the run of MCUs
  uint32_t blocks = 0;    // at least 1
  uint32_t out_byte = 0;  // of `coefficients`: where the first block goes; a multiple of 4
};

// Where a lane stands: the next bit; the block at hand (as LaneUnit::out_byte); twice the number of its next
// coefficient; four times the block's number within the MCU.
struct LanePlace {
  uint32_t bit = 0;
  uint32_t block = 0;
  uint32_t next = 0;
  uint32_t mcu_block = 0;
};

struct LaneEnd {
  enum class Why : uint8_t {
    all_blocks,  // and within its bits
    past_end,    // of its bits
    failed       // on what is not a code, or too many coefficients; the place is where that was noticed
  };
  Why why = Why::failed;
  LanePlace place;

  bool fine() const noexcept { return why == Why::all_blocks; }
};

// Notes the lanes' places before every fetch of bits, as far as there is room.
class LaneLog {
 public:
  // `lanes`: as many as decode_lanes() has.
  LaneLog(size_t entries, size_t lanes) : lanes_(lanes), words_(2 * lanes * entries), room_(entries) {}

  // Room for `entries` at most, of those that were asked for.
  void clear(size_t entries) noexcept {
    used_ = 0;
    room_ = entries;
  }
  size_t size() const noexcept { return used_; }
  LanePlace at(size_t entry, size_t lane) const noexcept {
    const uint32_t* const words = words_.data() + 2 * lanes_ * entry;
    const uint32_t rest = words[lanes_ + lane];
    return {words[lane], rest & 0x00FFFF80, rest & 127, rest >> 24 << 2};
  }

  // For decode_lanes(): place for every lane's bit, then as many of the rest, block | next | mcu_block / 4 << 24;
  // nullptr: full.
  uint32_t* add() noexcept { return used_ < room_ ? words_.data() + 2 * lanes_ * used_++ : nullptr; }

 private:
  size_t lanes_ = 0;
  std::vector<uint32_t> words_;
  size_t room_ = 0;
  size_t used_ = 0;
};

class LaneFeeder {
 public:
  // `end`: how the lane's run of MCUs ended; nullptr: it had none. False: no more work for this lane.
  virtual bool feed(size_t lane, const LaneEnd* end, LaneUnit& unit) = 0;

 protected:
  ~LaneFeeder() = default;
};

// What decode_lanes() is on this CPU.
struct LaneShape {
  size_t count = 0;  // of lanes, kMostLanes at most; 0: there are none, and it must not be called
  size_t lookups_per_fetch = 1;
  const char* vectors = nullptr;  // whose lanes they are
};
LaneShape lane_shape();

// No block lies in the first 256 bytes of `coefficients`.
inline constexpr size_t kLaneScratchBytes = 256;
// With a log, blocks lie below 16 MB of `coefficients`, at multiples of 128.
void decode_lanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                  LaneFeeder& feeder, LaneLog* log = nullptr);

// unstuff() as far as vectors go: up to a marker or the last bytes, which are left to it.
Unstuffed unstuff_in_vectors(const uint8_t* in, const uint8_t* in_end, uint8_t* out, const uint8_t* out_end);

// Blocks in zigzag order to tiles (coefficient_tiles.h): four a tile, `count` tiles.
void zigzag_blocks_to_tiles(const int16_t* const* blocks, size_t count, int16_t* tiles);

}  // namespace penstock
