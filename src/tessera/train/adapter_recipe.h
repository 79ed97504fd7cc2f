// What is trained beside a model that stays as it is stored (model/overlay.h), as data. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/fields.h"

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
              "lora: a product of low rank beside a matrix; dora: the same, and the lengths of its "
              "rows; ia3: factors on what matrices give or read; prefix: keys and values before "
              "those of every document; prompt: vectors before those of its tokens"),
        field("rank", &C::rank, "lora, dora: of the product", {.min = 1}),
        field("alpha", &C::alpha, "lora, dora: the product counts alpha / rank times", {.min = 0}),
        field("dropout", &C::dropout, "lora, dora: of what the product reads, in training; below 1",
              {.min = 0}),
        field("targets", &C::targets,
              "lora, dora, ia3: the ends of the names of matrices, such as \"mixer.q\"; none = all "
              "of the layers, of ia3 keys, values and \"inputs\""),
        field("exclude", &C::exclude, "such ends of names that get none all the same"),
        field("layers", &C::layers, "numbers of layers that get some alone; none = all"),
        field("sizes", &C::sizes, "lora, dora: other ranks and alphas of some targets"),
        field("rslora", &C::rslora, "lora, dora: alpha / sqrt(rank) times instead"),
        field("inputs", &C::inputs,
              "ia3: targets whose factors are on what they read; none = \"ffn.down\""),
        field("tokens", &C::tokens,
              "prefix, prompt: how many virtual tokens a document begins with", {.min = 1}),
        field(
            "text", &C::text,
            "prompt: what it begins with, over and over up to its length; null = tokens drawn from "
            "the vocabulary"),
        field("save", &C::save,
              "parameters trained whole beside it, such as \"head.*\", * for any characters")};
  }
};

}  // namespace tessera::train
