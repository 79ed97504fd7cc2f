// Fingerprint of base weights, saved with an adapter: other weights of the same spec are not its
// base model.
#pragma once

#include <set>
#include <string>

#include "tessera/model/model.h"

namespace tessera::infer {

/// For each weight its type, a hash of 64 positions of its bytes, and some of its values. Adapters
/// are ignored, and so are the weights in `but`.
spec::Json weights_fingerprint(const model::Weights& weights,
                               const std::set<std::string>& but = {});

/// Throws Error(usage) with the name of the first weight that differs. A weight of another type (a
/// quantized file of the same model) matches if its values agree up to rounding. `whose` begins the
/// message.
void check_base(const spec::Json& print, const model::Weights& weights, const std::string& whose);

/// A hash of 64 runs of 64 bytes, spread evenly over the weight, first and last included; of all
/// bytes of a small weight. Training changes every value, so any run detects it. Includes the
/// adapter of an adapted weight.
uint64_t sampled_hash(const ops::Weight& weight);

}  // namespace tessera::infer
