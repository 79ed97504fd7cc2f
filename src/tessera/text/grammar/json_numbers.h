// Ranges of JSON numbers as parts of grammars.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

struct NumberRange {
  std::optional<double> least, most;
  bool above = false, below = false;  // bounds are exclusive
  bool whole = false;                 // integers only, without a fraction
  int64_t multiple_of = 1;            // of integers without bounds
};

/// Returns the node of numbers in the range: without bounds in any notation, otherwise without
/// exponents. At most 15 significant digits.
int32_t add_number(Grammar& grammar, const NumberRange& range);

}  // namespace tessera::text
