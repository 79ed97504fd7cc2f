#include "tessera/analysis/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::analysis {
namespace {

// pixels
constexpr double kPanelWidth = 420, kPanelHeight = 300, kLeft = 62, kRight = 14, kTop = 30,
                 kBottom = 40, kLegendLine = 15, kTitle = 36;
constexpr size_t kPlotColumns = 3;
// Okabe and Ito's colours, which differ without red and green; yellow darkened
constexpr std::array<const char*, kLinesOfPanel> kColours = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8a000", "#56b4e9", "#000000", "#e69f00"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string text_at(double x,
                    double y,
                    const std::string& text,
                    const char* anchor = "start",
                    const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, escaped(text));
}

/// 1024 -> "1k"; 0.001 -> "0.001".
std::string label_of(double value) {
  if (value >= 1024 && std::fmod(value, 1024) == 0) return fmt::format("{}k", value / 1024);
  return fmt::format("{:g}", value);
}

/// One logarithmic axis: [low, high] to [from, to] pixels, with a mark at every power of `base`.
struct Axis {
  double base, low, high, from = 0, to = 1;

  double at(double value) const {
    return from + (to - from) * std::log(value / low) / std::log(high / low);
  }
  std::vector<double> marks() const {
    std::vector<double> out;
    for (double v = low; v <= high * 1.0001; v *= base) out.push_back(v);
    return out;
  }
};

/// From the power of `base` at or below the smallest value to the one at or above the largest.
Axis axis_over(double base, double least, double most) {
  const auto power = [base](double exponent) { return std::pow(base, exponent); };
  const double low = std::floor(std::log(least) / std::log(base) + 1e-9);
  const double high = std::ceil(std::log(most) / std::log(base) - 1e-9);
  return {base, power(low), power(std::max(high, low + 1))};
}

struct Axes {
  Axis x, y;
};

Axes axes_of(const LinePlot& plot) {
  double x0 = std::numeric_limits<double>::infinity(), y0 = x0, x1 = 0, y1 = 0;
  for (const Panel& panel : plot.panels)
    for (const Line& line : panel.lines)
      for (const auto& [x, y] : line.points) {
        require(x > 0 && y > 0 && std::isfinite(x) && std::isfinite(y), "plot",
                "{}: the point ({}, {}) has no logarithm", line.name, x, y);
        x0 = std::min(x0, x);
        x1 = std::max(x1, x);
        y0 = std::min(y0, y);
        y1 = std::max(y1, y);
      }
  if (x1 == 0) return {axis_over(2, 1, 2), axis_over(10, 1, 10)};
  return {axis_over(2, x0, x1), axis_over(10, y0, y1)};
}

std::string grid(const LinePlot& plot, const Axes& axes) {
  std::string out;
  const double bottom = axes.y.from, top = axes.y.to, left = axes.x.from, right = axes.x.to;
  for (const double v : axes.x.marks()) {
    out += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" class=\"grid\"/>\n", axes.x.at(v), bottom,
                       top);
    out += text_at(axes.x.at(v), bottom + 14, label_of(v), "middle");
  }
  for (const double v : axes.y.marks()) {
    out += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" class=\"grid\"/>\n", left, axes.y.at(v),
                       right);
    out += text_at(left - 5, axes.y.at(v) + 4, label_of(v), "end");
  }
  out += text_at((left + right) / 2, bottom + 30, plot.x_label, "middle");
  out += text_at(0, 0, plot.y_label, "middle",
                 fmt::format(" transform=\"translate({:.1f} {:.1f}) rotate(-90)\"", left - 46,
                             (top + bottom) / 2)
                     .c_str());
  return out;
}

/// Lines of the given exponents through the lower left corner, cut at the top.
std::string slopes(const LinePlot& plot, const Axes& axes) {
  std::string out;
  for (const double slope : plot.slopes) {
    const double height = std::log(axes.y.high / axes.y.low) / slope;
    const double x = std::min(axes.x.high, axes.x.low * std::exp(height));
    const double y = axes.y.low * std::pow(x / axes.x.low, slope);
    out += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" class=\"slope\"/>\n", axes.x.from,
                       axes.y.from, axes.x.at(x), axes.y.at(y));
    out += text_at(axes.x.at(x) - 4, axes.y.at(y) - 4, fmt::format("T^{:g}", slope), "end",
                   " class=\"faint\"");
  }
  return out;
}

std::string line_of(const Line& line, const char* colour, const Axes& axes) {
  std::string path, dots;
  for (const auto& [x, y] : line.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", axes.x.at(x), axes.y.at(y));
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n",
                        axes.x.at(x), axes.y.at(y), colour);
  }
  if (line.points.empty()) return "";
  return fmt::format("<path d=\"{}\" stroke=\"{}\" class=\"line\"/>\n", path, colour) + dots;
}

/// How high a panel is with its legend below, in two columns.
double height_of(const Panel& panel) {
  return kPanelHeight + kLegendLine * static_cast<double>((panel.lines.size() + 1) / 2);
}

std::string panel_at(const Panel& panel, const LinePlot& plot, double x, double y, Axes axes) {
  require(panel.lines.size() <= kLinesOfPanel, "plot", "{}: {} lines; expected at most {}",
          panel.title, panel.lines.size(), kLinesOfPanel);
  axes.x.from = kLeft;
  axes.x.to = kPanelWidth - kRight;
  axes.y.from = kPanelHeight - kBottom;
  axes.y.to = kTop;
  std::string out = fmt::format("<g transform=\"translate({:.1f} {:.1f})\">\n", x, y);
  out +=
      text_at((axes.x.from + axes.x.to) / 2, kTop - 9, panel.title, "middle", " class=\"title\"");
  out += grid(plot, axes) + slopes(plot, axes);
  for (size_t i = 0; i < panel.lines.size(); ++i) {
    out += line_of(panel.lines[i], kColours[i], axes);
    const double at_x = kLeft + (i % 2 == 0 ? 0 : (kPanelWidth - kLeft) / 2);
    const double at_y = kPanelHeight + kLegendLine * static_cast<double>(i / 2) + 4;
    out += fmt::format("<path d=\"M{:.1f} {:.1f}h18\" stroke=\"{}\" class=\"line\"/>\n", at_x, at_y,
                       kColours[i]);
    out += text_at(at_x + 23, at_y + 4, panel.lines[i].name);
  }
  return out + "</g>\n";
}

}  // namespace

std::string svg_of(const LinePlot& plot) {
  const Axes axes = axes_of(plot);
  std::string body;
  double y = kTitle;
  for (size_t i = 0; i < plot.panels.size(); i += kPlotColumns) {
    double height = 0;
    for (size_t j = i; j < std::min(i + kPlotColumns, plot.panels.size()); ++j) {
      body += panel_at(plot.panels[j], plot, kPanelWidth * static_cast<double>(j - i), y, axes);
      height = std::max(height, height_of(plot.panels[j]));
    }
    y += height + 12;
  }
  const double width =
      kPanelWidth * static_cast<double>(std::min(kPlotColumns, plot.panels.size()));
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n",
      std::max(width, kPanelWidth), y);
  out +=
      "<style>.grid{stroke:#ddd;fill:none}.slope{stroke:#999;stroke-dasharray:4 4;fill:none}"
      ".line{stroke-width:1.8;fill:none}.title{font-weight:bold}.faint{fill:#777}"
      "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  out += text_at(12, 22, plot.title, "start", " font-size=\"15\" font-weight=\"bold\"");
  return out + body + "</svg>\n";
}

}  // namespace tessera::analysis
