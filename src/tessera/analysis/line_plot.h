// Plots with logarithmic axes as SVG text: small panels in a row, each with a few lines, so
// that fifty of them stay legible. No more than the reports need.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::analysis {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x and y above 0; drawn in this order
};

/// At most kLinesOfPanel lines.
struct Panel {
  std::string title;
  std::vector<Line> lines;
};
inline constexpr size_t kLinesOfPanel = 8;

struct LinePlot {
  std::string title, x_label, y_label;
  std::vector<Panel> panels;        // all with the same axes, that of x in powers of 2, of y of 10
  std::vector<double> slopes = {};  // dashed lines of these exponents below every panel's lines
};

/// A whole SVG document. Throws Error(internal) on a point that has no logarithm.
std::string svg_of(const LinePlot& plot);

}  // namespace tessera::analysis
