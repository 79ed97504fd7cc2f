// The integer of a spec at which its plan has a given cost: models of equal size, of equal
// arithmetic or of equal state. Nothing is allocated.
//
//   const Solution found = solve(spec_json, {.key = "ffn.d_hidden", .cost = PlanCost::parameters,
//                                            .target = 10e6, .multiple = 8});
#pragma once

#include <string>

#include "tessera/model/plan.h"

namespace tessera::model {

enum class PlanCost {
  parameters,       // every tensor once
  body_parameters,  // without the token table and an untied head
  flops,            // forward, per token, at the context
  mean_flops,       // forward, per token, mean over the positions of a text of `context` tokens
  state_bytes,      // of one sequence of `context` tokens
};
/// "parameters", "FLOPs per token", ...
const char* name_of(PlanCost cost);

/// `context`: tokens; 0 = usual_context().
double cost_of(const ModelSpec& spec,
               PlanCost cost,
               int64_t context = 0,
               spec::KvType kv = spec::KvType::f32);

struct SolveGoal {
  /// A path in the spec. "ffn.d_hidden" is changed wherever the spec has it, of every layer and
  /// stack; places with different values keep their proportion to the first. A spec that has it
  /// nowhere gets it in every "ffn" that it has. A path with an index ("layers[0].ffn.d_hidden")
  /// is one place.
  std::string key;
  PlanCost cost = PlanCost::parameters;
  double target = 0;
  int64_t multiple = 1;     // values are multiples of it
  double tolerance = 0.01;  // of the target
  int64_t context = 0;      // tokens, as for cost_of()
  spec::KvType kv = spec::KvType::f32;
};

struct Solution {
  Json spec;          // as it was given, with the key changed
  int64_t value = 0;  // of the key, at its first place
  double cost = 0;
};

/// The multiple whose cost is nearest to the target, the smaller of two. Bisection over the costs
/// of plans, which grow with the key; where a value between is no valid spec (heads that do not
/// divide), the first 1024 multiples are tried one by one. Throws Error(usage) that names the two
/// nearest where none is within the tolerance, and where the cost does not depend on the key;
/// Error(spec) where no value is valid.
Solution solve(const Json& spec, const SolveGoal& goal);

}  // namespace tessera::model
