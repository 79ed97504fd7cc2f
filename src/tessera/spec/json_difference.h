// Where two JSON values differ: specs that should be one, a recipe against the one a run began
// with.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tessera/spec/json.h"

namespace tessera::spec {

struct JsonDifference {
  std::string path;                   // "layers[3].mixer.n_heads"; "" for the values themselves
  std::optional<Json> before, after;  // nullopt: only the other one has it
};

/// The first place where the values differ, in the order of `before`, then of what `after` has
/// in addition; nullopt where they are equal. Members of objects may be in any order. What `skips`
/// is true for may differ.
std::optional<JsonDifference> first_difference(
    const Json& before,
    const Json& after,
    const std::function<bool(const std::string& path)>& skips = nullptr);

}  // namespace tessera::spec
