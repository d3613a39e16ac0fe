#include "runtime/pixels/resample_taps.h"

#include <algorithm>
#include <cmath>

#include "runtime/pixels/resample_kernels.h"

namespace penstock {
namespace {

constexpr double kPi = 3.14159265358979323846;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= kPi;
  return std::sin(x) / x;
}

double support_of(Filter filter) {
  switch (filter) {
    case Filter::box: return 0.5;
    case Filter::bilinear:
    case Filter::hamming: return 1.0;
    case Filter::bicubic: return 2.0;
    default: return 3.0;
  }
}

// The order of operations is Pillow's: reassociating them would move a coefficient across a rounding boundary.
double weight(Filter filter, double x) {
  switch (filter) {
    case Filter::box: return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    case Filter::bilinear: x = std::fabs(x); return x < 1.0 ? 1.0 - x : 0.0;
    case Filter::hamming: {
      x = std::fabs(x);
      if (x == 0.0) return 1.0;
      if (x >= 1.0) return 0.0;
      x *= kPi;
      // Pillow's constants are floats.
      return std::sin(x) / x * (static_cast<double>(0.54F) + static_cast<double>(0.46F) * std::cos(x));
    }
    case Filter::bicubic: {
      constexpr double a = -0.5;
      x = std::fabs(x);
      if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
      if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
      return 0.0;
    }
    default: return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
  }
}

void compute_nearest(int in_size, int out_size, int first, int count, Taps& taps) {
  taps.stride = 1;
  taps.q22.assign(static_cast<size_t>(count), 1 << 22);
  const double scale = static_cast<double>(in_size) / out_size;
  double position = scale * 0.5;
  for (int i = 0; i < first + count; ++i) {
    if (i >= first) {
      taps.start[static_cast<size_t>(i - first)] = std::min(static_cast<int>(position), in_size - 1);
      taps.size[static_cast<size_t>(i - first)] = 1;
    }
    position += scale;
  }
}

void compute_filtered(int in_size, InputSpan span, int out_size, Filter filter, int first, int count, Taps& taps) {
  // Pillow's box is float, and so is the difference of its edges; sizes are below 2^24, and fractions are eighths below
  // 2^16, so that is exact.
  const double scale = (span.whole() ? in_size : span.length) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = support_of(filter) * filter_scale;
  const double per_pixel = 1.0 / filter_scale;
  taps.stride = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.q22.assign(static_cast<size_t>(count) * static_cast<size_t>(taps.stride), 0);
  thread_local std::vector<double> weights;
  weights.resize(static_cast<size_t>(taps.stride));
  for (int i = 0; i < count; ++i) {
    const double center = span.begin + (first + i + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), in_size);
    double sum = 0.0;
    for (int x = begin; x < end; ++x) {
      const double w = weight(filter, (x - center + 0.5) * per_pixel);
      weights[static_cast<size_t>(x - begin)] = w;
      sum += w;
    }
    int32_t* q22 = taps.q22.data() + static_cast<size_t>(i) * static_cast<size_t>(taps.stride);
    int leading = 0;
    int used = 0;
    for (int k = 0; k < end - begin; ++k) {
      double w = weights[static_cast<size_t>(k)];
      if (sum != 0.0) w /= sum;
      const auto rounded = static_cast<int32_t>(w < 0 ? -0.5 + w * (1 << 22) : 0.5 + w * (1 << 22));
      if (rounded == 0 && used == 0) {
        ++leading;
        continue;
      }
      q22[k - leading] = rounded;
      if (rounded != 0) used = k - leading + 1;
    }
    const size_t at = static_cast<size_t>(i);
    taps.start[at] = used == 0 ? std::min(begin, in_size - 1) : begin + leading;
    taps.size[at] = std::max(used, 1);
  }
}

}  // namespace

int Taps::begin() const noexcept {
  return *std::min_element(start.begin(), start.end());
}

int Taps::end() const noexcept {
  int last = 0;
  for (size_t i = 0; i < start.size(); ++i) last = std::max(last, start[i] + size[i]);
  return last;
}

void compute_taps(int in_size, int out_size, Filter filter, int first, int count, Taps& taps, InputSpan span) {
  taps.first = first;
  taps.start.resize(static_cast<size_t>(count));
  taps.size.resize(static_cast<size_t>(count));
  if (filter == Filter::nearest) {
    compute_nearest(in_size, out_size, first, count, taps);
  } else {
    compute_filtered(in_size, span, out_size, filter, first, count, taps);
  }
  split_quads(taps);
}

}  // namespace penstock
