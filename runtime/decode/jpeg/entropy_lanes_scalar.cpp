#include "runtime/decode/jpeg/entropy_lanes_scalar.h"

// Nothing here is a vector: what the targets differ in are shifts that leave the flags alone (BMI2).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/decode/jpeg/entropy_lanes_scalar.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per target
#include <hwy/highway.h>

#include <array>
#include <bit>
#include <cstring>

#include "runtime/decode/jpeg/lane_step.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::scalar_lane_targets {
namespace HWY_NAMESPACE {

static_assert(kScalarLookupsPerFetch * LaneTables::kMostBits <= 57, "what a fetch gives");
constexpr uint32_t kBlockBytes = 128;
constexpr int kNextShift = 24;
static_assert(kScalarLanes == 4);

// What a lane looks up next: the DC difference of one of an MCU's blocks, or its coefficients.
struct Schedule {
  const uint64_t* table = nullptr;
  // by whether the block has ended: an index, where a branch would be mispredicted
  std::array<const Schedule*, 2> then{};
  uint32_t block = 0;
};

// What a lane's lookups need, for the compiler to keep in registers.
struct Lane {
  uint64_t bits = 0;  // the next ones, left-aligned
  const Schedule* mcu_block = nullptr;
  uint8_t* out = nullptr;  // where the block at hand goes
  uint32_t next = 0;       // in the highest byte: twice the number of the next coefficient, 0 to 126
  uint32_t used = 0;       // in the lowest six bits: bits taken since the fetch
  uint32_t bit = 0;        // where that was
  uint32_t end_bit = 0;
  uint8_t* end = nullptr;  // of the blocks
};

class Run {
 public:
  Run(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
      LaneFeeder& feeder, LaneLog* log)
      : tables_(tables), layout_(layout), bytes_(bytes), coefficients_(coefficients), feeder_(feeder), log_(log) {
    for (uint32_t b = 0; b < layout.blocks; ++b) {
      const uint32_t next = b + 1 == layout.blocks ? 0 : b + 1;
      dc_schedule_[b] = {table_of(layout.dc_tables, b), {&ac_schedule_[b], &dc_schedule_[next]}, b};
      ac_schedule_[b] = {table_of(layout.ac_tables, b), {&ac_schedule_[b], &dc_schedule_[next]}, b};
    }
    idle_ = {tables.entries(), {&idle_, &idle_}};
  }

  // Lanes by name and not in an array: what is indexed is not kept in registers.
  void operator()() {
    Lane a = feed(0, nullptr);
    Lane b = feed(1, nullptr);
    Lane c = feed(2, nullptr);
    Lane d = feed(3, nullptr);
    while (busy_ > 0) {
      if (log_ != nullptr) note(a, b, c, d);
      fetch(a);
      fetch(b);
      fetch(c);
      fetch(d);
      HWY_UNROLL(kScalarLookupsPerFetch)
      for (int n = 0; n < kScalarLookupsPerFetch; ++n) {
        look_up(0, a);
        look_up(1, b);
        look_up(2, c);
        look_up(3, d);
      }
      count(0, a);
      count(1, b);
      count(2, c);
      count(3, d);
    }
  }

 private:
  const uint64_t* table_of(uint32_t numbers, uint32_t block) const {
    return tables_.entries() + (numbers >> (4 * block) & 15) * LaneTables::kLookupSize;
  }
  uint8_t* begin() const { return reinterpret_cast<uint8_t*>(coefficients_); }
  LanePlace place_of(const Lane& lane) const {
    if (lane.mcu_block == &idle_) return {};
    return {lane.bit + (lane.used & 63), static_cast<uint32_t>(lane.out - begin()), lane.next >> kNextShift,
            4 * lane.mcu_block->block};
  }
  HWY_INLINE void fetch(Lane& lane) const {
    lane.bits = lane_bits(bytes_, lane.bit);
    lane.used = 0;
  }
  void go_to(const LanePlace& place, Lane& lane) const {
    lane.bit = place.bit;
    lane.out = begin() + place.block;
    lane.next = place.next << kNextShift;
    lane.mcu_block = &(place.next == 0 ? dc_schedule_ : ac_schedule_)[place.mcu_block / 4];
    fetch(lane);
  }

  HWY_NOINLINE Lane feed(size_t number, const LaneEnd* end) {
    LaneUnit unit;
    if (end == nullptr) ++busy_;
    Lane lane;
    if (!feeder_.feed(number, end, unit)) {
      --busy_;
      lane.mcu_block = &idle_;
      lane.out = nowhere_.data() + 2;
      lane.end = nowhere_.data() + nowhere_.size();
      lane.end_bit = ~0U;
      return lane;
    }
    go_to({unit.bit, unit.out_byte, 0, 0}, lane);
    lane.end = lane.out + size_t{unit.blocks} * kBlockBytes;
    lane.end_bit = unit.end_bit;
    return lane;
  }

  HWY_INLINE void note(const Lane& a, const Lane& b, const Lane& c, const Lane& d) {
    uint32_t* const to = log_->add();
    if (to == nullptr) {
      log_ = nullptr;
      return;
    }
    note(to, a);
    note(to + 1, b);
    note(to + 2, c);
    note(to + 3, d);
  }
  HWY_INLINE void note(uint32_t* to, const Lane& lane) const {
    const LanePlace place = place_of(lane);
    to[0] = place.bit;
    to[kScalarLanes] = place.block | place.next | place.mcu_block / 4 << kNextShift;
  }

  // What the tables do not hold, and pairs whose first ends the block.
  HWY_NOINLINE Lane step(size_t number, Lane lane) {
    LanePlace place = place_of(lane);
    const bool fine = lane_step(tables_, layout_, bytes_, coefficients_, place);
    go_to(place, lane);
    if (!fine || lane.out >= lane.end) return finish(number, lane, fine);
    return lane;
  }

  HWY_NOINLINE Lane finish(size_t number, Lane lane, bool fine) {
    LaneEnd end{LaneEnd::Why::all_blocks, place_of(lane)};
    if (end.place.bit > lane.end_bit) end.why = LaneEnd::Why::past_end;
    if (!fine) end.why = LaneEnd::Why::failed;
    return feed(number, &end);
  }

  // Past the block's end, and not by a single coefficient that is its last: what a second one is says another table.
  HWY_INLINE void look_up(size_t number, Lane& lane) {
    const uint64_t entry = lane.mcu_block->table[lane.bits >> (64 - LaneTables::kLookupBits)];
    const auto how = static_cast<uint32_t>(entry);
    const uint32_t first = std::rotl(how, 8) + lane.next;
    if (first >= (kBlockBytes << kNextShift | LaneTables::kPairEntry << 8)) [[unlikely]] {
      lane = step(number, lane);
      return;
    }
    auto values = static_cast<uint32_t>(entry >> 32);
    if ((how & LaneTables::kOpenEntry) != 0) [[unlikely]] {
      const auto raw = static_cast<uint32_t>(std::rotl(lane.bits, static_cast<int>(how & 31))) & values;
      values = (raw <= values >> 1 ? raw - values : raw) & 0xFFFF;
    }
    store_two(values, lane.out + (first >> kNextShift) - 2);
    lane.bits <<= how & 63;
    lane.used += how;
    const uint32_t all = how + lane.next;
    const uint32_t ended = all >> 31;
    lane.next = all & 0xFF000000 & (ended - 1);
    lane.out += size_t{ended} * kBlockBytes;
    lane.mcu_block = lane.mcu_block->then[ended];
    if (lane.out >= lane.end) [[unlikely]] {
      lane = finish(number, lane, true);
    }
  }

  HWY_INLINE void count(size_t number, Lane& lane) {
    lane.bit += lane.used & 63;
    lane.used = 0;
    if (lane.bit > lane.end_bit) [[unlikely]] {
      lane = finish(number, lane, true);
    }
  }

  const LaneTables& tables_;
  const LaneLayout& layout_;
  const uint8_t* bytes_;
  int16_t* coefficients_;
  LaneFeeder& feeder_;
  LaneLog* log_;
  size_t busy_ = 0;
  std::array<Schedule, 6> dc_schedule_{};
  std::array<Schedule, 6> ac_schedule_{};
  Schedule idle_;                      // by the table that takes nothing
  std::array<uint8_t, 16> nowhere_{};  // where idle lanes store
};

void DecodeScalarLanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                       LaneFeeder& feeder, LaneLog* log) {
  Run(tables, layout, bytes, coefficients, feeder, log)();
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::scalar_lane_targets
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {
namespace scalar_lane_targets {
HWY_EXPORT(DecodeScalarLanes);
}  // namespace scalar_lane_targets
using namespace scalar_lane_targets;  // for the dispatch macro alone

void decode_scalar_lanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes,
                         int16_t* coefficients, LaneFeeder& feeder, LaneLog* log) {
  HWY_DYNAMIC_DISPATCH(DecodeScalarLanes)(tables, layout, bytes, coefficients, feeder, log);
}

}  // namespace penstock
#endif
