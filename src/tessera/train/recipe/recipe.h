// A training recipe: spec, data, objective, optimizer, schedule. Torch-free.
//
//   { "spec": "gpt.json" or {...}, "data": {"train": ["a.txt"], "valid_fraction": 0.1},
//     "train": {"steps": 1000, "batch": 16, "length": 256}, "optimizer": {"lr": 1e-3},
//     "schedule": {"type": "wsd", "warmup": 50}, "checkpoint": {"every": 200} }
//
// "init": {"from": MODEL} starts from the weights of a model; "spec" and "data.tokenizer" default
// to the model's then. "adapter": {"rank": 8} in addition trains an adapter only.
//
// "data" may also name a synthetic task: {"type": "mqar", "items": 8} (tasks.h). "extends":
// "base.json" inherits missing keys from another recipe; objects are merged, other values are
// replaced, null removes a key. Paths in a recipe are relative to its file. Unknown keys and wrong
// types throw Error(spec) with their path.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/model/model_spec.h"
#include "tessera/spec/fields.h"
#include "tessera/train/objective/objective_ptr.h"
#include "tessera/train/optimizer/optimizer_recipe.h"
#include "tessera/train/optimizer/schedule.h"
#include "tessera/train/recipe/adapter_recipe.h"
#include "tessera/train/recipe/counts.h"
#include "tessera/train/recipe/data_recipe.h"
#include "tessera/train/recipe/model_plan.h"
#include "tessera/train/recipe/train_recipe.h"
#include "tessera/train/recipe/watch_recipe.h"

namespace tessera::train {

class Dataset;

using spec::Json;

/// Source of the initial parameters.
struct InitRecipe {
  std::string from = {};
  bool partial = false;
  std::vector<std::string> ignore_keys = {};

  static constexpr auto fields() {
    using C = InitRecipe;
    using spec::field;
    return std::tuple{
        field("from", &C::from,
              "a model: a Hugging Face folder, a GGUF file, a run's folder or one of its "
              "checkpoints",
              {.required = true}),
        field("partial", &C::partial,
              "initialize parameters that the checkpoint lacks and drop its extra ones; otherwise "
              "either is an error"),
        field("ignore_keys", &C::ignore_keys,
              "keys of the model's config.json or GGUF metadata to ignore; * = any text")};
  }
};

/// Experts to add: copies of the most used ones, in every mixture of experts with fewer.
struct GrowRecipe {
  static constexpr int64_t kMostExperts = 65536;
  int64_t at = 0;
  int64_t to = 0;
  int64_t k = 0;
  double noise = 0.01;

  static constexpr auto fields() {
    using C = GrowRecipe;
    using spec::field;
    return std::tuple{
        field("at", &C::at, "update after which experts are added", {.min = 1, .required = true}),
        field("to", &C::to, "experts per mixture afterwards",
              {.min = 1, .max = kMostExperts, .required = true}),
        field("k", &C::k, "experts per token afterwards; 0 = as before", {.min = 0}),
        field("noise", &C::noise,
              "noise of a copy, relative to the size of its matrices and router row", {.min = 0})};
  }
};

/// Experts to remove: the rarely used ones.
struct RemoveRecipe {
  double below = 0;
  int64_t after = 0;
  int64_t keep = 1;

  static constexpr auto fields() {
    using C = RemoveRecipe;
    using spec::field;
    return std::tuple{
        field("below", &C::below, "minimum share of an even load; experts below it are removed",
              {.min = 0, .max = 1, .required = true}),
        field("after", &C::after,
              "updates counted for the decision, from the last decision or change",
              {.min = 1, .required = true}),
        field("keep", &C::keep, "minimum number of experts of a mixture", {.min = 1})};
  }
};

struct ExpertsRecipe {
  std::vector<GrowRecipe> grow = {};
  std::optional<RemoveRecipe> remove = {};
  int64_t balance_steps = 0;

  /// True if experts are added or removed.
  bool changes() const { return !grow.empty() || remove; }

  static constexpr auto fields() {
    using C = ExpertsRecipe;
    using spec::field;
    return std::tuple{
        field("grow", &C::grow, "experts added during training, in the order of their steps"),
        field("remove", &C::remove, "experts pruned during training; null = none"),
        field("balance_steps", &C::balance_steps,
              "updates after which balancing biases are frozen (DeepSeek-V3: for the "
              "last 500 of 14,800 billion tokens); 0 = never",
              {.min = 0})};
  }
};

struct CheckpointRecipe {
  int64_t every = 0;
  int64_t keep = 2;
  int64_t best = 0;
  std::string metric = "valid_loss";

  static constexpr auto fields() {
    using C = CheckpointRecipe;
    using spec::field;
    return std::tuple{
        field("every", &C::every, "steps between checkpoints; 0 = at the end only",
              {.min = 0, .max = kMaxCount}),
        field("keep", &C::keep, "number of newest checkpoints kept; 0 = all",
              {.min = 0, .max = kMaxCount}),
        field(
            "best", &C::best,
            "number of best checkpoints kept in addition, by evaluation; the link \"best\" is the "
            "first of them",
            {.min = 0, .max = kMaxCount}),
        field("metric", &C::metric, "metric of the best checkpoint, as in \"stop\"")};
  }
};

struct Recipe {
  model::ModelSpec spec;
  /// Absolute paths, or relative to the working directory, not to the recipe's folder.
  DataRecipe data;
  TrainRecipe train;
  OptimizerRecipe optimizer;
  Schedule schedule;
  CheckpointRecipe checkpoint;
  std::optional<InitRecipe> init = {};  // otherwise as the spec declares them, with train.seed
  ObjectivePtr objective = next_token_objective();
  std::optional<AdapterRecipe> adapter = {};  // trained alone, on init's frozen model
  std::optional<ExpertsRecipe> experts = {};  // changes of the experts; the spec is the initial one
  std::optional<StopRecipe> stop = {};        // null = only after train.steps
  std::optional<WatchRecipe> watch = {};      // null = its defaults
  /// The recipe as written, merged with what it extends and with overrides, without defaults.
  Json written = {};
  /// Decisions that the user should know, a line each.
  std::vector<std::string> notes = {};

  /// What its samples depend on; refers to this recipe.
  DataPlan data_plan() const { return {spec, data, train, adapter ? &*adapter : nullptr}; }
  /// What its model and objective depend on; refers to this recipe.
  ModelPlan model_plan() const {
    return {data_plan(), init ? &*init : nullptr, experts ? &*experts : nullptr};
  }
};

/// Reads and checks; paths are relative to `folder`. Learned routers whose spec has no losses and
/// no balancing bias get a balance loss, because a router without one soon sends all tokens to few
/// experts. `ignore_keys` are added to "init.ignore_keys" and "objective.ignore_keys" if the recipe
/// names models there; throws Error(usage) if it names none.
Recipe read_recipe(Json json,
                   const std::filesystem::path& folder,
                   const std::vector<std::string>& overrides = {},
                   const std::vector<std::string>& ignore_keys = {});
Recipe load_recipe(const std::filesystem::path& path,
                   const std::vector<std::string>& overrides = {},
                   const std::vector<std::string>& ignore_keys = {});

/// The recipe at `path` as written, with all that it extends merged in, the spec inline and paths
/// absolute; its keys and values are not checked.
Json merged_recipe(const std::filesystem::path& path);

/// The recipe with every default, the spec inline. read_recipe(resolve(r), "") equals r.
Json resolve(const Recipe& recipe);

/// A resolved recipe that this version or an earlier one has stored, with the options added since
/// at their defaults; as it is if it cannot be read.
Json with_present_defaults(const Json& stored);

/// The first key, such as "optimizer.lr", by which two resolved recipes define different runs; ""
/// if none. Keys of reporting, saving and speed may differ, and so may the paths of the data (their
/// content is compared elsewhere) and, with a constant schedule, the number of steps.
std::string differing_key(const Json& before, const Json& now);

/// The dataset of the recipe's objective. `cache`: folder of tokenized files. Throws the errors of
/// its ObjectiveConfig::open().
std::unique_ptr<Dataset> open_source(const Recipe& recipe,
                                     const std::filesystem::path& cache,
                                     const CancelToken* cancel = nullptr);

/// JSON schema of the format; "spec" refers to the schema of model::spec_schema().
Json recipe_schema();

}  // namespace tessera::train
