// A predictor with its weights (predictor_spec.h).
#pragma once

#include "tessera/model/predictor_spec.h"
#include "tessera/model/stack.h"

namespace tessera::model {

class Predictor {
 public:
  /// `spec` must outlive it.
  Predictor(const PredictorSpec& spec,
            const nn::WeightSource& source,
            const ops::ProductSettings& products = {});

  const Stack& stack() const { return stack_; }
  /// Hidden states [N, D] after its final norm, for the given hidden states and, if it reads
  /// tokens, the ids in the context's batch, which are those that many positions later. `trunk`
  /// embeds them.
  Tensor forward(const Tensor& hidden_ND, const Stack& trunk, nn::Context& context) const;

 private:
  const PredictorSpec& spec_;
  std::unique_ptr<nn::Norm> token_norm_, hidden_norm_;
  nn::Linear join_;
  Stack stack_;
};

}  // namespace tessera::model
