// Softmax attention of a decoding step that is recorded once and replayed (ops/graph.h): its shapes
// do not depend on how long the rows are. Each row has one query, at a position that only the
// device knows, and its keys lie in memory of a fixed number of entries, of which later ones are
// hidden.
#pragma once

#include <vector>

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// Whether these are calls of a recorded step: KeyValues::place is given.
bool is_recorded(const std::vector<AttentionCall>& calls);
/// Their rows one after another, [R, H, Dv]. All calls have the same options. Windows, soft caps,
/// sinks and tables by distance are served; patterns, functions of scores or weights, dropout and
/// far queries are not: Error(internal).
Tensor recorded_attention(const std::vector<AttentionCall>& calls);

}  // namespace tessera::ops
