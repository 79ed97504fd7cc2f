// Precision and performance: the same flags for every command that computes with a loaded model.
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
                                 "(without it: 15 bits) and with BF16 weights (with AMX: 16 "
                                 "bits)");
    app.add_flag("--fast", fast,
                 "8-bit activations in products with quantized weights, as llama.cpp, and bfloat16 "
                 "ones with BF16 weights: faster, less exact")
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
  /// For reports: "exact", "two_digits", "one_digit".
  const char* name() const { return exact ? "exact" : fast ? "one_digit" : "two_digits"; }
  /// Bits of an activation in products with quantized weights, for reports.
  int activation_bits() const { return exact ? 32 : fast ? 8 : 15; }
  /// Rejects --fast if it would have no effect.
  void check(const model::Model& model) const {
    const auto& weights = model.weights().all();
    const auto is_rounded = [](const auto& weight) {
      return weight.second != nullptr && !weight.second->shape().empty() &&
             kernels::arithmetic_of(weight.second->dtype(), weight.second->shape().back(),
                                    kernels::Arithmetic::int8) != kernels::Arithmetic::float32;
    };
    if (fast && std::none_of(weights.begin(), weights.end(), is_rounded))
      fail(ErrorKind::usage, "fast",
           "no weight of this model is quantized, and its float weights are multiplied in float32 "
           "on this processor; expected a quantized model");
  }
};

}  // namespace tessera::cli
