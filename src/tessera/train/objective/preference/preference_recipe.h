// The objective "preference" (DPO and others): two answers to a prompt, one preferred. Torch-free.
#pragma once

#include <optional>
#include <string>

#include "tessera/spec/fields.h"
#include "tessera/train/objective/chat/chat_recipe.h"

namespace tessera::train {

enum class PreferenceLoss { dpo, ipo, hinge, simpo, orpo };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::PreferenceLoss> {
  using E = tessera::train::PreferenceLoss;
  static constexpr std::array names{std::pair{E::dpo, "dpo"}, std::pair{E::ipo, "ipo"},
                                    std::pair{E::hinge, "hinge"}, std::pair{E::simpo, "simpo"},
                                    std::pair{E::orpo, "orpo"}};
};

namespace tessera::train {

struct PreferenceRecipe {
  static constexpr const char* kType = "preference";
  PreferenceLoss loss = PreferenceLoss::dpo;
  std::optional<double> beta = {};
  double smoothing = 0;
  std::optional<bool> by_length = {};
  double margin = 0.5;
  std::optional<double> nll_weight = {};
  std::optional<std::string> format = {};
  std::string date = kTemplateDate;
  std::string prompt_key = "prompt";
  std::string chosen_key = "chosen";
  std::string rejected_key = "rejected";

  /// True if the loss needs a reference model (the run's initial model).
  bool has_reference() const {
    return loss != PreferenceLoss::simpo && loss != PreferenceLoss::orpo;
  }
  double strength() const { return beta.value_or(loss == PreferenceLoss::simpo ? 2 : 0.1); }
  bool means() const { return by_length.value_or(!has_reference()); }
  double nll() const { return nll_weight.value_or(loss == PreferenceLoss::orpo ? 1 : 0); }

  static constexpr auto fields() {
    using C = PreferenceRecipe;
    using spec::field;
    return std::tuple{
        field("loss", &C::loss,
              "dpo, ipo and hinge: relative to the reference (initial) model; simpo and orpo: "
              "without it"),
        field("beta", &C::beta,
              "how much a difference of log-probabilities counts; null = 0.1, of simpo 2",
              {.above = 0}),
        field("smoothing", &C::smoothing,
              "dpo, simpo: the share of pairs that are taken to be the wrong way round",
              {.min = 0, .below = 0.5}),
        field("by_length", &C::by_length,
              "whether the log-probability of an answer is its mean over tokens, not their sum; "
              "null = of simpo and orpo alone"),
        field("margin", &C::margin, "simpo: by how much the chosen one is to be ahead, times beta",
              {.min = 0}),
        field("nll_weight", &C::nll_weight,
              "weight of the chosen answer's own loss, nats per token; null = 0, of orpo 1",
              {.min = 0}),
        field(
            "format", &C::format,
            "how messages are written: chatml, llama3, gemma or zephyr; null = by the tokenizer's "
            "own chat template"),
        field("date", &C::date,
              "date that strftime_now() of the chat template returns, such as 2024-07-26; none = "
              "undefined"),
        field("prompt_key", &C::prompt_key, "key of the prompt in every line"),
        field("chosen_key", &C::chosen_key, "key of the better answer"),
        field("rejected_key", &C::rejected_key, "key of the other one")};
  }
};

}  // namespace tessera::train
