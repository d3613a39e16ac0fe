// decode_lanes() (entropy_lanes.h) for CPUs without AVX2, or other than x86: the same runs of MCUs, one lookup at a
// time, lane after lane.
//
//   decode_scalar_lanes(tables, layout, bytes, coefficients, feeder, log);      // kScalarLanes lanes
//
// A lookup waits for the one before it, and a decoder of one run of MCUs mispredicts a branch or two a block. Here
//   lanes take a lookup each by turns, with one branch in twenty lookups that the data decide: the CPU works at several
//   at once.
// Results, failures and safety are decode_lanes()'s; the tables are the same, the step is lane_step.h's.
// Thread-safety: a free function; the feeder is called from the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/decode/jpeg/entropy_lanes.h"

namespace penstock {

// Fewer hide less of each other's waiting, more gain nothing: there are no registers for them.
inline constexpr size_t kScalarLanes = 4;
inline constexpr int kScalarLookupsPerFetch = 3;

void decode_scalar_lanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes,
                         int16_t* coefficients, LaneFeeder& feeder, LaneLog* log = nullptr);

}  // namespace penstock
