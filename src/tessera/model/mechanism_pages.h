// Generated documentation: a page per slot, the table of mechanisms, the JSON schema of specs.
// `tessera docs` writes them; a test compares them with docs/.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::model {

/// Path below docs/, content.
std::vector<std::pair<std::string, std::string>> generated_pages();

}  // namespace tessera::model
