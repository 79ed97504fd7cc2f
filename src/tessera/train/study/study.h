// A comparison of models as data: which specs, made equal in what, trained on how much, by which
// learning rates and seeds. Torch-free.
//
//   { "base": "recipe.json",
//     "entries": [{"name": "glu"}, {"name": "mlp", "spec": {"ffn": {"type": "mlp", "act":
//     "gelu"}}},
//                 {"over": "spec.ffn.act", "values": ["silu", "gelu"]}],
//     "equal": {"by": "parameters", "key": "ffn.d_hidden", "multiple_of": 8},
//     "budget": {"tokens": 2e6}, "learning_rates": "tune", "seeds": [1, 2, 3] }
//
// Paths are relative to the study's file. Unknown keys and wrong types throw Error(spec).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/model/solve.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// What entries are made equal in.
enum class EqualBy {
  none,
  parameters,   // without the token table and an untied head
  flops,        // forward, per token, mean over the positions of train.length tokens
  state_bytes,  // of a sequence of `context` tokens
};

enum class RateMode {
  tune,    // a search for every entry (rate_search.h)
  shared,  // the recipe's rate, or the one that is given, for all
};

/// What a claim is about.
enum class ClaimOf {
  loss,      // of validation, the lower the better
  accuracy,  // of validation, the higher the better
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::EqualBy> {
  using E = tessera::train::EqualBy;
  static constexpr std::array names{
      std::pair{E::none, "none"}, std::pair{E::parameters, "parameters"},
      std::pair{E::flops, "flops"}, std::pair{E::state_bytes, "state_bytes"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::RateMode> {
  using E = tessera::train::RateMode;
  static constexpr std::array names{std::pair{E::tune, "tune"}, std::pair{E::shared, "shared"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::ClaimOf> {
  using E = tessera::train::ClaimOf;
  static constexpr std::array names{std::pair{E::loss, "loss"}, std::pair{E::accuracy, "accuracy"}};
};

namespace tessera::train {

struct EqualRecipe {
  EqualBy by = EqualBy::parameters;
  std::string key = "d_hidden";
  std::optional<double> value = {};
  int64_t multiple_of = 8;
  double tolerance = 0.01;
  int64_t context = 0;

  static constexpr auto fields() {
    using C = EqualRecipe;
    using spec::field;
    return std::tuple{
        field("by", &C::by,
              "what all entries have the same amount of: parameters (without token table and "
              "head), flops, state_bytes, none"),
        field("key", &C::key,
              "integer of the spec that is solved for, in all layers, such as ffn.d_hidden; "
              "\"\" = none: entries must be equal as they are"),
        field("value", &C::value, "the amount; null = that of the first entry", {.min = 1}),
        field("multiple_of", &C::multiple_of, "the integer is a multiple of this", {.min = 1}),
        field("tolerance", &C::tolerance, "largest relative distance from the amount", {.min = 0}),
        field("context", &C::context, "state_bytes: tokens; 0 = train.length", {.min = 0})};
  }
};

struct BudgetRecipe {
  std::optional<double> tokens = {};
  std::optional<int64_t> steps = {};
  std::optional<double> flops = {};

  static constexpr auto fields() {
    using C = BudgetRecipe;
    using spec::field;
    return std::tuple{
        field("tokens", &C::tokens, "tokens read by every run; one of the three", {.min = 1}),
        field("steps", &C::steps, "updates of every run", {.min = 1}),
        field("flops", &C::flops, "FLOPs of every run, forward and backward", {.min = 1})};
  }
};

struct EvaluateRecipe {
  bool decode = false;
  int64_t context = 0;
  std::vector<int64_t> lengths = {};

  static constexpr auto fields() {
    using C = EvaluateRecipe;
    using spec::field;
    return std::tuple{
        field("decode", &C::decode, "measure decoding speed, tokens/s after `context` tokens"),
        field("context", &C::context, "tokens; 0 = train.length", {.min = 0}),
        field("lengths", &C::lengths,
              "length extrapolation: sequence lengths, tokens, at which every trained model is "
              "evaluated on the validation data, too")};
  }
};

/// An order of two entries that a paper claims.
struct ClaimRecipe {
  std::string better, than;
  ClaimOf of = ClaimOf::loss;
  int64_t length = 0;
  std::string paper;

  static constexpr auto fields() {
    using C = ClaimRecipe;
    using spec::field;
    return std::tuple{
        field("better", &C::better, "name of the entry that the paper finds better",
              {.required = true}),
        field("than", &C::than, "name of the other entry", {.required = true}),
        field("of", &C::of, "what is better: a lower loss or a higher accuracy"),
        field("length", &C::length, "one of evaluate.lengths; 0 = train.length", {.min = 0}),
        field("paper", &C::paper, "the source, such as \"arXiv:2002.05202\"")};
  }
};

/// train.seed of runs of a search.
inline constexpr int64_t kSearchSeed = 0;

/// One model of a study, planned.
struct StudyEntry {
  std::string name;
  Json recipe;                         // merged and solved, with the steps of the budget
  std::optional<int64_t> solved = {};  // value of the key that was solved for
  int64_t parameters = 0, body_parameters = 0, state_bytes = 0;
  double flops = 0;   // forward, per token, mean over the positions
  double amount = 0;  // of what entries are made equal in
  int64_t steps = 0, tokens_per_step = 0, length = 0;
  double rate = 0;  // of the recipe

  /// Steps of a part of the budget, at least 1.
  int64_t steps_of(double part) const;
  double training_flops() const { return 3 * flops * static_cast<double>(steps * tokens_per_step); }
};

struct Study {
  std::vector<StudyEntry> entries;
  EqualRecipe equal;
  double amount = 0;  // what entries should have of it; 0 = equal in nothing
  BudgetRecipe budget;
  RateMode rates = RateMode::tune;
  std::vector<double> rate_grid;  // those that are given
  std::vector<int64_t> seeds;
  std::string reference;  // name of the entry that others are compared with
  EvaluateRecipe evaluate;
  std::vector<ClaimRecipe> claims;

  size_t index_of(const std::string& name) const;  // 0 without such an entry
  size_t reference_index() const { return index_of(reference); }
  /// Steps that every entry makes: with a budget of FLOPs some make more.
  int64_t common_steps() const;
  /// Whether rates are searched for.
  bool tunes() const { return rates == RateMode::tune; }
  std::vector<double> rates_of(const StudyEntry& entry) const;
};

/// Reads, expands, solves and checks; expects at least `fewest` entries. Throws Error(spec) or
/// Error(usage) of one line that names the entry: unknown keys, equal names, a model that cannot be
/// made equal, a budget below one step, recipes without validation, with early stopping, or whose
/// vocabulary, tokenizer or tying differ.
Study read_study(const Json& json, const std::filesystem::path& folder, size_t fewest = 2);

/// A study as it is written.
struct StudyFile {
  Json json;
  std::filesystem::path folder;  // that paths in it are relative to
};
/// The study of a file, or of one recipe (the base) and specs or recipes (the entries), with
/// `changes` to its keys merged in.
StudyFile study_file(const std::vector<std::filesystem::path>& files, const Json& changes);
/// read_study() of study_file().
Study load_study(const std::vector<std::filesystem::path>& files, const Json& changes);

/// Names, steps, solved values and recipes of the entries, seeds and reference.
Json to_json(const Study& study);

/// A run of an entry: one that is compared, or, with `curve` off, one that is evaluated at the end
/// alone (of a search, which has seed 0, or of a part of the budget).
struct StudyRun {
  int64_t steps = 0;
  double rate = 0;
  int64_t seed = 0;
  bool curve = true;  // evaluated about ten times, saved as often
};
Recipe recipe_of(const StudyEntry& entry, const StudyRun& run);
/// Of its folder: "glu/seed=1,lr=0.004,steps=1200", "glu/search,lr=0.004,steps=150",
/// "glu/part,seed=1,lr=0.004,steps=300".
std::string name_of(const StudyEntry& entry, const StudyRun& run);

}  // namespace tessera::train
