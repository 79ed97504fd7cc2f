// The cost of an architecture, computed from its tables without allocating it.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

struct Plan {
  int64_t parameters = 0;         // every tensor once
  int64_t active_parameters = 0;  // used for one token, embeddings and head included once
  int64_t matrix_parameters = 0;  // in matrix products, the head included (tied or not)
  double flops_per_token = 0;  // forward, multiply-add = 2, at `context` tokens; with an encoder,
                               // for one source and one target token
  int64_t context = 0;
  int64_t state_bytes_per_token = 0;  // grows with every token; without the rest of pages
  int64_t state_bytes_fixed = 0;      // recurrent states, full ring buffers, keys of the source
  int64_t state_bytes = 0;            // of one row after `context` tokens
  int64_t snapshot_every = 0;         // tokens between snapshots of a row, 0 = none
  int64_t snapshots = 0;              // of one row after `context` tokens, for the prefix cache
  int64_t snapshot_bytes = 0;         // copied for these, and stored by them
};

/// Costs at `context` tokens, with a source of `source` tokens if there is an encoder (-1 = as
/// many), and keys and values stored as `kv`.
Plan make_plan(const ModelSpec& spec,
               int64_t context,
               int64_t source = -1,
               spec::KvType kv = spec::KvType::f32);
/// Default context of a plan, tokens; less if the model, or its encoder, supports less.
inline constexpr int64_t kUsualContext = 2048;
int64_t usual_context(const ModelSpec& spec);

/// Number of encoder tokens for features: of an image of its size, of the longest audio; 0 = it
/// reads ids, or features of any size.
int64_t feature_tokens(const ModelSpec& stack);
/// The part of flops_per_token in one branch, without norms and residual.
double branch_flops(const ModelSpec& spec,
                    int64_t layer,
                    const BranchSpec& branch,
                    int64_t context);
/// Adds the prefix cache's memory for one row of `plan.context` tokens: a state that can be
/// truncated anywhere is stored once, others at the end and every `every` tokens.
void add_snapshots(Plan& plan,
                   const ModelSpec& spec,
                   int64_t every,
                   spec::KvType kv = spec::KvType::f32);
Json to_json(const Plan& plan);

}  // namespace tessera::model
