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
#include <optional>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/nn/recompute.h"
#include "tessera/spec/fields.h"
#include "tessera/spec/keys_of_types.h"
#include "tessera/train/recipe/adapter_recipe.h"
#include "tessera/train/objective/next_token/early_exit.h"
#include "tessera/train/objective/label_smoothing.h"
#include "tessera/train/data/label_data.h"
#include "tessera/train/recipe/length_schedule.h"
#include "tessera/train/objective/objective_ptr.h"
#include "tessera/train/optimizer/optimizer_recipe.h"
#include "tessera/train/optimizer/schedule.h"
#include "tessera/train/recipe/watch_recipe.h"

namespace tessera::train {

using spec::Json;

enum class DataType {
  text,
  mqar,
  copying,
  selective_copying,
  induction_heads,
  needle,
  parity,
  modular_sum,
  s3,
  s5,
};
enum class Filler {
  random,  // any token
  zero,
};
enum class DataFormat {
  text,   // a file is a document
  jsonl,  // a line is an object with a document
  tsv,    // a row is a document; the first line names the columns
  csv,
  tokens,  // token ids, each document after the separator of the one before
};
enum class Precision {
  float32,
  bf16,  // factors of products; the rest is float32
  fp16,
};
enum class WindowOrder {
  isolated,  // shuffled; each starts from an empty state
  carried,   // consecutive; each starts from the state of the one before, without gradient (TBPTT)
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::DataType> {
  using E = tessera::train::DataType;
  static constexpr std::array names{std::pair{E::text, "text"},
                                    std::pair{E::mqar, "mqar"},
                                    std::pair{E::copying, "copying"},
                                    std::pair{E::selective_copying, "selective_copying"},
                                    std::pair{E::induction_heads, "induction_heads"},
                                    std::pair{E::needle, "needle"},
                                    std::pair{E::parity, "parity"},
                                    std::pair{E::modular_sum, "modular_sum"},
                                    std::pair{E::s3, "s3"},
                                    std::pair{E::s5, "s5"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::Filler> {
  using E = tessera::train::Filler;
  static constexpr std::array names{std::pair{E::random, "random"}, std::pair{E::zero, "zero"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::DataFormat> {
  using E = tessera::train::DataFormat;
  static constexpr std::array names{std::pair{E::text, "text"}, std::pair{E::jsonl, "jsonl"},
                                    std::pair{E::tsv, "tsv"}, std::pair{E::csv, "csv"},
                                    std::pair{E::tokens, "tokens"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::WindowOrder> {
  using E = tessera::train::WindowOrder;
  static constexpr std::array names{std::pair{E::isolated, "isolated"},
                                    std::pair{E::carried, "carried"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::Precision> {
  using E = tessera::train::Precision;
  static constexpr std::array names{std::pair{E::float32, "float32"}, std::pair{E::bf16, "bf16"},
                                    std::pair{E::fp16, "fp16"}};
};

namespace tessera::train {

inline constexpr const char* kFormatDoc =
    "text: a file is a document; jsonl: a line is; tsv, csv: a row is, below a line that names the "
    "columns; tokens: ids, unsigned 16-bit little-endian, or "
    "32-bit where the vocabulary has more than 65,536, documents ended by the separator";

/// Formats with keys: JSON lines and tables.
inline bool has_keys(DataFormat format) {
  return format != DataFormat::text && format != DataFormat::tokens;
}
/// The same format for labelled files; nullopt for formats without keys.
std::optional<LabelFormat> label_format(DataFormat format);

/// One text of a mixture.
struct DataPart {
  double weight = 1;
  std::vector<std::string> train = {};
  std::vector<std::string> valid = {};
  double valid_fraction = 0;
  DataFormat format = DataFormat::text;
  std::string text_key = "text";

  static constexpr auto fields() {
    using C = DataPart;
    using spec::field;
    return std::tuple{field("weight", &C::weight,
                            "weight of this dataset, relative to the sum of all", {.min = 0}),
                      field("train", &C::train, "files to learn from", {.required = true}),
                      field("valid", &C::valid, "files to evaluate on"),
                      field("valid_fraction", &C::valid_fraction,
                            "instead of valid: the last part of the bytes of train", {.min = 0}),
                      field("format", &C::format, kFormatDoc),
                      field("text_key", &C::text_key, "key or column of the text")};
  }
};

/// Text files.
struct DataRecipe {
  DataType type = DataType::text;
  std::vector<std::string> train = {};
  std::vector<std::string> valid = {};
  double valid_fraction = 0;
  DataFormat format = DataFormat::text;
  std::string text_key = "text";
  std::optional<std::string> source_key = {};
  std::string tokenizer = "bytes";
  std::optional<std::string> document_separator = {};
  std::vector<DataPart> mix = {};
  std::optional<double> temperature = {};

  /// The recipe for one part of the mixture only.
  DataRecipe only(const DataPart& part) const;

  static constexpr auto fields() {
    using C = DataRecipe;
    using spec::field;
    return std::tuple{
        field("type", &C::type, "text, or a task"),
        field("train", &C::train, "files to learn from; needed without a mix"),
        field("valid", &C::valid, "files to evaluate on"),
        field("valid_fraction", &C::valid_fraction,
              "instead of valid: the last part of the bytes of train", {.min = 0}),
        field("format", &C::format, kFormatDoc),
        field("text_key", &C::text_key, "key or column of the text"),
        field("source_key", &C::source_key,
              "key or column of the source (encoder input, or prefix of a prefix language model); "
              "the text is then the target"),
        field("tokenizer", &C::tokenizer,
              "\"bytes\", or a tokenizer.json or vocab.txt, or its folder"),
        field("document_separator", &C::document_separator,
              "token put after every document; null = the tokenizer's end of text if it has one, "
              "\"\" = none"),
        field("mix", &C::mix, "data mixture, instead of train: several datasets with weights"),
        field("temperature", &C::temperature,
              "of a mix: multiplies weights by tokens^(1 / temperature); null = weights alone",
              {.min = 1})};
  }
};

/// A synthetic task (tasks.h), examples of train.length tokens.
struct TaskRecipe {
  DataType type = DataType::mqar;
  int64_t items = 4;
  Filler filler = Filler::random;
  int64_t examples = 0;
  int64_t valid = 256;
  int64_t valid_length = 0;

  static constexpr auto fields() {
    using C = TaskRecipe;
    using spec::field;
    return std::tuple{
        field("type", &C::type, "the task", {.required = true}),
        field("items", &C::items,
              "mqar: keys with values; copying: symbols; needle: tokens of the value; "
              "modular_sum: the modulus",
              {.min = 1}),
        field("filler", &C::filler, "mqar: tokens between the queried keys"),
        field("examples", &C::examples, "number of different training examples; 0 = unlimited",
              {.min = 0}),
        field("valid", &C::valid, "examples to evaluate on; 0 = none", {.min = 0}),
        field("valid_length", &C::valid_length, "tokens of those; 0 = train.length", {.min = 0})};
  }
  static constexpr std::array keys_of_types{
      spec::KeyOfTypes{"items", "mqar copying selective_copying needle modular_sum"},
      spec::KeyOfTypes{"filler", "mqar"}};
};

/// Limit for one micro-batch, tokens.
constexpr int64_t kMaxTokens = int64_t{1} << 31;

struct TrainRecipe {
  int64_t steps = 0;
  int64_t batch = 0;
  int64_t length = 0;
  WindowOrder windows = WindowOrder::isolated;
  int64_t carry_limit = 0;
  int64_t accumulate = 1;
  Precision precision = Precision::float32;
  double loss_scale = 65536;  // of fp16, at first
  int64_t seed = 0;
  int64_t threads = 0;
  int64_t eval_every = 0;
  int64_t eval_batches = 0;
  int64_t log_every = 10;
  double clip_norm = 1;
  double z_loss = 0;
  double l2_wrap = 0;
  LabelSmoothing label_smoothing = {};
  nn::Recompute recompute = {};
  double predictors = 0.3;
  EarlyExit early_exit = {};
  Curriculum curriculum = {};

  static constexpr auto fields() {
    using C = TrainRecipe;
    using spec::field;
    return std::tuple{
        field("steps", &C::steps, "training steps (updates)", {.min = 1, .required = true}),
        field("batch", &C::batch, "micro-batch size, sequences per forward pass",
              {.min = 1, .required = true}),
        field("length", &C::length, "sequence length, tokens", {.min = 1, .required = true}),
        field(
            "windows", &C::windows,
            "isolated: shuffled sequences; carried: consecutive ones, each row continues from the "
            "state of its last step (truncated backpropagation through time)"),
        field("carry_limit", &C::carry_limit,
              "carried: tokens of a document after which its row restarts; 0 = at its end",
              {.min = 0}),
        field("accumulate", &C::accumulate, "gradient accumulation: micro-batches per update",
              {.min = 1}),
        field(
            "precision", &C::precision,
            "mixed precision: type of the factors of products; bf16 needs AVX512-BF16 or AMX, fp16 "
            "scales the loss; weights, sums, gradients and everything else stay float32"),
        field(
            "loss_scale", &C::loss_scale,
            "fp16: initial loss scale; halved at non-finite gradients, doubled after 2,000 finite "
            "updates",
            {.min = 1}),
        field("seed", &C::seed, "random seed of initial values, data order and dropout",
              {.min = 0}),
        field("threads", &C::threads, "number of threads; 0 = as the process is set", {.min = 0}),
        field("eval_every", &C::eval_every, "steps between evaluations; 0 = at the end only",
              {.min = 0}),
        field("eval_batches", &C::eval_batches,
              "batches per evaluation during training; 0 = all, as at the end", {.min = 0}),
        field("log_every", &C::log_every, "steps between lines of the log", {.min = 1}),
        field("clip_norm", &C::clip_norm, "gradient clipping: limit of the global norm; 0 = none",
              {.min = 0}),
        field("z_loss", &C::z_loss, "weight of the z-loss, the squared log of the softmax's sum",
              {.min = 0}),
        field("l2_wrap", &C::l2_wrap,
              "share of every token's largest logit that is added to its gradient (RWKV-4: 1e-4); "
              "0 = none",
              {.min = 0}),
        field("label_smoothing", &C::label_smoothing, "label smoothing"),
        field("recompute", &C::recompute,
              "gradient checkpointing: layers recomputed in the backward pass"),
        field("predictors", &C::predictors,
              "multi-token prediction: factor on the mean loss of the spec's predictors",
              {.min = 0}),
        field("early_exit", &C::early_exit,
              "early exit (LayerSkip): losses at the outputs of earlier layers"),
        field("curriculum", &C::curriculum, "sequence-length warm-up")};
  }
};

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
  int64_t at = 0;
  int64_t to = 0;
  int64_t k = 0;
  double noise = 0.01;

  static constexpr auto fields() {
    using C = GrowRecipe;
    using spec::field;
    return std::tuple{
        field("at", &C::at, "update after which experts are added", {.min = 1, .required = true}),
        field("to", &C::to, "experts per mixture afterwards", {.min = 1, .required = true}),
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
              {.min = 0, .required = true}),
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
        field("every", &C::every, "steps between checkpoints; 0 = at the end only", {.min = 0}),
        field("keep", &C::keep, "number of newest checkpoints kept; 0 = all", {.min = 0}),
        field(
            "best", &C::best,
            "number of best checkpoints kept in addition, by evaluation; the link \"best\" is the "
            "first of them",
            {.min = 0}),
        field("metric", &C::metric, "metric of the best checkpoint, as in \"stop\"")};
  }
};

struct Recipe {
  model::ModelSpec spec;
  /// Absolute paths, or relative to the working directory, not to the recipe's folder.
  DataRecipe data;
  std::optional<TaskRecipe> task;  // instead of data
  /// Instead of both for objectives with labels; data.tokenizer is their tokenizer then.
  std::optional<LabelData> labels = {};
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

/// The first key, such as "optimizer.lr", by which two resolved recipes define different runs; ""
/// if none. Keys of reporting, saving and speed may differ, and so may the paths of the data (their
/// content is compared elsewhere) and, with a constant schedule, the number of steps.
std::string differing_key(const Json& before, const Json& now);

/// JSON schema of the format; "spec" refers to the schema of model::spec_schema().
Json recipe_schema();

}  // namespace tessera::train
