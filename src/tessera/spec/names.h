// Unknown names, and the known name that was probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::spec {

/// ` (did you mean "norm"?)`, or "" when no candidate is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// Throws Error(spec) unless `json` is an object whose keys are all among `known`, or are `also`;
/// of a key that is not, it names the nearest one and all of `known`.
void check_keys(const Json& json,
                const std::vector<std::string>& known,
                const std::string& where,
                std::string_view also = "");

}  // namespace tessera::spec
