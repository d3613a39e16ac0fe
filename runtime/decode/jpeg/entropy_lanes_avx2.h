// decode_lanes() (entropy_lanes.h) for CPUs with AVX2 and without AVX-512: sixteen lanes, in two sets of eight.
//
//   decode_avx2_lanes(tables, layout, bytes, coefficients, feeder, log);      // where the CPU has AVX2 and BMI2
//
// AVX2 has neither masks nor scatters, and its gathers take longer than loads by numbers that were taken out of the
//   vector. So loads and stores are one lane's at a time, and all between them is done for eight at once: what comes
//   next in the stream, values, places. The second set's steps fill the time in which the first's wait for their loads.
// What is rare is left to plain code: codes that the tables do not hold, a pair whose first coefficient is the block's
//   last, and whatever leads past a block's end.
// Results, failures and safety are decode_lanes()'s, the tables the same.
// Thread-safety: a free function; the feeder is called from the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/decode/jpeg/entropy_lanes.h"

namespace penstock {

inline constexpr size_t kAvx2Lanes = 16;
static_assert(kAvx2Lanes <= kMostLanes);
// Five and six were slower: lanes that have no bits left for the last ones go through them for nothing.
inline constexpr int kAvx2LookupsPerFetch = 4;

// On CPUs other than x86 there is none.
void decode_avx2_lanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                       LaneFeeder& feeder, LaneLog* log = nullptr);

}  // namespace penstock
