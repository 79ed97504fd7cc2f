// A predictor with its weights (predictor_spec.h).
#pragma once

#include "tessera/model/predictor_spec.h"
#include "tessera/model/stack.h"

namespace tessera::model {

class Predictor {
 public:
  /// `spec` must outlive it.
  Predictor(const PredictorSpec& spec, const nn::WeightSource& source);

  const Stack& stack() const { return stack_; }
  /// Hidden states [N, D] after its final norm, of tokens whose hidden states it reads and, where
  /// it reads tokens, whose ids in the context's batch are those that many places further on.
  /// `trunk` embeds them.
  Tensor forward(const Tensor& hidden_ND, const Stack& trunk, nn::Context& context) const;

 private:
  const PredictorSpec& spec_;
  std::unique_ptr<nn::Norm> token_norm_, hidden_norm_;
  nn::Linear join_;
  Stack stack_;
};

}  // namespace tessera::model
