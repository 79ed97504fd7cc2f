// Precision and performance: the same flags for every verb that computes with a loaded model.
#pragma once

#include <algorithm>

#include "tessera/cli/cli.h"
#include "tessera/infer/loading/quantize_on_load.h"
#include "tessera/kernels/weights/quantize.h"

namespace tessera::cli {

struct ProductFlags {
  bool exact = false, fast = false;
  std::string blocks;

  void add(CLI::App& app) {
    add_arithmetic(app);
    add_blocks(app);
  }
  void add_arithmetic(CLI::App& app) {
    auto* float32 = app.add_flag("--exact", exact,
                                 "float32 activations in products with quantized weights "
                                 "(without it: 15 bits)");
    app.add_flag("--fast", fast,
                 "8-bit activations in products with quantized weights, as llama.cpp: faster, less "
                 "exact")
        ->excludes(float32);
  }
  void add_blocks(CLI::App& app) {
    app.add_option("--blocks", blocks,
                   "quantize float weights to this type (q8_0, q4_k, ...) while loading")
        ->check([](const std::string& name) -> std::string {
          try {
            if (kernels::can_quantize(dtype_named(name))) return "";
          } catch (const Error&) {
          }
          return "\"" + name + "\"; expected a block type that quantize writes, as q8_0 or q4_k";
        });
  }
  kernels::Arithmetic arithmetic() const {
    return exact  ? kernels::Arithmetic::float32
           : fast ? kernels::Arithmetic::int8
                  : kernels::Arithmetic::int15;
  }
  infer::MatmulOptions products() const {
    return {arithmetic(), blocks.empty() ? std::nullopt : std::optional(dtype_named(blocks))};
  }
  /// For reports: "exact", "int15", "int8".
  const char* name() const { return exact ? "exact" : fast ? "one_digit" : "two_digits"; }
  /// Refuses --fast where it would change nothing.
  void check(const model::Model& model) const {
    const auto& weights = model.weights().all();
    if (fast && std::none_of(weights.begin(), weights.end(), [](const auto& weight) {
          return weight.second != nullptr && kernels::has_codes(weight.second->dtype());
        }))
      fail(ErrorKind::usage, "fast",
           "no weight of this model is quantized (float weights are multiplied in float32); "
           "expected a quantized model");
  }
};

}  // namespace tessera::cli
