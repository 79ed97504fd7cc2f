// The order of a ranking by scores, for sorts that need a strict weak ordering whatever the scores
// are.
#pragma once

namespace tessera {

/// Whether entry a with score x ranks before entry b with score y: the larger score first, NaN
/// last, of equal ones the lower place.
template <class Score, class Place>
bool ranks_before(Score x, Place a, Score y, Place b) {
  const bool no_x = x != x, no_y = y != y;
  if (no_x != no_y) return no_y;
  return no_x || x == y ? a < b : x > y;
}

}  // namespace tessera
