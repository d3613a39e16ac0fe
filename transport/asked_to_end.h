// While ranks meet, nobody reads their signals: whoever waits for another one looks now and then whether it is asked to end.
//
//   end_if_asked(options.asked_to_end);   // in the loop that waits; throws Error(runtime)
//
// Thread-safety: the predicate is called by the thread that waits.
#pragma once

#include <functional>

#include "runtime/base/error.h"

namespace penstock {

using AskedToEnd = std::function<bool()>;  // stays true once it was; empty: nobody asks

inline bool is_asked(const AskedToEnd& asked_to_end) {
  return asked_to_end && asked_to_end();
}

inline void end_if_asked(const AskedToEnd& asked_to_end) {
  if (!is_asked(asked_to_end)) return;
  throw Error(ErrorKind::runtime, "asked to end while this rank waited for the others", "");
}

}  // namespace penstock
