// What an architecture costs, from its tables alone: nothing is allocated.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

struct Plan {
  int64_t parameters = 0;         // every tensor once
  int64_t active_parameters = 0;  // those one token touches, embeddings and head included once
  int64_t matrix_parameters = 0;  // those in products, the head included (tied or not)
  double flops_per_token = 0;  // forward, multiply-add = 2, at `context` tokens; with an encoder,
                               // of one token of the source and one of the target
  int64_t context = 0;
  int64_t state_bytes_per_token = 0;  // grows with every token; of what is held: pages round it up
  int64_t state_bytes_fixed = 0;      // recurrent states, full rings, keys of the source
  int64_t state_bytes = 0;            // of one row after `context` tokens
  int64_t snapshot_every = 0;         // tokens between snapshots of a row, 0 = none asked for
  int64_t snapshots = 0;              // of one row after `context` tokens, for the prefix cache
  int64_t snapshot_bytes = 0;         // copied for these, and held by them
};

/// Costs at a context of `context` tokens, with a source of `source` tokens where there is an
/// encoder (-1 = as many), and keys and values stored as `kv`.
Plan make_plan(const ModelSpec& spec,
               int64_t context,
               int64_t source = -1,
               spec::KvType kv = spec::KvType::f32);
/// The context of a plan where none is given: so many tokens, fewer where the model, or its encoder,
/// takes no more.
inline constexpr int64_t kUsualContext = 2048;
int64_t usual_context(const ModelSpec& spec);

/// Tokens of what a stack reads instead of ids: of an image of its size, of the longest sound; 0 =
/// it reads ids, or features of any size.
int64_t feature_tokens(const ModelSpec& stack);
/// The part of flops_per_token that one branch has, its norms and the joining apart.
double branch_flops(const ModelSpec& spec,
                    int64_t layer,
                    const BranchSpec& branch,
                    int64_t context);
/// Adds what a prefix cache keeps of one row of `plan.context` tokens: a state that can be cut
/// anywhere is kept once, others at the end and every `every` tokens besides.
void add_snapshots(Plan& plan,
                   const ModelSpec& spec,
                   int64_t every,
                   spec::KvType kv = spec::KvType::f32);
Json to_json(const Plan& plan);

}  // namespace tessera::model
