// The decoding step of compressed attention (decode_step.h): one token of every row.
#pragma once

#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/mixer/attention/compressed_attention_parts.h"

namespace tessera::nn {

/// The weights and parts of compressed attention; those that a config does not have are null.
struct CompressedAttentionParts {
  const CompressedAttentionConfig& config;
  const Linear &q_a, &q, &kv, &index_q, &index_weights;
  const GroupedLinear& o_a;
  const Linear& o;
  const Norm *q_a_norm, *query_norm, *kv_norm;
  const EntryPool *pool, *index_pool;
  WeightPtr sinks;
  const Position& position;
};

/// Null if it does not support an option of the config, or a part has no step. `parts` outlive it.
std::shared_ptr<const PartStep> compressed_attention_step(const CompressedAttentionParts& parts,
                                                          const ops::ProductSettings& products);

}  // namespace tessera::nn
