// Adapters (LoRA and others, model/weight_adapter.h) in recipes. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/spec/type_union.h"

namespace tessera::train {

/// Rank and alpha of some targets.
struct AdapterSizeRecipe {
  std::string target = {};
  int64_t rank = 8;
  double alpha = 16;

  static constexpr auto fields() {
    using C = AdapterSizeRecipe;
    using spec::field;
    return std::tuple{
        field("target", &C::target, "the end of the names of matrices", {.required = true}),
        field("rank", &C::rank, "of their products", {.min = 1}),
        field("alpha", &C::alpha, "of their products", {.min = 0})};
  }
};

// --- keys of each type: kName in recipes ---

/// Parameters that are trained with an adapter of any type.
struct SavedKeys {
  std::vector<std::string> save = {};
  static constexpr auto fields() {
    return std::tuple{spec::field(
        "save", &SavedKeys::save,
        "parameters trained in full in addition, such as \"head.*\", * for any characters")};
  }
};

/// Matrices with an adapter; `targets` names them.
struct MatrixKeys : SavedKeys {
  std::vector<std::string> targets = {};
  std::vector<std::string> exclude = {};
  std::vector<int64_t> layers = {};
  static constexpr auto filters() {
    using C = MatrixKeys;
    using spec::field;
    return std::tuple{field("exclude", &C::exclude, "ends of names of matrices without adapter"),
                      field("layers", &C::layers, "layers with adapters; none = all")};
  }
};

/// Low-rank updates of matrices.
struct LoraAdapter : MatrixKeys {
  static constexpr const char* kName = "lora";
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<AdapterSizeRecipe> sizes = {};
  bool rslora = false;
  static constexpr auto fields() {
    using C = LoraAdapter;
    using spec::field;
    return std::tuple_cat(
        std::tuple{field("rank", &C::rank, "rank of the update", {.min = 1}),
                   field("alpha", &C::alpha, "the update is scaled by alpha / rank", {.min = 0}),
                   field("dropout", &C::dropout, "dropout of the input of the update; below 1",
                         {.min = 0, .below = 1}),
                   field("targets", &C::targets,
                         "the ends of the names of matrices, such as \"mixer.q\"; none = all of "
                         "the layers")},
        MatrixKeys::filters(),
        std::tuple{field("sizes", &C::sizes, "other ranks and alphas of some targets"),
                   field("rslora", &C::rslora, "scale by alpha / sqrt(rank) instead")},
        SavedKeys::fields());
  }
};

/// LoRA with trained row norms.
struct DoraAdapter : LoraAdapter {
  static constexpr const char* kName = "dora";
};

/// Factors on outputs or inputs of matrices.
struct Ia3Adapter : MatrixKeys {
  static constexpr const char* kName = "ia3";
  std::vector<std::string> inputs = {};
  static constexpr auto fields() {
    using C = Ia3Adapter;
    using spec::field;
    return std::tuple_cat(
        std::tuple{field("targets", &C::targets,
                         "the ends of the names of matrices, such as \"mixer.q\"; none = keys, "
                         "values and \"inputs\"")},
        MatrixKeys::filters(),
        std::tuple{field("inputs", &C::inputs,
                         "targets with factors on their input; none = \"ffn.down\"")},
        SavedKeys::fields());
  }
};

/// Tokens before every document that are trained.
struct VirtualTokenKeys : SavedKeys {
  int64_t tokens = 16;
  static constexpr auto count() {
    return std::tuple{
        spec::field("tokens", &VirtualTokenKeys::tokens, "number of virtual tokens", {.min = 1})};
  }
};

/// Prefix tuning: virtual keys and values.
struct PrefixAdapter : VirtualTokenKeys {
  static constexpr const char* kName = "prefix";
  static constexpr auto fields() {
    return std::tuple_cat(VirtualTokenKeys::count(), SavedKeys::fields());
  }
};

/// Prompt tuning: virtual token embeddings.
struct PromptAdapter : VirtualTokenKeys {
  static constexpr const char* kName = "prompt";
  std::optional<std::string> text = {};
  static constexpr auto fields() {
    return std::tuple_cat(
        VirtualTokenKeys::count(),
        std::tuple{spec::field(
            "text", &PromptAdapter::text,
            "initial text, repeated to the length; null = random tokens of the vocabulary")},
        SavedKeys::fields());
  }
};

/// The table of adapters.
using AdapterRecipe =
    std::variant<LoraAdapter, DoraAdapter, Ia3Adapter, PrefixAdapter, PromptAdapter>;

/// The keys of such an adapter; null for others.
template <class Keys>
const Keys* adapter_keys(const AdapterRecipe& adapter) {
  return std::visit(
      [](const auto& one) -> const Keys* {
        if constexpr (std::is_base_of_v<Keys, std::decay_t<decltype(one)>>)
          return &one;
        else
          return nullptr;
      },
      adapter);
}

}  // namespace tessera::train
