// What the pattern "prefix" asks of whoever makes calls: a prefix is read in one call, and what of
// it is a target would be seen. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// Whether some layer of a causal stack has the pattern.
bool reads_prefix(const ModelSpec& spec);

/// Tokens of the longest prefix over the layers where the first `given` tokens of a document are
/// given (nn::Segment::prefix; 0 = not said); 0 = none.
int64_t longest_prefix(const ModelSpec& spec, int64_t given);

}  // namespace tessera::model
