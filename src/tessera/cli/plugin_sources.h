// The sources of examples/plugins, which the build compiles in.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::cli {

struct PluginSource {
  std::string_view slot, name;  // the folder and the file in examples/plugins
  std::string_view text;
};

const std::vector<PluginSource>& plugin_sources();

}  // namespace tessera::cli
