// The decoding step of latent attention in its absorbed form (decode_step.h): every segment after
// the tokens of its row, branches of draft tokens included.
#pragma once

#include "tessera/nn/mixer/attention/latent_attention.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

/// The entries of `select` follow the latents in a state.
inline constexpr size_t kLatentSelectSlot = 1;

/// The weights and parts of latent attention; q_a is null where queries are projected directly.
struct LatentAttentionParts {
  const LatentAttentionConfig& config;
  const Linear &q_a, &q, &kv_a, &o;
  WeightPtr k_b, v_b;
  const Norm *q_norm, *kv_norm;  // null: none
  const Position& position;
  const Select* select;  // null: none
};

/// Null if it does not support an option of the config, or a part has no step. `parts` outlive it.
std::shared_ptr<const PartStep> latent_attention_step(const LatentAttentionParts& parts,
                                                      const ops::ProductSettings& products);

}  // namespace tessera::nn
