// A training run as data: which architecture, which text, which optimiser, how long. Torch-free.
//
//   { "spec": "gpt.json" or {...}, "data": {"train": ["a.txt"], "valid_fraction": 0.1},
//     "train": {"steps": 1000, "batch": 16, "length": 256}, "optimizer": {"lr": 1e-3},
//     "schedule": {"type": "wsd", "warmup": 50}, "checkpoint": {"every": 200} }
//
// "init": {"from": MODEL} begins with the weights of a model; "spec" and "data.tokenizer" may then
// be left out, and are the model's. "adapter": {"rank": 8} beside it trains an adapter alone.
//
// "data" may also name a task whose examples are made: {"type": "mqar", "items": 8} (tasks.h).
// "extends": "base.json" takes what the recipe does not say from another one; objects are merged,
// all else is replaced, null takes a key away. Paths in a recipe are relative to its file. Unknown
// keys and wrong types throw Error(spec) with their path.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/nn/recompute.h"
#include "tessera/spec/fields.h"
#include "tessera/train/adapter_recipe.h"
#include "tessera/train/early_exit.h"
#include "tessera/train/label_smoothing.h"
#include "tessera/train/label_data.h"
#include "tessera/train/length_ramp.h"
#include "tessera/train/objective_ptr.h"
#include "tessera/train/optimizer_recipe.h"
#include "tessera/train/schedule.h"
#include "tessera/train/watch_recipe.h"

namespace tessera::train {

using spec::Json;

enum class DataType { text, mqar, copying, selective_copying, induction_heads };
enum class Filler {
  random,  // any token
  zero,
};
enum class DataFormat {
  text,    // a file is a document
  jsonl,   // a line is an object that holds a document
  tokens,  // ids as numbers, each document behind the separator of the one before
};
enum class Precision {
  float32,
  bf16,  // factors of products; all else is float32
  fp16,
};
enum class WindowOrder {
  isolated,  // shuffled; each begins without a past
  carried,   // consecutive; each begins with the state that the one before left, without its
             // gradient
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::DataType> {
  using E = tessera::train::DataType;
  static constexpr std::array names{std::pair{E::text, "text"}, std::pair{E::mqar, "mqar"},
                                    std::pair{E::copying, "copying"},
                                    std::pair{E::selective_copying, "selective_copying"},
                                    std::pair{E::induction_heads, "induction_heads"}};
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
    "text: a file is a document; jsonl: a line is; tokens: ids, unsigned 16-bit little-endian, or "
    "32-bit where the vocabulary has more than 65,536, documents ended by the separator";

/// One of several texts that are learned from together.
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
    return std::tuple{
        field("weight", &C::weight, "share of the samples, of the sum of all", {.min = 0}),
        field("train", &C::train, "files to learn from", {.required = true}),
        field("valid", &C::valid, "files to evaluate on"),
        field("valid_fraction", &C::valid_fraction,
              "instead of valid: the last part of the bytes of train", {.min = 0}),
        field("format", &C::format, kFormatDoc),
        field("text_key", &C::text_key, "jsonl: key of the text in every line")};
  }
};

/// Text out of files.
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

  /// The same of one part of the mix alone.
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
        field("text_key", &C::text_key, "jsonl: key of the text in every line"),
        field("source_key", &C::source_key,
              "jsonl: key of what an encoder reads, or of the prefix that attention with pattern "
              "\"prefix\" reads; the text is then what the decoder answers"),
        field("tokenizer", &C::tokenizer,
              "\"bytes\", or a tokenizer.json or vocab.txt, or its folder"),
        field("document_separator", &C::document_separator,
              "token put after every document; null = the tokenizer's end of text if it has one, "
              "\"\" = none"),
        field("mix", &C::mix,
              "instead of train: several texts, each with its share of the samples"),
        field("temperature", &C::temperature,
              "of a mix: weights count times tokens^(1 / temperature); null = by themselves",
              {.min = 1})};
  }
};

/// Examples that are made (tasks.h), each train.length tokens.
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
        field("items", &C::items, "mqar: keys with values; copying: symbols", {.min = 1}),
        field("filler", &C::filler, "mqar: what stands between the keys that are asked for"),
        field("examples", &C::examples, "different ones to learn from; 0 = each is seen once",
              {.min = 0}),
        field("valid", &C::valid, "examples to evaluate on; 0 = none", {.min = 0}),
        field("valid_length", &C::valid_length, "tokens of those; 0 = train.length", {.min = 0})};
  }
};

/// One forward pass must stay addressable, whatever the recipe asks for.
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
        field("steps", &C::steps, "updates of the parameters", {.min = 1, .required = true}),
        field("batch", &C::batch, "sequences per forward pass", {.min = 1, .required = true}),
        field("length", &C::length, "tokens per sequence", {.min = 1, .required = true}),
        field("windows", &C::windows,
              "isolated: shuffled sequences without a past; carried: consecutive ones, each row "
              "going on from the state that its last step left"),
        field("carry_limit", &C::carry_limit,
              "carried: tokens of a document after which its row begins anew; 0 = at its end",
              {.min = 0}),
        field("accumulate", &C::accumulate, "forward passes per update", {.min = 1}),
        field(
            "precision", &C::precision,
            "bf16, on processors that have units for it, or fp16, of a scaled loss: what the "
            "factors "
            "of products are rounded to; weights, sums, gradients and all that is no product stay "
            "float32"),
        field("loss_scale", &C::loss_scale,
              "fp16: what the loss is multiplied by at first; half of it where gradients are not "
              "finite, "
              "twice of it after 2,000 updates in which they are",
              {.min = 1}),
        field("seed", &C::seed, "of initial values, order of the data and dropout", {.min = 0}),
        field("threads", &C::threads, "0 = as the process is set", {.min = 0}),
        field("eval_every", &C::eval_every, "steps between evaluations; 0 = at the end only",
              {.min = 0}),
        field("eval_batches", &C::eval_batches,
              "batches per evaluation on the way; 0 = all, as at the end", {.min = 0}),
        field("log_every", &C::log_every, "steps between lines of the log", {.min = 1}),
        field("clip_norm", &C::clip_norm, "limit of the norm of all gradients together; 0 = none",
              {.min = 0}),
        field("z_loss", &C::z_loss, "weight of the square of the log of the softmax's sum",
              {.min = 0}),
        field("l2_wrap", &C::l2_wrap,
              "share of every token's largest logit that is added to its gradient (RWKV-4: 1e-4); "
              "0 = none",
              {.min = 0}),
        field("label_smoothing", &C::label_smoothing, "targets that are not all certain"),
        field("recompute", &C::recompute, "activations that are not kept for the backward pass"),
        field("predictors", &C::predictors,
              "factor on the mean of the losses of the spec's predictors", {.min = 0}),
        field("early_exit", &C::early_exit, "losses at the outputs of earlier layers"),
        field("curriculum", &C::curriculum, "sequences that are short at first and grow")};
  }
};

/// Where the first values of the parameters come from.
struct InitRecipe {
  std::string from = {};
  bool partial = false;

  static constexpr auto fields() {
    using C = InitRecipe;
    using spec::field;
    return std::tuple{
        field("from", &C::from,
              "a model: a Hugging Face folder, a GGUF file, a run's folder or one of its "
              "checkpoints",
              {.required = true}),
        field("partial", &C::partial,
              "parameters that the model lacks begin as the spec declares them, and what the spec "
              "does not declare is left out; else either is an error")};
  }
};

/// Experts that a run adds: copies of those that were used most, in every mixture that has fewer.
struct GrowRecipe {
  int64_t at = 0;
  int64_t to = 0;
  int64_t k = 0;
  double noise = 0.01;

  static constexpr auto fields() {
    using C = GrowRecipe;
    using spec::field;
    return std::tuple{
        field("at", &C::at, "updates behind which they come", {.min = 1, .required = true}),
        field("to", &C::to, "experts of a mixture then", {.min = 1, .required = true}),
        field("k", &C::k, "experts of a token from then on; 0 = as before", {.min = 0}),
        field("noise", &C::noise,
              "what tells a copy from its original, of the size of its matrices and its row of the "
              "router",
              {.min = 0})};
  }
};

/// Experts that a run removes: those that are hardly used.
struct RemoveRecipe {
  double below = 0;
  int64_t after = 0;
  int64_t keep = 1;

  static constexpr auto fields() {
    using C = RemoveRecipe;
    using spec::field;
    return std::tuple{
        field("below", &C::below, "the part of an even share that an expert needs to stay",
              {.min = 0, .required = true}),
        field("after", &C::after,
              "updates that it is judged by, counted from the last judgement or change",
              {.min = 1, .required = true}),
        field("keep", &C::keep, "experts of a mixture that stay in any case", {.min = 1})};
  }
};

struct ExpertsRecipe {
  std::vector<GrowRecipe> grow = {};
  std::optional<RemoveRecipe> remove = {};
  int64_t balance_steps = 0;

  /// Whether any come or go.
  bool changes() const { return !grow.empty() || remove; }

  static constexpr auto fields() {
    using C = ExpertsRecipe;
    using spec::field;
    return std::tuple{field("grow", &C::grow, "experts that come, in the order of their steps"),
                      field("remove", &C::remove, "experts that go; null = none"),
                      field("balance_steps", &C::balance_steps,
                            "updates behind which balancing biases stay as they are (DeepSeek-V3: "
                            "for the last 500 of 14,800 billion tokens); 0 = never",
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
        field("keep", &C::keep, "the newest that stay; 0 = all", {.min = 0}),
        field("best", &C::best,
              "those that did best at their evaluation, which are saved and stay besides; the link "
              "\"best\" is the first of them",
              {.min = 0}),
        field("metric", &C::metric, "by which they are the best, as of \"stop\"")};
  }
};

struct Recipe {
  model::ModelSpec spec;
  /// Paths absolute or relative to the working directory, whatever the recipe's folder.
  DataRecipe data;
  std::optional<TaskRecipe> task;  // instead of data
  /// Instead of both where the objective learns from labels; data.tokenizer is then its tokenizer.
  std::optional<LabelData> labels = {};
  TrainRecipe train;
  OptimizerRecipe optimizer;
  Schedule schedule;
  CheckpointRecipe checkpoint;
  std::optional<InitRecipe> init = {};  // else as the spec declares them, by train.seed
  ObjectivePtr objective = next_token_objective();
  std::optional<AdapterRecipe> adapter = {};  // trained alone, beside init's model as it is stored
  std::optional<ExpertsRecipe> experts =
      {};                                 // how they are treated; the spec is that of the beginning
  std::optional<StopRecipe> stop = {};    // null = after train.steps alone
  std::optional<WatchRecipe> watch = {};  // null = as it stands there
  /// What reading it has decided and whoever trains should know, a line each.
  std::vector<std::string> notes = {};
};

/// Reads and checks; `folder` is what paths are relative to. Learned routers whose spec says
/// nothing of losses, and that no bias balances, get a balance loss: a router that only follows the
/// text soon sends all of it to few experts.
Recipe read_recipe(Json json,
                   const std::filesystem::path& folder,
                   const std::vector<std::string>& overrides = {});
Recipe load_recipe(const std::filesystem::path& path,
                   const std::vector<std::string>& overrides = {});

/// Every default written out, the spec inline. read_recipe(resolve(r), "") equals r.
Json resolve(const Recipe& recipe);

/// The first key, such as "optimizer.lr", by which a run under `now` would differ from one under
/// `before`; "" when none does. Both resolved. What only steers reporting, saving and speed may
/// differ, as may the paths of the data (its content is compared elsewhere) and, under a constant
/// schedule, the number of steps.
std::string differing_key(const Json& before, const Json& now);

/// JSON schema of the format; "spec" refers to the schema of model::spec_schema().
Json recipe_schema();

}  // namespace tessera::train
