// Experts that come and go in training (recipe "experts"): when, and which. Torch-free.
//
// After every update the choices of each router are added up. Once as many updates are counted as
// "remove" judges by, the experts whose count is below its part of an even share go, the least used
// first, as long as the mixture keeps as many as it must and a token needs; where "grow" names the
// step, copies of the most used ones come (convert/experts.h). Counting then begins anew. Spec,
// weights, moments and counts change together between two updates, so that every checkpoint holds
// the model as it is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/convert/experts.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// How often experts were chosen since they last changed or were last judged.
struct ExpertCounts {
  int64_t updates = 0;
  std::map<std::string, std::vector<double>> by_router;  // "layers.3.ffn.router"

  Json to_json() const;
  /// Throws Error(file) that begins with `where` when it is not what to_json() gave.
  static ExpertCounts of(const Json& json, const std::string& where);
};

/// What is due after update `step` of a model with this spec; `seed` is the run's. Forgets counts
/// that have been judged or that are of other experts then.
std::optional<convert::ExpertChange> due_change(const ExpertsRecipe& recipe,
                                                const model::ModelSpec& spec,
                                                int64_t step,
                                                uint64_t seed,
                                                ExpertCounts& counts);

/// By mixture: "from" and "to" how many experts, which ones were "removed" and, one for each copy,
/// which ones "copied", by their numbers before; "k" where it changes.
Json describe(const convert::ExpertChange& change, const model::ModelSpec& before);
/// The same in words, of the first few mixtures.
std::string text_of_changes(const Json& described);

}  // namespace tessera::train
