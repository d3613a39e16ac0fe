#include "runtime/pixels/warp.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "runtime/pixels/draw_math.h"

namespace penstock {

namespace {

constexpr double kDegree = 3.141592653589793 / 180.0;

// Python's round(x, 15).
double round_15(double x) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, x, std::chars_format::fixed, 15);
  double rounded = 0;
  std::from_chars(text, end.ptr, rounded);
  return rounded;
}

// Python's angle % 360.0.
double modulo_turn(double degrees) {
  double rest = std::fmod(degrees, 360.0);
  if (rest < 0) rest += 360.0;
  return rest;
}

Point apply(const double* a, double x, double y) {
  return {a[0] * x + a[1] * y + a[2], a[3] * x + a[4] * y + a[5]};
}

RgbPlane plane_of(const PixelBuffer& image) {
  return {image.row(0), image.row_bytes(), image.width(), image.height()};
}

void fill_all(PixelBuffer& image, const Fill& fill) {
  uint8_t* first = image.row(0);
  for (int x = 0; x < image.width(); ++x) std::memcpy(first + x * 3, fill.data(), 3);
  for (int y = 1; y < image.height(); ++y) std::memcpy(image.row(y), first, image.row_bytes());
}

void append_places(double scale, double shift, int in, int out, std::vector<int32_t>& places) {
  double at = shift + scale * 0.5;
  for (int i = 0; i < out; ++i, at += scale) {
    places.push_back(at >= 0.0 && at < in ? static_cast<int32_t>(at) : -1);
  }
}

void scale_nearest(const RgbPlane& in, const double* a, PixelBuffer& out, std::vector<int32_t>& both) {
  const auto width = static_cast<size_t>(out.width());
  both.clear();  // columns, then rows
  append_places(a[0], a[2], in.width, out.width(), both);
  append_places(a[4], a[5], in.height, out.height(), both);
  for (int row = 0; row < out.height(); ++row) {
    const int32_t y = both[width + static_cast<size_t>(row)];
    if (y < 0) continue;
    uint8_t* to = out.row(row);
    for (size_t column = 0; column < width; ++column, to += 3) {
      if (both[column] >= 0) copy_pixel_at(in, both[column], y, to);
    }
  }
}

// sample_fixed() for all, added up: these are integers.
void fixed_nearest(const RgbPlane& in, const FixedMap map, PixelBuffer& out) {
  int64_t row_x = map.a[2];
  int64_t row_y = map.a[5];
  for (int row = 0; row < out.height(); ++row, row_x += map.a[1], row_y += map.a[4]) {
    uint8_t* to = out.row(row);
    int64_t x = row_x, y = row_y;
    for (int column = 0; column < out.width(); ++column, x += map.a[0], y += map.a[3], to += 3) {
      const int64_t from_x = x >> 16, from_y = y >> 16;
      if (from_x < 0 || from_x >= in.width || from_y < 0 || from_y >= in.height) continue;
      copy_pixel_at(in, static_cast<int>(from_x), static_cast<int>(from_y), to);
    }
  }
}

void added_nearest(const RgbPlane& in, const double* a, PixelBuffer& out) {
  double row_x = a[2] + a[1] * 0.5 + a[0] * 0.5;
  double row_y = a[5] + a[4] * 0.5 + a[3] * 0.5;
  for (int row = 0; row < out.height(); ++row, row_x += a[1], row_y += a[4]) {
    uint8_t* to = out.row(row);
    SourcePoint p{row_x, row_y};
    for (int column = 0; column < out.width(); ++column, p.x += a[0], p.y += a[3], to += 3) {
      sample_nearest(in, p, to);
    }
  }
}

void affine_nearest(const RgbPlane& in, const WarpMap& map, PixelBuffer& out, PaintScratch& scratch) {
  switch (nearest_method(map, {out.width(), out.height()})) {
    case NearestMethod::scaled: return scale_nearest(in, map.a, out, scratch.ints);
    case NearestMethod::fixed: return fixed_nearest(in, fixed_map(map), out);
    case NearestMethod::added: return added_nearest(in, map.a, out);
  }
}

template <class Sample>
void every_pixel(const RgbPlane& in, const WarpMap& map, PixelBuffer& out, Sample sample) {
  for (int y = 0; y < out.height(); ++y) {
    uint8_t* to = out.row(y);
    for (int x = 0; x < out.width(); ++x, to += 3) sample(in, map.at(x, y), to);
  }
}

void warp_to(PixelBuffer& image, Size size, const WarpMap& map, Filter filter, const Fill& fill,
             PaintScratch& scratch) {
  PixelBuffer& out = scratch.buffer;
  out.resize(size.width, size.height);
  fill_all(out, fill);
  const RgbPlane in = plane_of(image);
  if (filter == Filter::bicubic) {
    every_pixel(in, map, out, sample_bicubic<RgbPlane>);
  } else if (filter == Filter::bilinear) {
    every_pixel(in, map, out, sample_bilinear<RgbPlane>);
  } else if (map.perspective) {
    every_pixel(in, map, out, sample_nearest<RgbPlane>);
  } else {
    affine_nearest(in, map, out, scratch);
  }
  std::swap(image, out);
}

}  // namespace

NearestMethod nearest_method(const WarpMap& map, Size out) {
  const double* a = map.a;
  if (a[1] == 0 && a[3] == 0) return NearestMethod::scaled;
  const auto fits = [&](int x, int y) {
    return std::fabs(x * a[0] + y * a[1] + a[2]) < 32768.0 && std::fabs(x * a[3] + y * a[4] + a[5]) < 32768.0;
  };
  return fits(0, 0) && fits(out.width, out.height) && fits(0, out.height) && fits(out.width, 0) ? NearestMethod::fixed
                                                                                                : NearestMethod::added;
}

FixedMap fixed_map(const WarpMap& map) {
  const double* a = map.a;
  const auto fix = [](double v) { return static_cast<int64_t>(std::floor(v * 65536.0 + 0.5)); };
  return {{fix(a[0]), fix(a[1]), fix(a[2] + a[0] * 0.5 + a[1] * 0.5), fix(a[3]), fix(a[4]),
           fix(a[5] + a[3] * 0.5 + a[4] * 0.5)}};
}

void scaled_places(double scale, double shift, int in, int out, std::vector<int32_t>& places) {
  places.clear();
  append_places(scale, shift, in, out, places);
}

Rotation by_map(const WarpMap& map, Size out) {
  return {.kind = Rotation::Kind::map, .out = out, .map = map};
}

Rotation rotation_of(double degrees, Size in, bool expand, std::optional<Point> center) {
  const double angle = modulo_turn(degrees);
  Rotation rotation{.out = in, .map = {}};
  if (!center) {
    if (angle == 0) return rotation;
    if (angle == 180) {
      rotation.kind = Rotation::Kind::half;
      return rotation;
    }
    if ((angle == 90 || angle == 270) && (expand || in.width == in.height)) {
      rotation.kind = angle == 90 ? Rotation::Kind::quarter : Rotation::Kind::three_quarters;
      rotation.out = {in.height, in.width};
      return rotation;
    }
  }
  rotation.kind = Rotation::Kind::map;
  const Point middle = center ? *center : Point{in.width / 2.0, in.height / 2.0};
  const double radians = -(angle * kDegree);
  double* a = rotation.map.a;
  a[0] = round_15(draw_cos(radians));
  a[1] = round_15(draw_sin(radians));
  a[2] = 0;
  a[3] = round_15(-draw_sin(radians));
  a[4] = a[0];
  a[5] = 0;
  const Point moved = apply(a, -middle[0], -middle[1]);
  a[2] = moved[0] + middle[0];
  a[5] = moved[1] + middle[1];
  if (!expand) return rotation;
  const Point corners[4] = {apply(a, 0, 0), apply(a, in.width, 0), apply(a, in.width, in.height),
                            apply(a, 0, in.height)};
  const auto extent = [&](size_t axis) {
    double low = corners[0][axis], high = low;
    for (const Point& corner : corners) {
      low = std::min(low, corner[axis]);
      high = std::max(high, corner[axis]);
    }
    return static_cast<int>(std::ceil(high) - std::floor(low));
  };
  rotation.out = {extent(0), extent(1)};
  const Point shift = apply(a, -(rotation.out.width - in.width) / 2.0, -(rotation.out.height - in.height) / 2.0);
  a[2] = shift[0];
  a[5] = shift[1];
  return rotation;
}

WarpMap affine_map(Point center, double angle, Point translate, double scale, Point shear) {
  const double rot = angle * kDegree;
  const double sx = shear[0] * kDegree;
  const double sy = shear[1] * kDegree;
  const double tan_sx = draw_sin(sx) / draw_cos(sx);
  const double cos_sy = draw_cos(sy);
  const double cos_turn = draw_cos(rot - sy);
  const double sin_turn = draw_sin(rot - sy);
  const double a = cos_turn / cos_sy;
  const double b = -cos_turn * tan_sx / cos_sy - draw_sin(rot);
  const double c = sin_turn / cos_sy;
  const double d = -sin_turn * tan_sx / cos_sy + draw_cos(rot);
  WarpMap map;
  map.a[0] = d / scale;
  map.a[1] = -b / scale;
  map.a[3] = -c / scale;
  map.a[4] = a / scale;
  map.a[2] = map.a[0] * (-center[0] - translate[0]) + map.a[1] * (-center[1] - translate[1]) + center[0];
  map.a[5] = map.a[3] * (-center[0] - translate[0]) + map.a[4] * (-center[1] - translate[1]) + center[1];
  return map;
}

WarpMap perspective_map(Size size, const std::array<Point, 4>& corners) {
  const double right = size.width - 1, bottom = size.height - 1;
  const Point from[4] = {{0, 0}, {right, 0}, {right, bottom}, {0, bottom}};
  double m[8][9] = {};
  for (size_t i = 0; i < 4; ++i) {
    const auto [x, y] = corners[i];
    const auto [u, v] = from[i];
    const double upper[9] = {x, y, 1, 0, 0, 0, -u * x, -u * y, u};
    const double lower[9] = {0, 0, 0, x, y, 1, -v * x, -v * y, v};
    std::copy(std::begin(upper), std::end(upper), m[2 * i]);
    std::copy(std::begin(lower), std::end(lower), m[2 * i + 1]);
  }
  // Gauss with row pivots.
  for (size_t column = 0; column < 8; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < 8; ++row) {
      if (std::fabs(m[row][column]) > std::fabs(m[pivot][column])) pivot = row;
    }
    if (m[pivot][column] == 0) return {};
    std::swap(m[pivot], m[column]);
    for (size_t row = column + 1; row < 8; ++row) {
      const double factor = m[row][column] / m[column][column];
      for (size_t k = column; k < 9; ++k) m[row][k] -= factor * m[column][k];
    }
  }
  WarpMap map{.a = {}, .perspective = true};
  for (size_t row = 8; row-- > 0;) {
    double value = m[row][8];
    for (size_t k = row + 1; k < 8; ++k) value -= m[row][k] * map.a[k];
    map.a[row] = value / m[row][row];
  }
  for (double& value : map.a) value = static_cast<double>(static_cast<float>(value));
  return map;
}

void rotate(PixelBuffer& image, const Rotation& rotation, Filter filter, const Fill& fill, PaintScratch& scratch) {
  if (rotation.kind == Rotation::Kind::none) return;
  if (rotation.kind == Rotation::Kind::map) {
    warp_to(image, rotation.out, rotation.map, filter, fill, scratch);
    return;
  }
  PixelBuffer& out = scratch.buffer;
  out.resize(rotation.out.width, rotation.out.height);
  const int right = image.width() - 1, bottom = image.height() - 1;
  const RgbPlane in = plane_of(image);
  for (int y = 0; y < out.height(); ++y) {
    uint8_t* to = out.row(y);
    for (int x = 0; x < out.width(); ++x, to += 3) {
      switch (rotation.kind) {
        case Rotation::Kind::quarter: copy_pixel_at(in, right - y, x, to); break;
        case Rotation::Kind::half: copy_pixel_at(in, right - x, bottom - y, to); break;
        default: copy_pixel_at(in, y, bottom - x, to);
      }
    }
  }
  std::swap(image, out);
}

}  // namespace penstock
