// What is trained beside a model that stays as it is stored (model/weight_adapter.h), as data.
// Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/fields.h"
#include "tessera/spec/keys_of_types.h"

namespace tessera::train {

enum class AdapterType { lora, dora, ia3, prefix, prompt };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::AdapterType> {
  using E = tessera::train::AdapterType;
  static constexpr std::array names{std::pair{E::lora, "lora"}, std::pair{E::dora, "dora"},
                                    std::pair{E::ia3, "ia3"}, std::pair{E::prefix, "prefix"},
                                    std::pair{E::prompt, "prompt"}};
};

namespace tessera::train {

/// Sizes of some of the products.
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

struct AdapterRecipe {
  AdapterType type = AdapterType::lora;
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> targets = {};
  std::vector<std::string> exclude = {};
  std::vector<int64_t> layers = {};
  std::vector<AdapterSizeRecipe> sizes = {};
  bool rslora = false;
  std::vector<std::string> inputs = {};
  int64_t tokens = 16;
  std::optional<std::string> text = {};
  std::vector<std::string> save = {};

  bool products() const { return type == AdapterType::lora || type == AdapterType::dora; }
  bool virtual_tokens() const { return type == AdapterType::prefix || type == AdapterType::prompt; }

  static constexpr auto fields() {
    using C = AdapterRecipe;
    using spec::field;
    return std::tuple{
        field("type", &C::type,
              "lora: low-rank update of a matrix; dora: the same with trained row norms; ia3: "
              "factors "
              "on outputs or inputs of matrices; prefix: prefix tuning (virtual keys and values); "
              "prompt: prompt tuning (virtual token embeddings)"),
        field("rank", &C::rank, "lora, dora: rank of the update", {.min = 1}),
        field("alpha", &C::alpha, "lora, dora: the update is scaled by alpha / rank", {.min = 0}),
        field("dropout", &C::dropout, "lora, dora: dropout of the input of the update; below 1",
              {.min = 0}),
        field("targets", &C::targets,
              "lora, dora, ia3: the ends of the names of matrices, such as \"mixer.q\"; none = all "
              "of the layers, of ia3 keys, values and \"inputs\""),
        field("exclude", &C::exclude, "ends of names of matrices without adapter"),
        field("layers", &C::layers, "layers with adapters; none = all"),
        field("sizes", &C::sizes, "lora, dora: other ranks and alphas of some targets"),
        field("rslora", &C::rslora, "lora, dora: scale by alpha / sqrt(rank) instead"),
        field("inputs", &C::inputs,
              "ia3: targets with factors on their input; none = \"ffn.down\""),
        field("tokens", &C::tokens, "prefix, prompt: number of virtual tokens", {.min = 1}),
        field(
            "text", &C::text,
            "prompt: initial text, repeated to the length; null = random tokens of the vocabulary"),
        field("save", &C::save,
              "parameters trained in full in addition, such as \"head.*\", * for any characters")};
  }
  static constexpr std::array keys_of_types{spec::KeyOfTypes{"rank", "lora dora"},
                                            spec::KeyOfTypes{"alpha", "lora dora"},
                                            spec::KeyOfTypes{"dropout", "lora dora"},
                                            spec::KeyOfTypes{"sizes", "lora dora"},
                                            spec::KeyOfTypes{"rslora", "lora dora"},
                                            spec::KeyOfTypes{"targets", "lora dora ia3"},
                                            spec::KeyOfTypes{"exclude", "lora dora ia3"},
                                            spec::KeyOfTypes{"layers", "lora dora ia3"},
                                            spec::KeyOfTypes{"inputs", "ia3"},
                                            spec::KeyOfTypes{"tokens", "prefix prompt"},
                                            spec::KeyOfTypes{"text", "prompt"}};
};

}  // namespace tessera::train
