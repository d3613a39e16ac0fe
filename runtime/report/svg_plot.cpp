#include "runtime/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace penstock {
namespace {

constexpr double kWidth = 640, kHeight = 376;
constexpr double kLeft = 70, kRight = 20, kTop = 40, kBottom = 72;

std::string figure(double value) {
  char text[32];
  const double size = std::abs(value);
  std::snprintf(text, sizeof text,
                size >= 100 || value == std::floor(value) ? "%.0f"
                : size >= 1                               ? "%.1f"
                                                          : "%.3g",
                value);
  return text;
}

std::string at(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

// Round steps: 1, 2 or 5 times a power of ten, about five of them.
std::vector<double> ticks_between(double low, double high) {
  const double rough = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double times : {1.0, 2.0, 5.0, 10.0}) {
    step = times * power;
    if (step >= rough) break;
  }
  std::vector<double> ticks;
  for (double tick = std::ceil(low / step) * step; tick <= high + step * 1e-6; tick += step)
    ticks.push_back(std::abs(tick) < step * 1e-6 ? 0 : tick);
  return ticks;
}

// With as many digits as tell them apart.
std::string tick_text(double tick, const std::vector<double>& ticks) {
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, tick);
  return text;
}

std::vector<double> decades_between(double low, double high) {
  std::vector<double> ticks;
  for (double exponent = std::floor(std::log10(low)); exponent <= std::ceil(std::log10(high)); ++exponent) {
    const double tick = std::pow(10, exponent);
    if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push_back(tick);
  }
  if (ticks.size() < 2) ticks = {low, high};
  return ticks;
}

struct Extent {
  double low = INFINITY;
  double high = -INFINITY;

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  void widen() {
    if (low == high) low -= std::max(1.0, std::abs(low) * 0.1), high += std::max(1.0, std::abs(high) * 0.1);
  }
};

class Axes {
 public:
  Axes(Extent x, Extent y, bool log_x) : x_(x), y_(y), log_x_(log_x) {}

  double across(double x) const {
    const double share = log_x_ ? std::log(x / x_.low) / std::log(x_.high / x_.low) : (x - x_.low) / (x_.high - x_.low);
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double down(double y) const {
    return kHeight - kBottom - (y - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
  }

  std::string grid() const {
    std::string svg;
    const std::vector<double> rows = ticks_between(y_.low, y_.high);
    for (const double tick : rows) {
      svg += "<line class=\"grid\" x1=\"" + at(kLeft) + "\" x2=\"" + at(kWidth - kRight) + "\" y1=\"" + at(down(tick)) +
             "\" y2=\"" + at(down(tick)) + "\"/>";
      svg += "<text x=\"" + at(kLeft - 6) + "\" y=\"" + at(down(tick) + 4) + "\" text-anchor=\"end\">" +
             tick_text(tick, rows) + "</text>";
    }
    const std::vector<double> columns = log_x_ ? decades_between(x_.low, x_.high) : ticks_between(x_.low, x_.high);
    for (const double tick : columns) {
      svg += "<text x=\"" + at(across(tick)) + "\" y=\"" + at(kHeight - kBottom + 18) + "\" text-anchor=\"middle\">" +
             (log_x_ ? figure(tick) : tick_text(tick, columns)) + "</text>";
    }
    return svg + "<line class=\"axis\" x1=\"" + at(kLeft) + "\" x2=\"" + at(kWidth - kRight) + "\" y1=\"" +
           at(kHeight - kBottom) + "\" y2=\"" + at(kHeight - kBottom) + "\"/>";
  }

 private:
  Extent x_, y_;
  bool log_x_;
};

std::string begin_plot(const PlotText& text, double height) {
  return "<svg role=\"img\" aria-label=\"" + html_escaped(text.title) + "\" viewBox=\"0 0 " + figure(kWidth) + " " +
         figure(height) + "\" xmlns=\"http://www.w3.org/2000/svg\"><text class=\"title\" x=\"" + at(kLeft) +
         "\" y=\"20\">" + html_escaped(text.title) + "</text>";
}

std::string labels(const PlotText& text, double height) {
  std::string svg = "<text x=\"" + at((kLeft + kWidth - kRight) / 2) + "\" y=\"" + at(height - 34) +
                    "\" text-anchor=\"middle\">" + html_escaped(text.x) + "</text>";
  if (!text.y.empty()) {
    svg += "<text transform=\"translate(16 " + at((kTop + height - kBottom) / 2) +
           ") rotate(-90)\" text-anchor=\"middle\">" + html_escaped(text.y) + "</text>";
  }
  return svg;
}

std::string nothing(const PlotText& text) {
  return begin_plot(text, kHeight) + "<text x=\"" + at(kLeft) + "\" y=\"" + at(kHeight / 2) +
         "\">nothing to show</text></svg>";
}

std::string colour(size_t series) {
  return "var(--s" + std::to_string(series % 5 + 1) + ")";
}

// Two to a line where they are long, upwards from `y`.
std::string legend(const std::vector<std::string>& names, double y) {
  struct Place {
    size_t name;
    double x;
    int line;
  };
  std::vector<Place> places;
  double x = kLeft;
  int line = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) continue;
    const double width = 30 + 6.4 * static_cast<double>(names[i].size());
    if (x > kLeft && x + width > kWidth) x = kLeft, ++line;
    places.push_back({i, x, line});
    x += width;
  }
  std::string svg;
  for (const Place& place : places) {
    const double top = y - 14 * (line - place.line);
    svg += "<rect x=\"" + at(place.x) + "\" y=\"" + at(top - 8) +
           "\" width=\"10\" height=\"10\" style=\"fill:" + colour(place.name) + "\"/><text x=\"" + at(place.x + 14) +
           "\" y=\"" + at(top + 1) + "\">" + html_escaped(names[place.name]) + "</text>";
  }
  return svg;
}

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string line_plot(const PlotText& text, const std::vector<PlotSeries>& series, const std::vector<PlotMark>& marks) {
  Extent x, y;
  for (const PlotSeries& one : series) {
    for (const PlotSeries::Point& point : one.points) {
      if (text.log_x && point.x <= 0) continue;
      x.add(point.x);
      y.add(point.y - point.half_width);
      y.add(point.y + point.half_width);
    }
  }
  if (x.empty()) return nothing(text);
  for (const PlotMark& mark : marks) x.add(mark.x);
  if (text.from_zero) y.add(0);
  if (text.log_x && x.low == x.high) x.low /= 10, x.high *= 10;
  x.widen();
  y.widen();
  const Axes axes(x, y, text.log_x);
  std::string svg = begin_plot(text, kHeight) + axes.grid();
  for (const PlotMark& mark : marks) {
    svg += "<line class=\"mark\" x1=\"" + at(axes.across(mark.x)) + "\" x2=\"" + at(axes.across(mark.x)) + "\" y1=\"" +
           at(kTop) + "\" y2=\"" + at(kHeight - kBottom) + "\"/>";
    const bool right = axes.across(mark.x) > kWidth * 0.7;
    svg += "<text x=\"" + at(axes.across(mark.x) + (right ? -4 : 4)) + "\" y=\"" + at(kTop + 12) + "\" text-anchor=\"" +
           (right ? "end" : "start") + "\">" + html_escaped(mark.text) + "</text>";
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < series.size(); ++i) {
    const PlotSeries& one = series[i];
    names.push_back(series.size() > 1 ? one.name : "");
    std::string path, upper, lower;
    bool band = false;
    for (const PlotSeries::Point& point : one.points) {
      if (text.log_x && point.x <= 0) continue;
      const std::string place = at(axes.across(point.x)) + " ";
      path += (path.empty() ? "M" : "L") + place + at(axes.down(point.y));
      upper += (upper.empty() ? "M" : "L") + place + at(axes.down(point.y + point.half_width));
      lower = "L" + place + at(axes.down(point.y - point.half_width)) + lower;
      band = band || point.half_width > 0;
    }
    if (one.line && band) svg += "<path style=\"fill:" + colour(i) + ";opacity:.18\" d=\"" + upper + lower + "Z\"/>";
    if (one.line) svg += "<path style=\"fill:none;stroke:" + colour(i) + ";stroke-width:2\" d=\"" + path + "\"/>";
    for (const PlotSeries::Point& point : one.points) {
      if (!one.dots || (text.log_x && point.x <= 0)) continue;
      svg += "<circle r=\"3.5\" style=\"fill:" + colour(i) + "\" cx=\"" + at(axes.across(point.x)) + "\" cy=\"" +
             at(axes.down(point.y)) + "\"><title>" +
             html_escaped(point.title.empty() ? figure(point.x) + ": " + figure(point.y) : point.title) +
             "</title></circle>";
    }
  }
  return svg + legend(names, kHeight - 4) + labels(text, kHeight) + "</svg>";
}

std::string heat_map(const PlotText& text, const HeatMap& map) {
  if (map.rows.empty() || map.columns.empty()) return nothing(text);
  double most = 0;
  for (const auto& row : map.values) {
    for (const double value : row) most = std::max(most, value);
  }
  const double wide = (kWidth - kLeft - kRight) / static_cast<double>(map.columns.size());
  const double high = (kHeight - kTop - kBottom) / static_cast<double>(map.rows.size());
  std::string svg = begin_plot(text, kHeight);
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kTop + static_cast<double>(r) * high;
    svg += "<text x=\"" + at(kLeft - 6) + "\" y=\"" + at(y + high / 2 + 4) + "\" text-anchor=\"end\">" +
           html_escaped(map.rows[r]) + "</text>";
    for (size_t c = 0; c < map.columns.size(); ++c) {
      const double value = map.values[r][c];
      const double x = kLeft + static_cast<double>(c) * wide;
      char opacity[16];
      std::snprintf(opacity, sizeof opacity, "%.3f", most > 0 ? 0.06 + 0.84 * value / most : 0.06);
      svg += "<rect x=\"" + at(x) + "\" y=\"" + at(y) + "\" width=\"" + at(wide - 2) + "\" height=\"" + at(high - 2) +
             "\" style=\"fill:var(--s1);opacity:" + opacity + "\"><title>" + html_escaped(map.titles[r][c]) +
             "</title></rect><text x=\"" + at(x + wide / 2 - 1) + "\" y=\"" + at(y + high / 2 + 4) +
             "\" text-anchor=\"middle\">" + figure(value) + "</text>";
    }
  }
  for (size_t c = 0; c < map.columns.size(); ++c) {
    svg += "<text x=\"" + at(kLeft + (static_cast<double>(c) + 0.5) * wide) + "\" y=\"" + at(kHeight - kBottom + 18) +
           "\" text-anchor=\"middle\">" + html_escaped(map.columns[c]) + "</text>";
  }
  return svg + labels(text, kHeight) + "</svg>";
}

std::string time_lines(const PlotText& text, const std::vector<TimeLine>& lines,
                       const std::vector<std::string>& names) {
  constexpr double kRow = 16;
  Extent x;
  for (const TimeLine& line : lines) {
    for (const TimeLine::Span& span : line.spans) x.add(span.begin), x.add(span.end);
  }
  if (x.empty()) return nothing(text);
  x.widen();
  const double height = kTop + kRow * static_cast<double>(lines.size()) + kBottom;
  const auto across = [&](double value) {
    return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  };
  std::string svg = begin_plot(text, height);
  const std::vector<double> ticks = ticks_between(x.low, x.high);
  for (const double tick : ticks) {
    svg += "<line class=\"grid\" x1=\"" + at(across(tick)) + "\" x2=\"" + at(across(tick)) + "\" y1=\"" + at(kTop) +
           "\" y2=\"" + at(height - kBottom) + "\"/><text x=\"" + at(across(tick)) + "\" y=\"" +
           at(height - kBottom + 18) + "\" text-anchor=\"middle\">" + tick_text(tick, ticks) + "</text>";
  }
  for (size_t row = 0; row < lines.size(); ++row) {
    const double y = kTop + kRow * static_cast<double>(row);
    svg += "<text class=\"small\" x=\"" + at(kLeft - 6) + "\" y=\"" + at(y + kRow - 5) + "\" text-anchor=\"end\">" +
           html_escaped(lines[row].name) + "</text>";
    for (const TimeLine::Span& span : lines[row].spans) {
      svg += "<rect x=\"" + at(across(span.begin)) + "\" y=\"" + at(y + 2) + "\" width=\"" +
             at(std::max(0.8, across(span.end) - across(span.begin))) + "\" height=\"" + at(kRow - 4) +
             "\" style=\"fill:" + colour(static_cast<size_t>(span.colour - 1)) + ";opacity:.8\"><title>" +
             html_escaped(span.title) + "</title></rect>";
    }
  }
  return svg + legend(names, height - 4) + labels(text, height) + "</svg>";
}

}  // namespace penstock
