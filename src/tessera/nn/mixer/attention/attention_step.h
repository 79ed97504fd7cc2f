// A decoding step of softmax attention (decode_step.h): every segment after what its row holds,
// branches of draft tokens included.
#pragma once

#include "tessera/nn/mixer/attention/attend.h"

namespace tessera::nn {

/// The config and the modules of an attention layer.
struct AttentionParts {
  const AttentionConfig& config;
  const spec::Scope& scope;
  const Linear &q, &k, &v, &o, &gate;  // the gate's weight is null where there is none
  const HeadNorms &q_norm, &k_norm, &v_norm;
  const LearnedScale& scale;
  const Position& position;
  const Norm* inner_norm = nullptr;
  WeightPtr sinks = nullptr;
};

/// Null where it does not know an option of the config, or a part has no step. What `parts` names
/// outlives it.
std::shared_ptr<const PartStep> attention_step(const AttentionParts& parts);

}  // namespace tessera::nn
