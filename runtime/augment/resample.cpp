#include "runtime/augment/resample.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "runtime/augment/resample_kernels.h"
#include "runtime/augment/resample_taps.h"

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

// Uninitialised memory that only grows.
class Bytes {
 public:
  uint8_t* get(size_t need) {
    rows_.resize(static_cast<int>(std::min<size_t>(need / 3 + 1, size_t{1} << 20)),
                 static_cast<int>(need / (size_t{3} << 20) + 1));
    return rows_.row(0);
  }

 private:
  PixelBuffer rows_;  // for its alignment and its padding
};

}  // namespace

class Resampler::Impl {
 public:
  Box source_window(const ResampleGeometry& g, const Box& window) {
    check_geometry(g, window);
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

  // Where the result goes: interleaved rows (plane 0) or planes, mirrored.
  struct Target {
    uint8_t* data = nullptr;
    size_t row_stride = 0;
    bool planar = false;
    bool mirror_x = false;
    bool mirror_y = false;
  };

  void run(const ResampleGeometry& g, const PixelView& source, const Box& source_box, const Box& window,
           const Target& target) {
    const Box need = source_window(g, window);
    if (!source_box.contains(need) || source.width != source_box.width || source.height != source_box.height) {
      throw Error(ErrorKind::usage, "resampling: the source " + text_of(source_box) + " (given " +
                                        std::to_string(source.width) + "x" + std::to_string(source.height) +
                                        " pixels) does not hold the " + text_of(need) + " that the window needs");
    }
    // From here on coordinates are those of the rows and columns that matter.
    PixelView view = source;
    view.data = source.row(need.y - source_box.y);
    view.height = need.height;
    const int source_x = source_box.x;
    const bool horizontal = g.resizes_columns();
    const bool vertical = g.resizes_rows();
    if (!horizontal || (g.filter == Filter::nearest)) {
      view.data += static_cast<size_t>(need.x - source_box.x) * 3;
      view.width = need.width;
    }
    if (!horizontal && !vertical) {
      copy(view, target);
    } else if (g.filter == Filter::nearest) {
      nearest(g, view, need, window, target);
    } else if (!horizontal) {
      vertical_only(g, view, need, window, target);
    } else {
      both(g, view, source_x, need, window, vertical, target);
    }
  }

 private:
  static void copy(const PixelView& view, const Target& t) {
    if (t.planar) {
      to_planar(view, t.mirror_x, t.mirror_y, t.data);
    } else {
      for (int y = 0; y < view.height; ++y) {
        std::memcpy(t.data + static_cast<size_t>(y) * t.row_stride, view.row(y), static_cast<size_t>(view.width) * 3);
      }
    }
  }

  void nearest(const ResampleGeometry& g, const PixelView& view, const Box& need, const Box& window, const Target& t) {
    // A table of source columns and rows; identity where that size does not change.
    columns_.resize(static_cast<size_t>(window.width));
    lines_.resize(static_cast<size_t>(window.height));
    fill_lookup(g.resizes_columns() ? &taps_.columns(g, window.x, window.width) : nullptr, window.x, need.x, columns_);
    fill_lookup(g.resizes_rows() ? &taps_.rows(g, window.y, window.height) : nullptr, window.y, need.y, lines_);
    const size_t row_bytes = static_cast<size_t>(window.width) * 3;
    uint8_t* const rows = t.planar ? middle_.get(row_bytes * static_cast<size_t>(window.height)) : t.data;
    const size_t stride = t.planar ? row_bytes : t.row_stride;
    for (int y = 0; y < window.height; ++y) {
      uint8_t* out = rows + static_cast<size_t>(y) * stride;
      if (y > 0 && lines_[static_cast<size_t>(y)] == lines_[static_cast<size_t>(y - 1)]) {
        std::memcpy(out, out - stride, row_bytes);
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

  void vertical_only(const ResampleGeometry& g, const PixelView& view, const Box& need, const Box& window,
                     const Target& t) {
    const Taps& taps = taps_.rows(g, window.y, window.height);
    const size_t row_bytes = static_cast<size_t>(window.width) * 3;
    uint8_t* const rows = t.planar ? middle_.get(row_bytes * static_cast<size_t>(window.height)) : t.data;
    const size_t stride = t.planar ? row_bytes : t.row_stride;
    for (int y = 0; y < window.height; ++y) {
      const auto at = static_cast<size_t>(y);
      resample_column(view.row(taps.start[at] - need.y), view.row_bytes, taps.coefficients(y), taps.pairs(y),
                      taps.size[at], row_bytes, rows + at * stride);
    }
    if (t.planar) to_planar({rows, window.width, window.height, row_bytes}, t.mirror_x, t.mirror_y, t.data);
  }

  // Horizontal pass for the rows that the vertical pass needs, then the vertical pass straight into the target.
  void both(const ResampleGeometry& g, const PixelView& view, int source_x, const Box& need, const Box& window,
            bool vertical, const Target& t) {
    const Taps& across = taps_.columns(g, window.x, window.width);
    const auto width = static_cast<size_t>(window.width);
    const auto rounded = (width + 15) / 16 * 16;
    const auto rows = static_cast<size_t>(need.height);
    const size_t planes = t.planar ? 3 : 1;
    RowsOut middle;
    middle.row_stride = t.planar ? rounded : rounded * 3;
    middle.plane_stride = t.planar ? middle.row_stride * rows : 0;
    middle.data = middle_.get(middle.row_stride * rows * planes + resample_row_padding);
    const ColumnScratch scratch{columns_in_.get(column_scratch_bytes(across)), columns_out_.get(column_result_bytes)};
    resample_rows(view, need.height, source_x, across, t.mirror_x, scratch, middle);

    const size_t row_bytes = t.planar ? width : width * 3;
    const Taps* down = vertical ? &taps_.rows(g, window.y, window.height) : nullptr;
    for (size_t plane = 0; plane < planes; ++plane) {
      const uint8_t* const from = middle.data + plane * middle.plane_stride;
      uint8_t* const to = t.data + plane * width * static_cast<size_t>(window.height);
      for (int y = 0; y < window.height; ++y) {
        uint8_t* const out = to + static_cast<size_t>(t.mirror_y ? window.height - 1 - y : y) * t.row_stride;
        const auto at = static_cast<size_t>(y);
        if (down != nullptr) {
          resample_column(from + static_cast<size_t>(down->start[at] - need.y) * middle.row_stride, middle.row_stride,
                          down->coefficients(y), down->pairs(y), down->size[at], row_bytes, out);
        } else {
          std::memcpy(out, from + at * middle.row_stride, row_bytes);
        }
      }
    }
  }

  TapCache taps_;
  Bytes middle_;
  Bytes columns_in_;
  Bytes columns_out_;
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
  impl_->run(geometry, source, source_box, window, {out.row(0), out.row_bytes(), false, false, false});
}

void Resampler::run_planar(const ResampleGeometry& geometry, const PixelView& source, const Box& source_box,
                           const Box& window, bool flip_horizontal, bool flip_vertical, uint8_t* out_chw) {
  check_geometry(geometry, window);
  impl_->run(geometry, source, source_box, window,
             {out_chw, static_cast<size_t>(window.width), true, flip_horizontal, flip_vertical});
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
