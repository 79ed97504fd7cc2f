#include "tessera/nn/registry.h"

#include <mutex>

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

// in generated files, one for each folder of mechanisms (CMakeLists.txt)
#define TESSERA_MECHANISM(slot, name, Prefix) spec::Mechanism describe_##slot##_##name();
#include "tessera/nn/mechanisms.def"
#undef TESSERA_MECHANISM

void register_mechanisms() {
  static std::once_flag once;
  std::call_once(once, [] {
#define TESSERA_MECHANISM(slot, name, Prefix) spec::add_mechanism(describe_##slot##_##name());
#include "tessera/nn/mechanisms.def"
#undef TESSERA_MECHANISM
  });
}

}  // namespace tessera::nn
