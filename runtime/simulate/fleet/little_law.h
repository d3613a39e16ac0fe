// Little's law, which any queue keeps: the mean number of those inside is their rate times their mean time inside.
//
//   LittleLaw leases;
//   leases.enter(now);                    // and, later,
//   leases.leave(now, when_it_entered);
//   leases.check("leases at loaders");    // when all have left
//
// Purpose: a simulation that loses or doubles something, or gives it a wrong time, breaks the law. Both sides are sums
//   of whole nanoseconds: the area under the number of those inside, and their times; so they are equal or they are not.
// Failure: check() throws Error(runtime) with both sides, and where some are still inside.
// Source: Little, "A proof for the queuing formula L = lambda W", 1961.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

namespace penstock {

class LittleLaw {
 public:
  void enter(Nanoseconds now) {
    pass(now);
    ++inside_;
  }
  void leave(Nanoseconds now, Nanoseconds entered) {
    pass(now);
    --inside_;
    times_ += now - entered;
  }

  void check(const std::string& what) const {
    if (inside_ == 0 && area_ == times_) return;
    throw Error(ErrorKind::runtime,
                "the simulation lost count of its " + what + ": " + std::to_string(inside_) + " are left, " +
                    text(area_) + " ns under their number, " + text(times_) + " ns that they were there",
                "this is a defect of penstock; please report it with the command and its seed");
  }

 private:
  __extension__ using Wide = __int128;

  static std::string text(Wide value) { return std::to_string(static_cast<double>(value)); }
  void pass(Nanoseconds now) {
    area_ += Wide{inside_} * (now - last_);
    last_ = now;
  }

  int64_t inside_ = 0;
  Nanoseconds last_ = 0;
  Wide area_ = 0;   // under the number of those inside
  Wide times_ = 0;  // of those that have left
};

}  // namespace penstock
