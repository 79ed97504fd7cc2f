// Shared by the tests of this layer.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/model/large_weights_testing.h"
#include "tessera/nn/registry.h"

namespace tessera::infer {

/// Tiny decoders for generation, one for every kind of state.
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

/// Further tiny decoders, with every kind of past: latents, ring buffers, segments and their
/// memories, two sets of rotary angles.
inline std::vector<std::pair<std::string, std::string>> tiny_memories() {
  auto all = tiny_layers();
  const auto add = [&](const char* name, const std::string& mixer) {
    all.emplace_back(name, fmt::format(R"({{"repeat": 2, "mixer": {}}})", mixer));
  };
  add("latent", R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 6,
                    "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "position": "rope"})");
  add("sinks", R"({"type": "attention", "n_heads": 2, "position": "rope",
                   "pattern": {"type": "sink_window", "first": 2, "width": 5}})");
  add("transformer_xl", R"({"type": "transformer_xl", "n_heads": 2, "segment": 4, "mem_len": 6})");
  add("compressive", R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4,
                         "n_compressed": 3, "rate": 2})");
  add("memorizing", R"({"type": "memorizing", "n_heads": 2, "segment": 4, "mem_len": 4,
                        "memory": 12, "top_k": 5})");
  add("local", R"({"type": "local_attention", "n_heads": 2, "chunk": 5, "position": "rope"})");
  add("long_rope", R"({"type": "attention", "n_heads": 2, "position": {"type": "rope", "scaling":
      {"type": "longrope", "short_factor": [1, 1.2, 1.5, 2], "long_factor": [2, 3, 3, 4],
       "original_length": 30, "factor": 4}}})");
  return all;
}

inline model::Model tiny_model_of(const std::string& spec_text, uint64_t seed);

/// Random weights with which every token matters: matrices scaled by five.
inline model::Model tiny_model(const std::string& layers, uint64_t seed, int64_t vocab = 23) {
  return tiny_model_of(fmt::format(R"({{"tessera": 1, "arch": "decoder", "vocab": {}, "d_model": 16,
                       "ffn": {{"type": "glu", "d_hidden": 24}}, "layers": [{}],
                       "head": {{"type": "linear"}}}})",
                                   vocab, layers),
                       seed);
}

/// An encoder-decoder; `mixer` is the decoder's.
inline model::Model tiny_pair(const std::string& mixer, uint64_t seed) {
  return tiny_model_of(
      fmt::format(R"({{"tessera": 1, "arch": "encoder_decoder", "vocab": 23, "d_model": 16,
          "start": 1, "head": "linear", "cross": {{"type": "cross_attention", "n_heads": 2}},
          "ffn": {{"type": "mlp", "d_hidden": 24}},
          "mixer": {{"type": "attention", "n_heads": 2, "position": "rope"}},
          "stacks": {{"encoder": {{"layers": [{{"repeat": 2}}]}},
                      "decoder": {{"layers": [{{"repeat": 2, "mixer": {}}}]}}}}}})",
                  mixer),
      seed);
}

inline model::Model tiny_model_of(const std::string& spec_text, uint64_t seed) {
  nn::register_mechanisms();
  auto spec = model::read_model_spec(spec::parse_json(spec_text, "test"));
  model::Weights weights = model::large_weights(spec, seed, 5);
  for (const auto& [decl, weight] : weights.all())
    Tensor(weight->dense_tensor()).requires_grad_(false);
  return model::Model(std::move(spec), std::move(weights));
}

inline std::vector<int64_t> random_tokens(int64_t n, uint64_t seed, int64_t vocab = 23) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(RandomKey(seed).bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab));
  return ids;
}

}  // namespace tessera::infer
