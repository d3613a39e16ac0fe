#include "launch/progress_line.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace penstock {

std::string progress_line(const std::string& what, int64_t done, int64_t total, int64_t before, uint64_t bytes,
                          double seconds) {
  char text[200];
  const double mb = static_cast<double>(bytes) / 1e6;
  const double rate = seconds > 0 ? mb / seconds : 0;
  const int64_t made = done - before;
  const double eta = made > 0 ? seconds * static_cast<double>(total - done) / static_cast<double>(made) : 0;
  const long left = static_cast<long>(eta + 0.5);
  std::snprintf(text, sizeof text, ": %lld of %lld samples, %.1f MB, %.1f MB/s, ETA %ld:%02ld",
                static_cast<long long>(done), static_cast<long long>(total), mb, rate, left / 60, left % 60);
  return what + text;
}

ProgressLine::ProgressLine(std::string what, int64_t total, bool enabled)
    : what_(std::move(what)),
      total_(total),
      enabled_(enabled),
      live_(enabled && ::isatty(STDERR_FILENO) != 0),
      begun_(clock_.now()),
      last_(begun_) {}

void ProgressLine::show(int64_t samples, uint64_t bytes) {
  if (!enabled_) return;
  const Nanoseconds now = clock_.now();
  if (first_ < 0) first_ = samples;
  if (now - last_ < (live_ ? kSecond / 5 : 10 * kSecond)) return;
  last_ = now;
  const std::string line = progress_line(what_, samples, total_, first_, bytes, as_seconds(now - begun_));
  std::fprintf(stderr, live_ ? "\r\033[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::done() {
  if (live_ && shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

}  // namespace penstock
