// A model small enough to be loaded for every input.
#pragma once

#include "tessera/model/model.h"
#include "tessera/nn/registry.h"

namespace tessera::fuzz {

/// A state of every kind: keys and values, a window's, one of fixed size.
inline model::Model tiny_model() {
  nn::register_mechanisms();
  auto spec = model::read_model_spec(spec::parse_json(R"({
      "tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8,
      "ffn": {"type": "mlp", "d_hidden": 8}, "head": "tied",
      "layers": [{"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "position": "rope"}},
                 {"mixer": {"type": "attention", "n_heads": 1, "position": "alibi",
                            "pattern": {"type": "window", "width": 3}}},
                 {"mixer": {"type": "gated_delta_net", "n_heads": 2, "n_key_heads": 1,
                            "key_dim": 2, "value_dim": 2}}]})",
                                                      "fuzz"));
  auto weights = model::Weights::initial(spec, 7);
  return model::Model(std::move(spec), std::move(weights));
}

}  // namespace tessera::fuzz
