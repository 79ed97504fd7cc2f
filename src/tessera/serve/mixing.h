// Token mixing of a layer, for any mixer (attention, recurrence, convolution): replaces the
// branch's input at one token and measures the change of its output.
//   m[i][j] = |y_i(x) - y_i(x with x_j := mean of x)| / |y_i(x)|
// For mixers that expose the weights of their heads (attention: the softmax), these too.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::serve {

class MixingMap {
 public:
  /// For branch `name` ("layers.3.mixer", "encoder.layers.0.mixer") and one text. Throws
  /// Error(input) if there is no such branch.
  MixingMap(const model::Model& model, std::vector<int64_t> ids, std::string name);

  /// Computes further columns in one model call of about `tokens` tokens; returns true after the
  /// last.
  bool step(int64_t tokens = 256);
  /// [tokens, tokens], complete after the last step.
  const std::vector<std::vector<double>>& values() const { return values_; }
  /// One map per head [heads, tokens, tokens]; empty if the mixer exposes none.
  std::vector<std::vector<std::vector<double>>> weights() const;

 private:
  /// Outputs of the branch for copies of the text, each with the input of token without[i]
  /// replaced; -1 = none.
  Tensor outputs(const std::vector<int64_t>& without) const;
  /// Runs the model up to the branch.
  void run(const nn::Batch& batch, model::ForwardOptions options) const;

  const model::Model& model_;
  const std::vector<int64_t> ids_;
  const std::string name_;
  int64_t layers_ = 0;  // number of layers to run
  Tensor whole_TD_;
  std::vector<std::vector<double>> values_;
  int64_t next_ = 0;
};

}  // namespace tessera::serve
