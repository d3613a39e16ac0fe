#include "runtime/pixels/resample.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "runtime/pixels/opencv_resize.h"
#include "runtime/pixels/resample_kernels.h"
#include "runtime/pixels/resample_taps.h"
#include "runtime/pixels/row_resampler.h"

namespace penstock {
namespace {

std::string text_of(const Box& b) {
  return "[" + std::to_string(b.x) + ", " + std::to_string(b.y) + ", " + std::to_string(b.width) + ", " +
         std::to_string(b.height) + "]";
}

bool fits(const InputSpan& span, int size) {
  return span.whole() || (span.begin >= 0 && span.length > 0 && span.begin + span.length <= size);
}

void check_geometry(const ResampleGeometry& g, const Box& window) {
  if (!fits(g.columns, g.in_width) || !fits(g.rows, g.in_height) ||
      (g.filter == Filter::nearest && !(g.columns.whole() && g.rows.whole()))) {
    throw Error(ErrorKind::usage, "resampling: a span that lies outside the input, or one with nearest");
  }
  if (g.in_width < 1 || g.in_height < 1 || g.out_width < 1 || g.out_height < 1 || window.width < 1 ||
      window.height < 1 || !Box{0, 0, g.out_width, g.out_height}.contains(window)) {
    throw Error(ErrorKind::usage, "resampling " + std::to_string(g.in_width) + "x" + std::to_string(g.in_height) +
                                      " to " + std::to_string(g.out_width) + "x" + std::to_string(g.out_height) +
                                      ": window " + text_of(window) + " is empty or lies outside the result");
  }
}

// A few sets of taps, the least recently used replaced: the same sizes come again and again after a Resize, and both
// passes of source_window() and run() ask for the same ones.
class TapCache {
 public:
  const Taps& columns(const ResampleGeometry& g, int first, int count) {
    return get(g.in_width, g.columns, g.out_width, g.filter, first, count);
  }
  const Taps& rows(const ResampleGeometry& g, int first, int count) {
    return get(g.in_height, g.rows, g.out_height, g.filter, first, count);
  }

 private:
  const Taps& get(int in_size, const InputSpan& span, int out_size, Filter filter, int first, int count) {
    ++clock_;
    Entry* oldest = &entries_[0];
    for (Entry& e : entries_) {
      if (e.in_size == in_size && e.out_size == out_size && e.filter == filter && e.first == first &&
          e.count == count && e.span == span) {
        e.used = clock_;
        return e.taps;
      }
      if (e.used < oldest->used) oldest = &e;
    }
    compute_taps(in_size, out_size, filter, first, count, oldest->taps, span);
    oldest->span = span;
    oldest->in_size = in_size;
    oldest->out_size = out_size;
    oldest->filter = filter;
    oldest->first = first;
    oldest->count = count;
    oldest->used = clock_;
    return oldest->taps;
  }

  struct Entry {
    int in_size = 0;
    int out_size = 0;
    int first = 0;
    int count = 0;
    InputSpan span;
    Filter filter = Filter::nearest;
    uint64_t used = 0;
    Taps taps;
  };
  std::array<Entry, 8> entries_;
  uint64_t clock_ = 0;
};

void send_rows(const PixelView& view, RowSink& sink) {
  for (int y = 0; y < view.height; ++y) {
    const PlanarRow to = sink.row(y);
    deinterleave_row(view.row(y), view.width, false, to.red, to.green, to.blue);
  }
}

}  // namespace

class Resampler::Impl {
 public:
  Box source_window(const ResampleGeometry& g, const Box& window) {
    check_geometry(g, window);
    if (is_opencv(g.filter)) return {0, 0, g.in_width, g.in_height};
    Box box = window;
    if (g.resizes_columns()) {
      const Taps& taps = taps_.columns(g, window.x, window.width);
      box.x = taps.begin();
      box.width = taps.end() - box.x;
    }
    if (g.resizes_rows()) {
      const Taps& taps = taps_.rows(g, window.y, window.height);
      box.y = taps.begin();
      box.height = taps.end() - box.y;
    }
    return box;
  }

  WindowTaps taps(const ResampleGeometry& g, const Box& window) {
    check_geometry(g, window);
    WindowTaps found;
    if (g.resizes_columns()) found.columns = &taps_.columns(g, window.x, window.width);
    if (g.resizes_rows()) found.rows = &taps_.rows(g, window.y, window.height);
    return found;
  }

  RowSink& begin(const ResampleGeometry& g, const Box& window, const ResampleTarget& target) {
    check_geometry(g, window);
    if (!takes_rows(g.filter)) throw Error(ErrorKind::usage, "resampling: this filter does not work row by row");
    rows_.begin(taps_.columns(g, window.x, window.width), taps_.rows(g, window.y, window.height), target);
    return rows_;
  }

  void finish() { rows_.finish(); }

  void run(const ResampleGeometry& g, const PixelView& source, const Box& source_box, const Box& window,
           const ResampleTarget& target) {
    const Box need = source_window(g, window);
    if (!source_box.contains(need) || source.width != source_box.width || source.height != source_box.height) {
      throw Error(ErrorKind::usage, "resampling: the source " + text_of(source_box) + " (given " +
                                        std::to_string(source.width) + "x" + std::to_string(source.height) +
                                        " pixels) does not hold the " + text_of(need) + " that the window needs");
    }
    const PixelView view{source.row(need.y - source_box.y) + static_cast<size_t>(need.x - source_box.x) * 3, need.width,
                         need.height, source.row_bytes};
    if (is_opencv(g.filter)) {
      opencv_resize(view, g.out_width, g.out_height, g.filter, opencv_result_);
      copy({opencv_result_.row(window.y) + static_cast<size_t>(window.x) * 3, window.width, window.height,
            opencv_result_.row_bytes()},
           target);
    } else if (!g.resizes_columns() && !g.resizes_rows()) {
      copy(view, target);
    } else if (g.filter == Filter::nearest) {
      nearest(g, view, need, window, target);
    } else {
      begin(g, window, target);
      send_rows(view, rows_);
      finish();
    }
  }

 private:
  static void copy(const PixelView& view, const ResampleTarget& t) {
    if (t.planar) {
      to_planar(view, t.mirror_x, t.mirror_y, t.data);
      return;
    }
    const size_t row_bytes = static_cast<size_t>(view.width) * 3;
    for (int y = 0; y < view.height; ++y) {
      std::memcpy(t.data + static_cast<size_t>(y) * row_bytes, view.row(y), row_bytes);
    }
  }

  void nearest(const ResampleGeometry& g, const PixelView& view, const Box& need, const Box& window,
               const ResampleTarget& t) {
    // A table of source columns and rows; identity where that size does not change.
    columns_.resize(static_cast<size_t>(window.width));
    lines_.resize(static_cast<size_t>(window.height));
    fill_lookup(g.resizes_columns() ? &taps_.columns(g, window.x, window.width) : nullptr, window.x, need.x, columns_);
    fill_lookup(g.resizes_rows() ? &taps_.rows(g, window.y, window.height) : nullptr, window.y, need.y, lines_);
    const size_t row_bytes = static_cast<size_t>(window.width) * 3;
    uint8_t* const rows = t.planar ? middle_.get(row_bytes * static_cast<size_t>(window.height)) : t.data;
    for (int y = 0; y < window.height; ++y) {
      uint8_t* out = rows + static_cast<size_t>(y) * row_bytes;
      if (y > 0 && lines_[static_cast<size_t>(y)] == lines_[static_cast<size_t>(y - 1)]) {
        std::memcpy(out, out - row_bytes, row_bytes);
        continue;
      }
      const uint8_t* in = view.row(lines_[static_cast<size_t>(y)]);
      for (const int x : columns_) {
        const uint8_t* pixel = in + static_cast<size_t>(x) * 3;
        *out++ = pixel[0];
        *out++ = pixel[1];
        *out++ = pixel[2];
      }
    }
    if (t.planar) to_planar({rows, window.width, window.height, row_bytes}, t.mirror_x, t.mirror_y, t.data);
  }

  static void fill_lookup(const Taps* taps, int first, int origin, std::vector<int>& table) {
    const int count = static_cast<int>(table.size());
    for (int i = 0; i < count; ++i) {
      table[static_cast<size_t>(i)] = (taps != nullptr ? taps->start[static_cast<size_t>(i)] : first + i) - origin;
    }
  }

  TapCache taps_;
  RowResampler rows_;
  AlignedBytes middle_;
  PixelBuffer opencv_result_;
  std::vector<int> columns_;
  std::vector<int> lines_;
};

Resampler::Resampler() : impl_(std::make_unique<Impl>()) {}
Resampler::~Resampler() = default;
Resampler::Resampler(Resampler&&) noexcept = default;
Resampler& Resampler::operator=(Resampler&&) noexcept = default;

Box Resampler::source_window(const ResampleGeometry& geometry, const Box& window) {
  return impl_->source_window(geometry, window);
}

WindowTaps Resampler::taps(const ResampleGeometry& geometry, const Box& window) {
  return impl_->taps(geometry, window);
}

void Resampler::run(const ResampleGeometry& geometry, const PixelView& source, const Box& source_box, const Box& window,
                    PixelBuffer& out) {
  check_geometry(geometry, window);
  out.resize(window.width, window.height);
  impl_->run(geometry, source, source_box, window, {.data = out.row(0), .planar = false});
}

void Resampler::run_planar(const ResampleGeometry& geometry, const PixelView& source, const Box& source_box,
                           const Box& window, bool flip_horizontal, bool flip_vertical, uint8_t* out_chw) {
  check_geometry(geometry, window);
  impl_->run(geometry, source, source_box, window,
             {.data = out_chw, .mirror_x = flip_horizontal, .mirror_y = flip_vertical});
}

RowSink& Resampler::begin(const ResampleGeometry& geometry, const Box& window, PixelBuffer& out) {
  check_geometry(geometry, window);
  out.resize(window.width, window.height);
  return impl_->begin(geometry, window, {.data = out.row(0), .planar = false});
}

RowSink& Resampler::begin_planar(const ResampleGeometry& geometry, const Box& window, bool flip_horizontal,
                                 bool flip_vertical, uint8_t* out_chw) {
  return impl_->begin(geometry, window, {.data = out_chw, .mirror_x = flip_horizontal, .mirror_y = flip_vertical});
}

void Resampler::finish() {
  impl_->finish();
}

void to_planar(const PixelView& pixels, bool flip_horizontal, bool flip_vertical, uint8_t* out_chw) {
  const auto width = static_cast<size_t>(pixels.width);
  const size_t plane = width * static_cast<size_t>(pixels.height);
  for (int y = 0; y < pixels.height; ++y) {
    uint8_t* const out = out_chw + static_cast<size_t>(flip_vertical ? pixels.height - 1 - y : y) * width;
    deinterleave_row(pixels.row(y), pixels.width, flip_horizontal, out, out + plane, out + 2 * plane);
  }
}

}  // namespace penstock
