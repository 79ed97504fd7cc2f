// Plugins in a program that links the library, or in Python.
#pragma once

namespace tessera::api {

/// Loads the plugins of TESSERA_PLUGINS, once. For the beginning of every call that reads specs or
/// models. Throws Error(file) as load_plugin() does, in every call until all of them are loaded.
void load_plugins_of_environment();

}  // namespace tessera::api
