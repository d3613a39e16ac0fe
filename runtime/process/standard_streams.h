// Descriptors 0 to 2 of a process that was started without them (`penstock ... 2>&-`, some daemons).
//
//   fill_standard_streams();   // first in main, and before anything that forks
//
// The next file or socket that is opened would get such a number, and what is printed, here or by a program that we
// start, would go into it. /dev/null takes their places. Thread-safety: none; no other thread may open files meanwhile.
// Failure: none; without /dev/null they stay closed.
#pragma once

namespace penstock {

void fill_standard_streams() noexcept;

}  // namespace penstock
