// How a run keeps keys and values: the same two flags for every verb that makes states.
#pragma once

#include <algorithm>

#include "tessera/cli/full_layers.h"
#include "tessera/cli/product_flags.h"
#include "tessera/infer/load_model.h"
#include "tessera/infer/request.h"

namespace tessera::cli {

struct KvFlags {
  std::string type = "auto";
  int64_t page = spec::kDefaultKvPage;
  int64_t keep_first = infer::kKeepFirst, keep_last = 0, keep_heavy = 0;

  void add(CLI::App& app) {
    app.add_option("--kv-type", type,
                   "how keys and values are kept: " + spec::kv_type_names() +
                       "; int8 and fp8 take a quarter of f32's memory, int4 a sixth; auto = f16 "
                       "where no matrix "
                       "of the model has more bits, f32 elsewhere and with --exact")
        ->capture_default_str();
    app.add_option("--kv-page", page,
                   "tokens per page of keys and values, 0 = no pages; the text is the same")
        ->capture_default_str()
        ->check(not_negative());
    app.add_option("--keep-last", keep_last,
                   "attention keeps the keys and values of so many last tokens, beside the first "
                   "ones, and lets go of those between; 0 = it keeps all")
        ->capture_default_str()
        ->check(not_negative());
    auto* first = app.add_option("--keep-first", keep_first,
                                 "first tokens of a text that stay where others go")
                      ->capture_default_str()
                      ->check(not_negative());
    app.add_option(
           "--keep-heavy", keep_heavy,
           "with --keep-last: beside the last tokens every key/value head keeps so many keys "
           "that were given the most weight (heavy hitters), in place of the first ones")
        ->capture_default_str()
        ->check(not_negative())
        ->needs(app.get_option("--keep-last"))
        ->excludes(first);
  }
  /// How a model is loaded with these.
  convert::LoadOptions loading(const std::string& families) const {
    return {families, keep_first, keep_last, keep_heavy};
  }
  /// Once settle() has been called where the type is left open.
  spec::KvOptions options() const { return {spec::kv_type_named(type), page}; }
  /// Makes "auto" a type, by the model and the arithmetic of its products.
  void settle(const model::Model& model, const ProductFlags& products) {
    if (type != "auto") return;
    const auto& weights = model.weights().all();
    const bool rounded = std::none_of(weights.begin(), weights.end(), [](const auto& named) {
      const DType stored = named.second->dtype();
      return named.first.quantises() && (stored == DType::f32 || stored == DType::f64);
    });
    const bool keeps =
        model.spec().no_state_reason().empty() && model::packs(model::state_layout(model.spec()));
    type = rounded && keeps && !products.exact ? "f16" : "f32";
  }
  /// Refuses a type that nothing would be kept in; else one line to stderr names the layers that
  /// keep all bits all the same, where the type was asked for.
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
