// Plots as SVG, for pages that open without a network: lines with bands, points, heat maps, time lines.
//
//   const std::string svg = line_plot({.title = "Throughput", .x = "loaders", .y = "images/s"}, {series}, {{13, "knee"}});
//
// Colours are CSS variables (--s1 … --s5, --grid, --text), so that a page's style sheet makes them light or dark; sizes are
//   the view box's, so that a plot is as wide as its place. Every point has a title, which browsers show beside the mouse.
// Text is escaped. Plots of nothing say so.
// Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace penstock {

struct PlotText {
  std::string title;
  std::string x;
  std::string y;
  bool log_x = false;     // powers of ten
  bool from_zero = true;  // the y axis
};

struct PlotSeries {
  struct Point {
    double x = 0;
    double y = 0;
    double half_width = 0;  // of y
    std::string title = {};
  };
  std::string name;
  std::vector<Point> points;
  bool line = true;
  bool dots = true;
};

struct PlotMark {
  double x = 0;
  std::string text;
};

std::string line_plot(const PlotText& text, const std::vector<PlotSeries>& series,
                      const std::vector<PlotMark>& marks = {});

struct HeatMap {
  std::vector<std::string> columns;
  std::vector<std::string> rows;
  std::vector<std::vector<double>> values;  // by row; darker is more
  std::vector<std::vector<std::string>> titles;
};
std::string heat_map(const PlotText& text, const HeatMap& map);

struct TimeLine {
  struct Span {
    double begin = 0;
    double end = 0;
    int colour = 1;  // of --s1 … --s5
    std::string title;
  };
  std::string name;
  std::vector<Span> spans;
};
// `names` of colours 1, 2, …, for the legend.
std::string time_lines(const PlotText& text, const std::vector<TimeLine>& lines, const std::vector<std::string>& names);

std::string html_escaped(const std::string& text);

}  // namespace penstock
