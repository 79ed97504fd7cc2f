// Loading mechanisms from shared libraries (plugin.h).
#pragma once

#include <filesystem>

namespace tessera::nn {

/// Adds the mechanisms of a plugin to the registry; nothing if it is loaded already. Call it before
/// specs are read. The file stays loaded. Throws Error(file) if it is missing, is no plugin, was
/// built with another tessera, release of libtorch (2.15) or compiler ABI (no code of it runs
/// then), cannot be loaded, or has a mechanism of a name that exists.
void load_plugin(const std::filesystem::path& path);

}  // namespace tessera::nn
