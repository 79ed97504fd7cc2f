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

RopeFrequencies RopeConfig::frequencies(int64_t length) const {
  if (!scaling) return {plain_frequencies(theta, rotary_dim), 1};
  return scaling.as<RopeScalingConfig>().frequencies(theta, rotary_dim, length);
}

}  // namespace tessera::nn
