// Progress of a job on stderr: one line that rewrites itself on a terminal, a plain line every ten seconds elsewhere.
//
// Under mpirun a rank's stderr may look like a terminal (Open MPI gives its ranks one), and several ranks share it:
// plain lines there. NO_COLOR and pipes are respected.
#pragma once

#include <string>

#include "runtime/base/clock.h"
#include "runtime/receiver/receiver.h"

namespace penstock {

class ProgressPrinter {
 public:
  ProgressPrinter(bool enabled, bool under_launcher);

  Nanoseconds interval_ns() const noexcept { return live_ ? kSecond / 2 : 10 * kSecond; }
  void show(const ReceiverFigures& figures, int trainers);
  void done();  // ends the live line

 private:
  bool enabled_;
  bool live_;
  bool color_;
  bool shown_ = false;
  MonotonicClock clock_;
  Nanoseconds begun_;
  Nanoseconds last_ = 0;
  int64_t last_images_ = 0;
};

// "train epoch 2: step 40 of 100, 1,204 images/s, waiting 3 %, ETA of the epoch 0:31": what show() prints, from a rate. With a
// rate of 0 "no images since the last line" stands in its place, and no ETA.
std::string progress_line(const ReceiverFigures& figures, double images_per_s, double epoch_eta_s);

}  // namespace penstock
