// Recipes with self-supervised objectives, for tests.
#pragma once

#include "tessera/train/train_testing.h"

namespace tessera::train {

/// A prefix decoder with `objective`; ids from 256 on are its own.
inline Json noise_recipe(const std::string& file, Json objective) {
  Json json = tiny_recipe(file);
  json["spec"]["vocab"] = 320;
  json["spec"]["layers"][0]["mixer"]["pattern"] = {{"type", "prefix"}};
  json["train"]["length"] = 32;
  json["objective"] = std::move(objective);
  return json;
}

/// The same for an encoder-decoder.
inline Json noise_pair_recipe(const std::string& file, Json objective) {
  Json json = noise_recipe(file, std::move(objective));
  json["spec"] = json_of(R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 320, "d_model": 16,
    "start": 256,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}, "ffn": {"type": "glu", "d_hidden": 32},
    "cross": {"type": "cross_attention", "n_heads": 2},
    "stacks": {"encoder": {"layers": [{}]}, "decoder": {"layers": [{}]}}})");
  return json;
}

inline const Json kSpans = {{"type", "span_corruption"}, {"eos", 256}};
inline const Json kMiddle = {{"type", "fim"}, {"prefix", 257}, {"suffix", 258},
                             {"middle", 259}, {"eos", 256},    {"spm_rate", 0.5}};
inline const Json kBart = {{"type", "denoising"}, {"mask", 260}, {"eos", 256}};
inline const Json kUl2 = {
    {"type", "mixture"},
    {"of",
     {{{"weight", 1}, {"type", "prefix_lm"}, {"mode", 263}},
      {{"weight", 1}, {"type", "span_corruption"}, {"eos", 256}, {"mode", 261}},
      {{"type", "span_corruption"},
       {"rate", 0.5},
       {"mean_span", 8},
       {"eos", 256},
       {"mode", 262}}}}};

}  // namespace tessera::train
