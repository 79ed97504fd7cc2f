// Which token a layer mixes into which, whatever it is made of: attention, a recurrence, a
// convolution. The input of its branch is taken away at one token, and the change of its output is
// looked at.
//   m[i][j] = |y_i(x) - y_i(x with x_j := mean of x)| / |y_i(x)|
// Where the mixer shows the weights that its heads give (attention: the softmax), these too.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::serve {

class MixingMap {
 public:
  /// Of branch `name` ("layers.3.mixer", "encoder.layers.0.mixer") for one text. Throws
  /// Error(input) where there is no such branch.
  MixingMap(const model::Model& model, std::vector<int64_t> ids, std::string name);

  /// Computes some more columns in one call of the model of about so many tokens; whether those
  /// were the last.
  bool step(int64_t tokens = 256);
  /// One row for each token, once the last step has been made.
  const std::vector<std::vector<double>>& values() const { return values_; }
  /// What each head gives each token, a map for each; none where the mixer shows none.
  std::vector<std::vector<std::vector<double>>> weights() const;

 private:
  /// What the branch gives for copies of the text, one for each of `without`, whose input lacks
  /// that token; -1 = none.
  Tensor outputs(const std::vector<int64_t>& without) const;
  /// As far as the branch.
  void run(const nn::Batch& batch, model::ForwardOptions options) const;

  const model::Model& model_;
  const std::vector<int64_t> ids_;
  const std::string name_;
  int64_t layers_ = 0;  // so many have to run
  Tensor whole_TD_;
  std::vector<std::vector<double>> values_;
  int64_t next_ = 0;
};

}  // namespace tessera::serve
