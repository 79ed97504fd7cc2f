// Multi-token prediction (MTP): predictors of tokens further ahead on top of a decoder. The
// decoder's hidden state h_t at t gives the logits of token t + 1; predictor k = 1, 2, .. gives
// those of t + 1 + k, with the same head:
//   reads "trunk", no token       layers on h_t alone: parallel heads.
//                                 Gloeckle et al. 2024, arXiv:2404.19737, sec. 2
//   reads "previous", with token  layers on W [norm(embedding of token t + k) ; norm(h')], h' from
//                                 predictor k - 1: modules one after another.
//                                 DeepSeek-AI 2024, arXiv:2412.19437, sec. 2.2
// Inputs are hidden states after the final norm. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// Parses `predictors` (or its alias `mtp`) of a spec whose own stack has been parsed.
void read_predictors(const Json& json, ModelSpec& out);
Json resolve_predictors(const ModelSpec& spec);
Json predictors_schema(const Json& stack_properties);

/// The projection that joins token and hidden state, below "predictors.0".
spec::ParamList join_parameters(const PredictorSpec& predictor);

}  // namespace tessera::model
