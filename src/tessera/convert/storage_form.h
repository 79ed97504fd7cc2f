// One model in two containers: a Hugging Face folder and the GGUF file made from it store rows of
// queries and keys in different orders, norms with or without one added, and their specs say so.
// An adapter that was trained for one of them fits the other. Torch-free.
#pragma once

#include <optional>
#include <set>

#include "tessera/convert/peft.h"

namespace tessera::convert {

/// Tensors of an adapter for a model of another form.
struct Reformed {
  std::vector<AdapterTensors> tensors;
  /// Weights that the two models store alike, row by row.
  std::set<std::string> alike;
};

/// An adapter of the model of `spec_json`, for `base`, which is that model in another form.
/// Nothing where it is not, as far as its family knows. Throws Error(usage) where the family stores
/// an adapted weight in other numbers than moves of rows give.
std::optional<Reformed> in_form_of(const std::vector<AdapterTensors>& adapter,
                                   const Json& spec_json,
                                   const Checkpoint& base,
                                   const LoadOptions& options = {});

}  // namespace tessera::convert
