#include "runtime/decode/jpeg/entropy.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/stuffing.h"
#include "runtime/decode/jpeg/zigzag.h"

#if defined(__GNUC__)
#define PENSTOCK_HOT_INLINE [[gnu::always_inline]] inline
#else
#define PENSTOCK_HOT_INLINE inline
#endif

namespace penstock {
namespace {

// Unstuffed bytes kept at a time. What one MCU may take at most, 6 blocks of 64 coefficients of 31 bits, must fit
// behind them, for MCUs that run into garbage; more than that is refilled before each MCU.
constexpr size_t kMcuRunBytes = 16384;
constexpr size_t kMcuBytes = 2048;

// Where coefficient number `next - 1` lies in a tile, for every value that `next` may have after an advance: the 64 of
// the block; then those that malformed runs lead to, which count as the last; then the end of the block, which goes to
// the DC's place, as that is written last.
constexpr std::array<uint8_t, 64 + HuffmanTable::kMaxAdvanceInPair> make_places() {
  std::array<uint8_t, 64 + HuffmanTable::kMaxAdvanceInPair> places{};
  for (size_t i = 0; i < places.size(); ++i) {
    const size_t k = i == 0 ? 0 : i - 1;
    places[i] = static_cast<uint8_t>(k < 80 ? tile_offset(kZigzagOrder[std::min<size_t>(k, 63)]) : 0);
  }
  return places;
}
constexpr auto kPlaces = make_places();
constexpr int kShift = 64 - HuffmanTable::kLookupBits;

}  // namespace

// At least 56 bits. Beyond the data's end these are old bytes; whoever uses them is found out afterwards.
PENSTOCK_HOT_INLINE void EntropyDecoder::BitState::refill() {
  uint64_t word;
  std::memcpy(&word, next, 8);
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
  bits |= word >> count;
  next += (63 - count) >> 3;
  count |= 56;
}

EntropyDecoder::EntropyDecoder() : bytes_(kMcuRunBytes + 2 * kMcuBytes + 64) {}

const HuffmanTable* EntropyDecoder::table_of(const HuffmanSpec& spec, HuffmanTable::Kind kind) {
  const size_t size = 16 + static_cast<size_t>(spec.values);
  ++clock_;
  CachedTable* oldest = nullptr;
  for (const auto& entry : cache_) {
    if (entry->kind == kind && entry->spec.size() == size && std::memcmp(entry->spec.data(), spec.bytes, size) == 0) {
      entry->used = clock_;
      return entry->valid ? &entry->table : nullptr;
    }
    if (oldest == nullptr || entry->used < oldest->used) oldest = entry.get();
  }
  if (cache_.size() < 12) oldest = cache_.emplace_back(std::make_unique<CachedTable>()).get();
  oldest->spec.assign(spec.bytes, spec.bytes + size);
  oldest->kind = kind;
  oldest->used = clock_;
  oldest->valid = oldest->table.build(spec, kind);
  return oldest->valid ? &oldest->table : nullptr;
}

bool EntropyDecoder::begin(EncodedView bytes, const JpegFrame& frame) {
  file_ = reinterpret_cast<const uint8_t*>(bytes.data());
  scan_begin_ = frame.scan_begin;
  raw_end_ = file_ + bytes.size();
  blocks_ = 0;
  for (int c = 0; c < frame.components; ++c) {
    const JpegComponent& component = frame.component[static_cast<size_t>(c)];
    const HuffmanTable* dc = table_of(frame.dc[static_cast<size_t>(component.dc_table)], HuffmanTable::Kind::dc);
    const HuffmanTable* ac = table_of(frame.ac[static_cast<size_t>(component.ac_table)], HuffmanTable::Kind::ac);
    if (dc == nullptr || ac == nullptr) return false;
    widths_[static_cast<size_t>(c)] = component.h;
    for (int down = 0; down < component.v; ++down) {
      for (int across = 0; across < component.h; ++across) plan_[blocks_++] = {dc, ac, c, across, down};
    }
  }
  mcu_columns_ = frame.mcu_columns;
  restart_interval_ = until_restart_ = frame.restart_interval;
  next_restart_ = 0;
  prediction_.fill(0);
  begin_bytes(file_ + scan_begin_);
  next_mcu_ = 0;
  mcus_ = int64_t{frame.mcu_columns} * frame.mcu_rows;
  return true;
}

// A segment's bytes from `raw` on; none of them is unstuffed yet.
void EntropyDecoder::begin_bytes(const uint8_t* raw) {
  raw_ = known_raw_ = raw;
  bytes_end_ = bytes_.data();
  known_ = bytes_.data();
  state_ = BitState{0, bytes_.data(), 0};
  segment_ended_ = false;
  marker_ = -1;
}

// So that `next` is the byte of the next bit, of which `count` tells how many are left: 0 or fewer than 8 were taken
// from the byte before.
void EntropyDecoder::give_back_bits() {
  state_.next -= state_.count >> 3;
  state_.count &= 7;
  state_.bits = state_.count == 0 ? 0 : state_.bits >> (64 - state_.count) << (64 - state_.count);
}

// Another run of unstuffed bytes, behind those not used yet, which move to the front. Old data from beyond the end
// cannot be among the bits at hand: while a segment goes on, every MCU begins with more bytes than it can take.
void EntropyDecoder::more_bytes() {
  give_back_bits();
  BitState& state = state_;
  // One byte more than is unread stays: the next bit may be in it.
  const uint8_t* const from = state.count > 0 ? state.next - 1 : state.next;
  known_raw_ += from - known_ + std::count(known_, from, 0xFF);
  known_ = bytes_.data();
  const size_t kept = from < bytes_end_ ? static_cast<size_t>(bytes_end_ - from) : 0;
  std::memmove(bytes_.data(), from, kept);
  state.next = bytes_.data() + (state.next - from);
  uint8_t* const out_end = bytes_.data() + kMcuRunBytes;
  const Unstuffed at = unstuff(raw_, raw_end_, raw_end_, bytes_.data() + kept, out_end, [](uint8_t*) {});
  if (at.in == raw_end_) {
    segment_ended_ = true;
  } else if (at.out < out_end) {
    segment_ended_ = true;
    if (raw_end_ - at.in >= 2) marker_ = at.in[1];  // else half of one
  }
  raw_ = at.in;
  bytes_end_ = at.out;
}

// Between two segments: the marker must follow directly and be the right one. What a segment leaves unused are the bits
// that fill its last byte.
bool EntropyDecoder::restart() {
  if (!at_segment_end() || marker_ != 0xD0 + next_restart_) return false;
  next_restart_ = (next_restart_ + 1) & 7;
  begin_bytes(raw_ + 2);
  prediction_.fill(0);
  until_restart_ = restart_interval_;
  return true;
}

// Where no restart marker stands between here and the next MCU; where one does, the bits before it count: restart()
// goes over it in the ordinary way.
bool EntropyDecoder::position(RestartPoint& point) {
  BitState state = state_;
  const std::ptrdiff_t bit = (state.next - known_) * 8 - state.count;  // from known_
  if (bit < 0) return false;
  const uint8_t* const byte = known_ + bit / 8;
  if (byte > bytes_end_) return false;
  known_raw_ += byte - known_ + std::count(known_, byte, 0xFF);
  known_ = byte;
  point.byte = static_cast<uint32_t>(known_raw_ - file_);
  point.bit = static_cast<uint8_t>(bit % 8);
  for (size_t c = 0; c < 3; ++c) {
    point.dc[c] = static_cast<int16_t>(prediction_[c]);
    if (point.dc[c] != prediction_[c]) return false;
  }
  return true;
}

bool EntropyDecoder::enter(const RestartPoint& point, int64_t mcu) {
  const auto length = static_cast<size_t>(raw_end_ - file_);
  if (point.byte < scan_begin_ || point.byte > length || mcu < 0 || mcu >= mcus_) return false;
  begin_bytes(file_ + point.byte);
  for (size_t c = 0; c < 3; ++c) prediction_[c] = point.dc[c];
  next_mcu_ = mcu;
  if (restart_interval_ != 0) {
    const int64_t done = mcu == 0 ? 0 : (mcu - 1) / restart_interval_;
    next_restart_ = static_cast<int>(done & 7);
    until_restart_ = static_cast<int>(restart_interval_ - (mcu - done * restart_interval_));
  }
  more_bytes();
  if (point.bit > 0) {
    state_.refill();
    state_.take(point.bit);
  }
  return true;
}

// Inlined with `state` in registers: its way through memory, as a whole, would cost more than a symbol.
template <bool store>
PENSTOCK_HOT_INLINE bool EntropyDecoder::read_block(BitState& state, const BlockPlan& plan, int32_t& prediction,
                                                    int16_t* block) {
  // A difference takes 31 bits at most, as does a coefficient; a refill gives 56, a lookup takes no more than 11.
  state.refill();
  int32_t difference = 0;
  if (const uint32_t entry = plan.dc->single[state.bits >> kShift]; entry != 0) [[likely]] {
    state.take(entry);
    difference = static_cast<int16_t>(entry >> 16);
  } else {
    int size = 0;
    const int length = plan.dc->symbol(state.bits, size);
    if (length == 0) return false;
    state.take(static_cast<unsigned>(length));
    if (size > 0) {
      difference = extend_value(static_cast<unsigned>(state.bits >> (64 - size)), size);
      state.take(static_cast<unsigned>(size));
    }
  }
  prediction = static_cast<int32_t>(static_cast<uint32_t>(prediction) + static_cast<uint32_t>(difference));

  const HuffmanTable& ac = *plan.ac;
  size_t next = 1;
  const auto slowly = [&] {
    int symbol = 0;
    const int length = ac.symbol(state.bits, symbol);
    if (length == 0) return false;
    state.take(static_cast<unsigned>(length));
    const int size = symbol & 15;
    const int run = symbol >> 4;
    if (size == 0) {
      next += run == 15 ? 16 : HuffmanTable::kEndAdvance;
      return true;
    }
    const auto raw = static_cast<unsigned>(state.bits >> (64 - size));
    state.take(static_cast<unsigned>(size));
    next += static_cast<size_t>(run) + 1;
    if constexpr (store) block[kPlaces[next]] = static_cast<int16_t>(extend_value(raw, size));
    return true;
  };
  // By pairs, while the first of a pair cannot end the block; then one by one. Two lookups and a slow symbol after them
  // fit into one refill.
  for (;;) {
    state.refill();
    uint64_t entry = ac.pairs[state.bits >> kShift];
    if (entry != 0) [[likely]] {
      state.take(static_cast<unsigned>(entry));
      if constexpr (store) block[kPlaces[next + (entry >> 8 & 255)]] = static_cast<int16_t>(entry >> 32);
      next += entry >> 16 & 255;
      if constexpr (store) block[kPlaces[next]] = static_cast<int16_t>(entry >> 48);
      if (next > 47) break;
      entry = ac.pairs[state.bits >> kShift];
      if (entry != 0) [[likely]] {
        state.take(static_cast<unsigned>(entry));
        if constexpr (store) block[kPlaces[next + (entry >> 8 & 255)]] = static_cast<int16_t>(entry >> 32);
        next += entry >> 16 & 255;
        if constexpr (store) block[kPlaces[next]] = static_cast<int16_t>(entry >> 48);
        if (next > 47) break;
        continue;
      }
    }
    if (!slowly()) return false;
    if (next > 47) break;
  }
  while (next < 64) {
    state.refill();
    const uint32_t entry = ac.single[state.bits >> kShift];
    if (entry != 0) [[likely]] {
      state.take(entry);
      next += entry >> 8 & 255;
      if constexpr (store) block[kPlaces[next]] = static_cast<int16_t>(entry >> 16);
    } else if (!slowly()) {
      return false;
    }
  }
  if constexpr (store) block[0] = static_cast<int16_t>(prediction);
  return true;
}

bool EntropyDecoder::skip(int64_t mcus) {
  // Which columns they are is of no matter where nothing is stored.
  while (mcus > 0) {
    const int part = static_cast<int>(std::min<int64_t>(mcus, mcu_columns_));
    if (!read_mcus(0, part, nullptr)) return false;
    mcus -= part;
  }
  return true;
}

bool EntropyDecoder::read(int end, const CoefficientTarget& target) {
  return read_mcus(static_cast<int>(next_mcu_ % mcu_columns_), end, &target);
}

bool EntropyDecoder::read_mcus(int begin, int end, const CoefficientTarget* target) {
  BitState state = state_;
  for (int mcu = begin; mcu < end; ++mcu) {
    if (restart_interval_ != 0) {
      if (until_restart_ == 0) {
        state_ = state;
        if (!restart()) return false;
        state = state_;
      }
      --until_restart_;
    }
    if (bytes_end_ - state.next < static_cast<std::ptrdiff_t>(kMcuBytes) && !segment_ended_) {
      state_ = state;
      more_bytes();
      state = state_;
    }
    const bool wanted = target != nullptr && mcu >= target->first_mcu && mcu < target->end_mcu;
    for (size_t b = 0; b < blocks_; ++b) {
      const BlockPlan& plan = plan_[b];
      const auto c = static_cast<size_t>(plan.component);
      if (wanted && target->tiles[c] != nullptr) {
        const int across = plan_[b].across;
        const auto column = static_cast<size_t>((mcu - target->first_mcu) * widths_[c] + across);
        int16_t* const block =
            target->tiles[c] + static_cast<size_t>(plan.down) * target->row_stride[c] + tile_block_begin(column);
        if (!read_block<true>(state, plan, prediction_[c], block)) return false;
      } else if (!read_block<false>(state, plan, prediction_[c], nullptr)) {
        return false;
      }
    }
    // Bits beyond the segment's end are none. (next may be past the end while they still wait in `bits`.)
    if ((bytes_end_ - state.next) * 8 + state.count < 0) return false;
  }
  state_ = state;
  next_mcu_ += end - begin;
  return true;
}

// Whether nothing is left of the segment but the bits that fill its last byte.
bool EntropyDecoder::at_segment_end() {
  if (!segment_ended_ && bytes_end_ - state_.next < 16) more_bytes();
  const std::ptrdiff_t left = (bytes_end_ - state_.next) * 8 + state_.count;
  return segment_ended_ && left >= 0 && left < 8;
}

bool EntropyDecoder::at_scan_end() {
  return at_segment_end() && marker_ > 0 && marker_ != 0xFF;
}

bool EntropyDecoder::library_would_stop_without_warning() {
  if (!segment_ended_ && bytes_end_ - state_.next < 16) more_bytes();
  return bytes_end_ - state_.next >= 16 || (segment_ended_ && marker_ > 0 && marker_ != 0xFF);
}

}  // namespace penstock
