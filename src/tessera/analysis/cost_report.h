// A run of `tessera bench mixers` for people: a table, a page, a plot, a list for spreadsheets.
#pragma once

#include "tessera/analysis/cost.h"

namespace tessera::analysis {

/// One line per mechanism, for a terminal, with the failures below.
std::string cost_text(const CostRun& run);
/// A page: how it was measured, the same table per slot, the plots of `plots` (file name, caption),
/// and what does not hold.
std::string cost_markdown(const CostRun& run,
                          const std::vector<std::pair<std::string, std::string>>& plots);
/// slot,mechanism,pass,length,seconds,peak_bytes
std::string cost_csv(const CostRun& run);
/// Time, or memory, of a pass against the tokens; panels by slot and claim.
std::string cost_svg(const CostRun& run, Pass pass, bool memory = false);

}  // namespace tessera::analysis
