#include "launch/progress.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace penstock {

std::string progress_line(const ReceiverFigures& figures, double images_per_s, double epoch_eta_s) {
  char text[256];
  const double waiting = figures.elapsed_s > 0 ? 100 * figures.wait_s / figures.elapsed_s : 0;
  const std::string arithmetic =
      figures.arithmetic == Arithmetic::exact ? "" : std::string(" (arithmetic ") + name_of(figures.arithmetic) + ")";
  std::snprintf(text, sizeof text, "%s%s epoch %lld: step %lld of %lld, ", figures.split.c_str(), arithmetic.c_str(),
                static_cast<long long>(figures.epoch), static_cast<long long>(figures.step),
                static_cast<long long>(figures.steps));
  std::string line = text;
  if (images_per_s > 0) {
    const auto eta = static_cast<long>(epoch_eta_s + 0.5);
    std::snprintf(text, sizeof text, "%.0f images/s, waiting %.0f %%, ETA of the epoch %ld:%02ld", images_per_s,
                  waiting, eta / 60, eta % 60);
  } else {
    std::snprintf(text, sizeof text, "no images since the last line, waiting %.0f %%", waiting);
  }
  return line + text;
}

ProgressPrinter::ProgressPrinter(bool enabled, bool under_launcher)
    : enabled_(enabled),
      live_(enabled && !under_launcher && ::isatty(STDERR_FILENO) != 0),
      color_(live_ && std::getenv("NO_COLOR") == nullptr),
      begun_(clock_.now()) {}

void ProgressPrinter::show(const ReceiverFigures& figures, int trainers) {
  if (!enabled_ || figures.batches == 0) return;
  // This trainer is through while another is not: nothing to tell, and no rate of 0 to worry anybody.
  if (figures.step == figures.steps && figures.images == last_images_) return;
  const Nanoseconds now = clock_.now();
  const double seconds = as_seconds(now - (last_ != 0 ? last_ : begun_));
  const double rate = seconds > 0 ? static_cast<double>(figures.images - last_images_) / seconds : 0;
  const double per_batch = static_cast<double>(figures.images) / static_cast<double>(figures.batches);
  const double eta = rate > 0 ? static_cast<double>(figures.steps - figures.step) * per_batch / rate : 0;
  last_ = now;
  last_images_ = figures.images;
  // Only this trainer is known here; synchronous trainers go at one pace.
  const std::string line = progress_line(figures, rate * trainers, eta);
  if (live_) {
    std::fprintf(stderr, "\r\033[K%s%s%s", color_ ? "\033[36m" : "", line.c_str(), color_ ? "\033[0m" : "");
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
  shown_ = true;
}

void ProgressPrinter::done() {
  if (live_ && shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

}  // namespace penstock
