// Shared by the tests of this layer.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

using test::expect_error;
using test::TemporaryFolder;

inline spec::Json json_of(std::string_view text) {
  return spec::parse_json(text, "test");
}

/// A text with structure to learn, of any length.
inline std::string counting_text(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i)
    text += std::to_string(i % 100) + (i % 7 == 6 ? "\n" : " ");
  text.resize(bytes);
  return text;
}

/// A recipe over `text_file` with a decoder of two small layers.
inline spec::Json tiny_recipe(const std::string& text_file) {
  spec::Json json = json_of(R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16,
             "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope"}}}],
             "ffn": {"type": "glu", "d_hidden": 32}, "head": {"type": "tied"}},
    "data": {"valid_fraction": 0.1},
    "train": {"steps": 12, "batch": 4, "length": 16, "log_every": 1, "eval_every": 5, "eval_batches": 2},
    "optimizer": {"lr": 0.01},
    "schedule": {"type": "wsd", "warmup": 2},
    "checkpoint": {"every": 5}})");
  json["data"]["train"] = {text_file};
  return json;
}

}  // namespace tessera::train
