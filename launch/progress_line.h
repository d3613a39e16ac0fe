// Progress of work over a known number of samples, on stderr: one line that rewrites itself on a terminal, a plain line
// every ten seconds elsewhere.
//
//   ProgressLine line("pack", total, enabled);
//   line.show(done, bytes);      // as often as one likes
//   line.done();                 // ends the live line
//
// NO_COLOR is respected by having no colours. Thread-safety: one thread. Failure: none; lines may be lost.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/clock.h"

namespace penstock {

class ProgressLine {
 public:
  ProgressLine(std::string what, int64_t total, bool enabled);
  ~ProgressLine() { done(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(int64_t samples, uint64_t bytes);
  void done();

 private:
  std::string what_;
  int64_t total_;
  bool enabled_;
  bool live_;
  bool shown_ = false;
  MonotonicClock clock_;
  Nanoseconds begun_;
  Nanoseconds last_;
  int64_t first_ = -1;  // samples that were there at the start
};

// "pack: 1200 of 5000 samples, 130.2 MB, 95.1 MB/s, ETA 0:31"
std::string progress_line(const std::string& what, int64_t done, int64_t total, int64_t before, uint64_t bytes,
                          double seconds);

}  // namespace penstock
