// Adding and removing experts during training (recipe "experts"): when, and which. Torch-free.
//
// After every update the choices of each router are counted. After the number of updates in
// "remove", experts whose count is below the given part of an even share are removed, the least
// used first, as long as the mixture keeps the required number and a token has enough. At the step
// in "grow", copies of the most used ones are added (convert/experts.h). Counting then restarts.
// Spec, weights, moments and counts change together between two updates, so every checkpoint is
// consistent.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/convert/experts.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// Number of choices of each expert since the last change or removal check.
struct ExpertCounts {
  int64_t updates = 0;
  std::map<std::string, std::vector<double>> by_router;  // "layers.3.ffn.router"

  Json to_json() const;
  /// Throws Error(file) that begins with `where` for input that to_json() does not write.
  static ExpertCounts of(const Json& json, const std::string& where);
};

/// The change due after update `step` of a model with this spec; `seed` is the run's. Resets counts
/// that have been used or that belong to other experts.
std::optional<convert::ExpertChange> due_change(const ExpertsRecipe& recipe,
                                                const model::ModelSpec& spec,
                                                int64_t step,
                                                uint64_t seed,
                                                ExpertCounts& counts);

/// By mixture: "from" and "to", numbers of experts; indices of "removed" ones and, for each copy,
/// of "copied" ones, before the change; "k" if it changes.
Json describe(const convert::ExpertChange& change, const model::ModelSpec& before);
/// The same in words, for the first few mixtures.
std::string text_of_changes(const Json& described);

}  // namespace tessera::train
