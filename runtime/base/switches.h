// Switches in the environment, for tests and comparisons: PENSTOCK_VECTORS, PENSTOCK_DECODE, PENSTOCK_READ_AHEAD,
// PENSTOCK_CARDS. Each is read where it acts; here it is seen to that none is misspelt, because whoever compares two ways
// with a slip of the pen compares one with itself.
//
//   check_switches();      // where a program begins to use the library
//
// Failure: Error(usage), naming the variable and what it may be. Thread-safety: a free function.
#pragma once

namespace penstock {

void check_switches();

}  // namespace penstock
