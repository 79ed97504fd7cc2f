// Gradient noise scale: the batch size, in tokens, at which noise and signal of a gradient are
// equal. Far below it, doubling the batch is worth doubling the steps, far above it nearly nothing
// (McCandlish, Kaplan, Amodei 2018, arXiv:1812.06162, sec. 2.2 and appendix A.1).
//   E |G_n|^2 = |G|^2 + S / n for a gradient over n tokens; from small batches n_i, of mean square
//   a and mean inverse size u, and the large one they make together, N tokens of square b,
//   S = (a - b) / (u - 1/N),  |G|^2 = b - S / N,  noise scale S / |G|^2
// S and |G|^2 are averaged separately over measurements, with decay 0.95, because a single
// measurement is too noisy. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::train {

class NoiseScale {
 public:
  struct Small {
    double square;  // squared norm of the mean gradient of these tokens
    double tokens;
  };
  /// Adds the micro-batches of an update, and the squared norm of their mean. A single micro-batch
  /// has no effect.
  void add(const std::vector<Small>& small, double square, double tokens);
  /// nullopt while the averages give no finite positive value.
  std::optional<double> value() const;

  spec::Json to_json() const;
  void restore(const spec::Json& json, const std::string& where);

 private:
  double noise_ = 0, signal_ = 0;  // sums of S and of |G|^2
};

}  // namespace tessera::train
