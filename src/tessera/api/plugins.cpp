#include "tessera/api/plugins.h"

#include <dlfcn.h>

#include <mutex>

#include "tessera/api/tessera.h"
#include "tessera/nn/plugins.h"
#include "tessera/spec/plugin_files.h"

namespace tessera {
namespace {

/// Plugins link nothing: they take the symbols of what loads them. A program that links the library
/// has them in the global scope; Python and dlopen() put them into a scope of their own.
void offer_own_symbols() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&offer_own_symbols), &self) != 0 &&
      self.dli_fname != nullptr)
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

}  // namespace

void load_plugin(const std::string& file) {
  static std::once_flag offered;
  std::call_once(offered, offer_own_symbols);
  nn::load_plugin(file);
}

void api::load_plugins_of_environment() {
  static std::once_flag loaded;
  std::call_once(loaded, [] {
    for (const std::string& file : spec::plugins_of_environment()) load_plugin(file);
  });
}

}  // namespace tessera
