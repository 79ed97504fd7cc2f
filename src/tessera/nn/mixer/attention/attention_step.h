// A decoding step of softmax attention (decode_step.h): every segment after what its row holds,
// branches of draft tokens included.
#pragma once

#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/nn/mixer/attention/head_gate.h"
#include "tessera/nn/mixer/attention/head_norms.h"
#include "tessera/nn/mixer/attention/score_scaling.h"

namespace tessera::nn {

/// The config and the modules of an attention layer.
struct AttentionParts {
  const AttentionConfig& config;
  const spec::Scope& scope;
  const Linear &q, &k, &v, &o;
  const HeadNorms &q_norm, &k_norm, &v_norm;
  const ScoreScaling& scale;
  const HeadGate& gate;
  const Position& position;
  const Norm* inner_norm = nullptr;
  WeightPtr sinks = nullptr;
};

/// Null where it does not know an option of the config, or a part has no step. What `parts` names
/// outlives it.
std::shared_ptr<const PartStep> attention_step(const AttentionParts& parts,
                                               const ops::ProductSettings& products);

}  // namespace tessera::nn
