// What a position scheme adds to the scores of listed keys: one number per entry of the lists, so
// that memory is linear in the keys although the scheme is defined on all pairs.
#pragma once

#include <limits>
#include <vector>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/listed_attention.h"

namespace tessera::ops {

/// Positions of the keys of a memory: first, first + step, .., none after `last`.
struct KeyPlaces {
  int64_t first = 0, step = 1;
  int64_t last = std::numeric_limits<int64_t>::max();
  int64_t of(int64_t index) const { return std::min(first + index * step, last); }
};

/// The same without gradients to what it holds.
ScoreTerm detached(ScoreTerm term);

/// Queries at positions start, start + 1, ..; lists by query and head. A table of distances is read
/// where the lists point; of a function, the keys between the first and the last listed of each
/// memory meet the queries of the block. Throws Error(internal) for a term of the weights.
ListBias listed_term(const ScoreTerm& term,
                     double scale,
                     int64_t start,
                     std::vector<KeyPlaces> places);

}  // namespace tessera::ops
