// Which plugins the environment names (docs/guide/plugins.md), for programs and the library.
#pragma once

#include <string>
#include <vector>

namespace tessera::spec {

/// The files of the environment variable TESSERA_PLUGINS, which has `:` between them.
std::vector<std::string> plugins_of_environment();

}  // namespace tessera::spec
