// The KV cache: the same flags for every command that has one.
#pragma once

#include <algorithm>

#include "tessera/cli/full_layers.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/product_flags.h"
#include "tessera/infer/engine/request.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::cli {

struct KvFlags {
  std::string type = "auto";
  int64_t page = spec::kDefaultKvPage;
  int64_t keep_first = infer::kKeepFirst, keep_last = 0, keep_heavy = 0;

  void add(CLI::App& app) {
    app.add_option("--kv-type,--cache-type-k,--cache-type-v", type,
                   "KV cache type, one for keys and values: " + spec::kv_type_names() +
                       " (llama.cpp's q8_0 and q4_0 are int8 and int4); auto = f16 if no weight "
                       "matrix has more than 16 bits, else (and with "
                       "--exact) f32")
        ->capture_default_str()
        ->transform([](const std::string& name) {
          return name == "q8_0" ? "int8" : name == "q4_0" ? "int4" : name;
        });
    app.add_option("--kv-page", page,
                   "KV cache page size, tokens; 0 = contiguous; the output is unchanged")
        ->capture_default_str()
        ->check(not_negative());
    app.add_option("--keep-last", keep_last,
                   "KV cache eviction (StreamingLLM): keep the last N tokens and the first "
                   "--keep-first; 0 = keep all")
        ->capture_default_str()
        ->check(not_negative());
    auto* first = app.add_option("--keep-first,--keep", keep_first,
                                 "attention sinks: first tokens that eviction and context shift "
                                 "keep")
                      ->capture_default_str()
                      ->check(not_negative());
    app.add_option("--keep-heavy", keep_heavy,
                   "H2O eviction: per KV head keep the N keys with the most attention weight, "
                   "instead of the first tokens")
        ->capture_default_str()
        ->check(not_negative())
        ->needs(app.get_option("--keep-last"))
        ->excludes(first);
  }
  /// Load options of the model with these flags.
  convert::LoadOptions loading(const LoadFlags& flags) const {
    convert::LoadOptions options = flags.options();
    options.keep_first = keep_first;
    options.keep_last = keep_last;
    options.keep_heavy = keep_heavy;
    return options;
  }
  /// Call settle() first if the type is "auto".
  spec::KvOptions options() const { return {spec::kv_type_named(type), page}; }
  /// Resolves "auto" by the model and the arithmetic of its products.
  void settle(const model::Model& model, const ProductFlags& products) {
    if (type != "auto") return;
    const auto& weights = model.weights().all();
    const bool rounded = std::none_of(weights.begin(), weights.end(), [](const auto& named) {
      const DType stored = named.second->dtype();
      return named.first.quantises() && (stored == DType::f32 || stored == DType::f64);
    });
    const bool keeps = model.spec().no_state_reason().empty() &&
                       model::can_quantize_kv(model::state_layout(model.spec()));
    type = rounded && keeps && !products.exact ? "f16" : "f32";
  }
  /// Rejects a type without effect; otherwise, if the type was given, a line on stderr names the
  /// layers that stay f32.
  void check(const model::Model& model, const ProductFlags& products) {
    const bool open = type == "auto";
    settle(model, products);
    if (open) return;
    const model::ModelSpec& spec = model.spec();
    model::check_kv_type(spec, options().type);
    const std::string full = full_layers(spec, options().type);
    if (!full.empty()) fmt::print(stderr, "kv-type {}: {}\n", type, full);
  }
};

}  // namespace tessera::cli
