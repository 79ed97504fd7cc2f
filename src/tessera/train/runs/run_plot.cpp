#include "tessera/train/runs/run_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tessera::train {
namespace {

constexpr double kWidth = 460, kHeight = 290, kLeft = 56, kRight = kWidth - 12, kTop = 12,
                 kBottom = kHeight - 38;

// distinct for colour-blind readers (Okabe and Ito 2008); black is left out, since a
// page may be dark
constexpr std::array kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

struct Axis {
  double low, high;
  double begin, end;  // on the page
  double at(double value) const {
    return begin + (end - begin) * (high > low ? (value - low) / (high - low) : 0.5);
  }
};

/// From the least value to the largest after the first twentieth of x.
Axis height_of(const std::vector<Curve>& curves, double right) {
  double low = INFINITY, late = -INFINITY, high = -INFINITY;
  for (const Curve& curve : curves)
    for (const auto& [x, y] : curve.points) {
      low = std::min(low, y), high = std::max(high, y);
      if (x > 0.05 * right) late = std::max(late, y);
    }
  if (std::isfinite(late)) high = late;
  if (!std::isfinite(low)) low = 0, high = 1;
  const double margin = 0.05 * std::max(high - low, 1e-6 * std::max(std::fabs(high), 1e-3));
  return {low - margin, high + margin, kBottom, kTop};
}

/// Where there are more than a few for every pixel, the least and the largest of each column.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& all,
                                               const Axis& across) {
  if (static_cast<double>(all.size()) < 3 * (kRight - kLeft)) return all;
  std::vector<std::pair<double, double>> out;
  for (size_t begin = 0, end; begin < all.size(); begin = end) {
    const double column = std::floor(across.at(all[begin].first));
    size_t least = begin, largest = begin;
    for (end = begin; end < all.size() && std::floor(across.at(all[end].first)) == column; ++end) {
      if (all[end].second < all[least].second) least = end;
      if (all[end].second > all[largest].second) largest = end;
    }
    out.push_back(all[std::min(least, largest)]);
    if (least != largest) out.push_back(all[std::max(least, largest)]);
  }
  return out;
}

std::string grid_of(const Axis& across, const Axis& up) {
  std::string svg;
  const double by_x = tick_of(across.high), by_y = tick_of(up.high - up.low);
  for (int i = 0; i * by_x <= across.high; ++i)
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" class=\"grid\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        across.at(i * by_x), kTop, kBottom, kBottom + 14, tick_text(i * by_x));
  for (double i = std::ceil(up.low / by_y); i * by_y <= up.high; ++i)
    svg += fmt::format(
        "<line x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" class=\"grid\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        up.at(i * by_y), kLeft, kRight, kLeft - 6, up.at(i * by_y) + 4, tick_text(i == 0 ? 0.0 : i * by_y));
  return svg;
}

std::string line_of(const Curve& curve, const Axis& across, const Axis& up) {
  std::string points, dots;
  for (const auto& [x, y] : thinned(curve.points, across)) {
    // far outside numbers are no coordinates
    const double py = std::clamp(up.at(y), -kHeight, 2 * kHeight);
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", across.at(x), py);
    if (curve.strong)
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"><title>{}: {:.5g} at "
          "{:.6g}</title></circle>\n",
          across.at(x), py, colour_of(curve.run), escaped(curve.name), y, x);
  }
  if (points.empty()) return "";
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" {}{}/>\n", points,
                     colour_of(curve.run),
                     curve.strong ? "stroke-width=\"2\"" : "stroke-width=\"1\" opacity=\"0.6\"",
                     curve.run >= kColours.size() ? " stroke-dasharray=\"5 3\"" : "") +
         dots;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string colour_of(size_t run) {
  return kColours[run % kColours.size()];
}

double tick_of(double range) {
  if (!(range > 0)) return 1;
  const double size = std::pow(10.0, std::floor(std::log10(range / 5)));
  for (const double by : {1.0, 2.0, 5.0})
    if (range / (size * by) <= 6) return size * by;
  return size * 10;
}

std::string tick_text(double value) {
  for (const auto& [unit, name] : {std::pair{1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (std::fabs(value) >= 10 * unit || (unit > 1e3 && std::fabs(value) >= unit))
      return fmt::format("{:.4g}{}", value / unit, name);
  return fmt::format("{:.4g}", value);
}

std::string plot_of(const std::string& x, const std::string& y, const std::vector<Curve>& curves) {
  double right = 0;
  for (const Curve& curve : curves)
    if (!curve.points.empty()) right = std::max(right, curve.points.back().first);
  const Axis across{0, right > 0 ? right : 1, kLeft, kRight}, up = height_of(curves, right);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" aria-label=\"{3} by {2}\">\n",
      kWidth, kHeight, escaped(x), escaped(y));
  svg += grid_of(across, up);
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" class=\"title\">{} by {}</text>\n",
      (kLeft + kRight) / 2, kHeight - 6, escaped(y), escaped(x));
  // a frame of its own cuts off what lies outside
  svg += fmt::format(
      "<svg x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{3}\" viewBox=\"{0} {1} {2} {3}\">\n", kLeft,
      kTop - 4, kRight - kLeft + 4, kBottom - kTop + 8);
  for (const Curve& curve : curves) svg += line_of(curve, across, up);
  return svg + "</svg></svg>\n";
}

}  // namespace tessera::train
