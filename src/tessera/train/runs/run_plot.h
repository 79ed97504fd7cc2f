// Curves of several runs in one frame, as standalone SVG. Torch-free.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::train {

struct Curve {
  size_t run = 0;  // number of the run, which selects its colour
  std::string name;
  std::vector<std::pair<double, double>> points;  // finite, x ascending
  bool strong = false;                            // thick, points are dots titled by their value
};

/// Text as HTML and SVG write it.
std::string escaped(const std::string& text);
/// Colour of a run; later ones repeat it with dashes.
std::string colour_of(size_t run);

/// Distance of the ticks of an axis: 1, 2 or 5 times a power of ten, a third to a sixth of a range.
double tick_of(double range);
/// A tick's label: four digits, with k, M or G from 10,000 on.
std::string tick_text(double value);

/// `x` and `y` are the labels of the axes. What lies above the frame is cut off: it is as high as
/// the curves are after their first twentieth. Curves of many points are thinned to what is seen.
std::string plot_of(const std::string& x, const std::string& y, const std::vector<Curve>& curves);

}  // namespace tessera::train
