// Tables of released models, computed from the specs of zoo/: architectures compared, sizes,
// expert models, large models, and the models that use a mechanism.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

/// Name, Markdown. Throws Error(spec) for a spec of zoo/ that is malformed.
std::vector<std::pair<std::string, std::string>> preset_tables();

}  // namespace tessera::cli
