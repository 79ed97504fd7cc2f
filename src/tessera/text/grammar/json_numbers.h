// Ranges of JSON numbers as parts of grammars.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

struct NumberRange {
  std::optional<double> least, most;
  bool above = false, below = false;  // the bounds themselves do not belong to it
  bool whole = false;                 // integers alone, written without a fraction
  int64_t multiple_of = 1;            // of whole numbers without bounds
};

/// The number of a node, whose texts are numbers of the range; without bounds in any notation, else
/// without exponents. At most 15 digits that count.
int32_t add_number(Grammar& grammar, const NumberRange& range);

}  // namespace tessera::text
