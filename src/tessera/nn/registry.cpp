#include "tessera/nn/registry.h"

#include <mutex>

#include "tessera/nn/mechanism_headers.h"

namespace tessera::nn {

void register_mechanisms() {
  static std::once_flag once;
  std::call_once(once, [] {
#define TESSERA_MECHANISM(slot, name, Prefix) \
  spec::add_mechanism(spec::make_mechanism<Prefix##Config>(spec::Slot::slot, #name));
#include "tessera/nn/mechanisms.def"
#undef TESSERA_MECHANISM
  });
}

}  // namespace tessera::nn
