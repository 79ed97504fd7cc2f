// Which layers keep all bits whatever type of keys and values a run asks for, in words. Torch-free.
#pragma once

#include "tessera/model/kv_quantization.h"

namespace tessera::cli {

/// "f32 stays in layers.1.mixer (hyena), ...", "" where nothing else than `type` is kept per token.
inline std::string full_layers(const model::ModelSpec& spec, spec::KvType type) {
  if (type == spec::KvType::f32) return "";
  const std::vector<std::string> names = model::kept_in_full(spec);
  return names.empty() ? "" : fmt::format("f32 stays in {}", model::some_of(names));
}

}  // namespace tessera::cli
