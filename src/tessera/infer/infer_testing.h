// What the tests of this layer share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/model/model.h"
#include "tessera/nn/registry.h"

namespace tessera::infer {

/// The tiny decoders that text is made with here, one for every kind of state.
inline std::vector<std::pair<std::string, std::string>> tiny_layers() {
  const std::string attention = R"({"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1,
                                              "position": {"type": "rope"}}})",
                    window = R"({"mixer": {"type": "attention", "n_heads": 2, "position": "alibi",
                                           "pattern": {"type": "window", "width": 6}}})",
                    mamba2 = R"({"mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}})",
                    rwkv7 = R"({"branches": [
      {"name": "time", "mixer": {"type": "rwkv7", "n_heads": 2}},
      {"name": "channel", "mixer": {"type": "rwkv_channel_mix", "version": "rwkv7"}}]})",
                    delta = R"({"mixer": {"type": "gated_delta_net", "n_heads": 2, "n_key_heads": 1,
                                          "key_dim": 8, "value_dim": 8}})";
  return {{"attention", attention + "," + attention},
          {"window", window + "," + window},
          {"mamba2", mamba2 + "," + mamba2},
          {"rwkv7", rwkv7 + "," + rwkv7},
          {"hybrid", delta + "," + window + "," + mamba2}};
}

/// Random weights that make every token matter: matrices five times their usual size.
inline model::Model tiny_model(const std::string& layers, uint64_t seed, int64_t vocab = 23) {
  nn::register_mechanisms();
  auto spec = model::read_model_spec(
      spec::parse_json(fmt::format(R"({{"tessera": 1, "arch": "decoder", "vocab": {}, "d_model": 16,
                       "ffn": {{"type": "glu", "d_hidden": 24}}, "layers": [{}],
                       "head": {{"type": "linear"}}}})",
                                   vocab, layers),
                       "test"));
  model::Weights weights = model::Weights::initial(spec, seed);
  const at::NoGradGuard no_gradients;
  for (const auto& [decl, weight] : weights.all()) {
    Tensor tensor = weight->dense_tensor();
    tensor.requires_grad_(false);
    if (decl.kind == spec::ParamKind::matrix || decl.kind == spec::ParamKind::embedding)
      tensor.mul_(5);
  }
  return model::Model(std::move(spec), std::move(weights));
}

inline std::vector<int64_t> random_tokens(int64_t n, uint64_t seed, int64_t vocab = 23) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(RandomKey(seed).bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab));
  return ids;
}

}  // namespace tessera::infer
