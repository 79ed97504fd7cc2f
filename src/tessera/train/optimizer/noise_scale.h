// The gradient noise scale: the batch, in tokens, at which the noise of a gradient is as large as
// what it says; far below it twice the batch is worth twice the steps, far above it nearly nothing
// (McCandlish, Kaplan, Amodei 2018, arXiv:1812.06162, sec. 2.2 and appendix A.1).
//   E |G_n|^2 = |G|^2 + S / n for a gradient over n tokens; from small batches n_i, of mean square
//   a and mean inverse size u, and the large one they make together, N tokens of square b,
//   S = (a - b) / (u - 1/N),  |G|^2 = b - S / N,  noise scale S / |G|^2
// S and |G|^2 are averaged apart over measurements, each with 0.95 of the weight of the next: one
// alone says little. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::train {

class NoiseScale {
 public:
  struct Small {
    double square;  // of the norm of the mean gradient of these tokens
    double tokens;
  };
  /// Micro-batches of an update, and the square of the norm of their mean. Of one alone nothing is
  /// learned.
  void add(const std::vector<Small>& small, double square, double tokens);
  /// Nothing as long as the averages say that noise is all there is, or none.
  std::optional<double> value() const;

  spec::Json to_json() const;
  void restore(const spec::Json& json, const std::string& where);

 private:
  double noise_ = 0, signal_ = 0;  // sums of S and of |G|^2
};

}  // namespace tessera::train
