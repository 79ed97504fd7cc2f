// A strict weak ordering by score for any scores, NaN included.
#pragma once

namespace tessera {

/// True if entry a with score x ranks before entry b with score y: the larger score first, NaN
/// last; ties go to the lower index.
template <class Score, class Place>
bool ranks_before(Score x, Place a, Score y, Place b) {
  const bool no_x = x != x, no_y = y != y;
  if (no_x != no_y) return no_y;
  return no_x || x == y ? a < b : x > y;
}

}  // namespace tessera
