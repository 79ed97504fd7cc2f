// What an adapter knows of the model that it was trained beside: other weights under the same spec
// are not that model.
#pragma once

#include <set>
#include <string>

#include "tessera/model/model.h"

namespace tessera::infer {

/// By weight its type, a hash of 64 places of its bytes, and some of its numbers; adapters beside
/// the weights count for nothing, and those named `but` are left out.
spec::Json weights_fingerprint(const model::Weights& weights,
                               const std::set<std::string>& but = {});

/// Throws Error(usage) naming the first weight that is another. A weight of another type (a file in
/// blocks beside the folder it was made from) is the same where its numbers agree as well as
/// rounding lets them; `whose` begins the message.
void check_base(const spec::Json& print, const model::Weights& weights, const std::string& whose);

/// A hash of 64 runs of 64 bytes of a weight, evenly over it, the first and the last among them; of
/// all of a small one. Training moves every number, so that any of them tells. Of an adapted one,
/// of what stands beside it too.
uint64_t sampled_hash(const ops::Weight& weight);

}  // namespace tessera::infer
