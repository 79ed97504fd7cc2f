// The decoding step of a mixture of experts (decode_step.h): the team shares out the columns of all
// experts that have tokens, and a token's outputs are added in the order of its choices.
#pragma once

#include <functional>

#include "tessera/nn/ffn/moe.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

/// The parts of a mixture of experts.
struct MoeParts {
  const MoeConfig& config;
  const Router& router;
  const Ffn& expert;
  const Ffn* shared;                                   // null: none
  const Linear &shared_gate, &latent_in, &latent_out;  // without a weight: none
  WeightPtr bias;
  /// The norm of a name (MoeConfig::norms()); null: none.
  std::function<const Norm*(const char*)> norm;
  int64_t d_in, d_model;  // channels that the layer reads and writes
};

/// Null if a part has no step. `parts` outlive it.
std::shared_ptr<const PartStep> moe_step(const MoeParts& parts,
                                         const ops::ProductSettings& products);

}  // namespace tessera::nn
