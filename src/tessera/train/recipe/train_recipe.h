// "train" of a recipe: length and shape of a run. Torch-free.
#pragma once

#include "tessera/nn/recompute.h"
#include "tessera/spec/fields.h"
#include "tessera/train/objective/label_smoothing.h"
#include "tessera/train/objective/next_token/early_exit.h"
#include "tessera/train/recipe/counts.h"
#include "tessera/train/recipe/length_schedule.h"

namespace tessera::train {

enum class Precision {
  float32,
  tf32,  // products of float32 on a GPU read 10 bits of their factors
  bf16,  // factors of products; the rest is float32
  fp16,
};
enum class WindowOrder {
  isolated,  // shuffled; each starts from an empty state
  carried,   // consecutive; each starts from the state of the one before, without gradient (TBPTT)
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::WindowOrder> {
  using E = tessera::train::WindowOrder;
  static constexpr std::array names{std::pair{E::isolated, "isolated"},
                                    std::pair{E::carried, "carried"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::Precision> {
  using E = tessera::train::Precision;
  static constexpr std::array names{std::pair{E::float32, "float32"}, std::pair{E::tf32, "tf32"},
                                    std::pair{E::bf16, "bf16"}, std::pair{E::fp16, "fp16"}};
};

namespace tessera::train {

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
  bool deterministic = false;
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
        field("steps", &C::steps, "training steps (updates)",
              {.min = 1, .max = kMaxCount, .required = true}),
        field("batch", &C::batch, "micro-batch size, sequences per forward pass",
              {.min = 1, .max = kMaxTokens, .required = true}),
        field("length", &C::length, "sequence length, tokens",
              {.min = 1, .max = kMaxTokens, .required = true}),
        field(
            "windows", &C::windows,
            "isolated: shuffled sequences; carried: consecutive ones, each row continues from the "
            "state of its last step (truncated backpropagation through time)"),
        field("carry_limit", &C::carry_limit,
              "carried: tokens of a document after which its row restarts; 0 = at its end",
              {.min = 0, .max = kMaxCount}),
        field("accumulate", &C::accumulate, "gradient accumulation: micro-batches per update",
              {.min = 1, .max = kMaxTokens}),
        field("precision", &C::precision,
              "mixed precision: type of the factors of products; bf16 needs AVX512-BF16, AMX or a "
              "GPU, "
              "tf32 a GPU, fp16 scales the loss; weights, sums, gradients and everything else stay "
              "float32"),
        field(
            "loss_scale", &C::loss_scale,
            "fp16: initial loss scale; halved at non-finite gradients, doubled after 2,000 finite "
            "updates",
            {.min = 1}),
        field("seed", &C::seed, "random seed of initial values, data order and dropout",
              {.min = 0}),
        field("threads", &C::threads, "number of threads; 0 = as the process is set",
              {.min = 0, .max = kMaxThreads}),
        field(
            "deterministic", &C::deterministic,
            "on a GPU: deterministic algorithms, so that a run repeats and resumes bit for bit on "
            "one kind of GPU; on the CPU, where it does in any case, without effect"),
        field("eval_every", &C::eval_every, "steps between evaluations; 0 = at the end only",
              {.min = 0, .max = kMaxCount}),
        field("eval_batches", &C::eval_batches,
              "batches per evaluation during training; 0 = all, as at the end",
              {.min = 0, .max = kMaxCount}),
        field("log_every", &C::log_every, "steps between lines of the log",
              {.min = 1, .max = kMaxCount}),
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

}  // namespace tessera::train
