#include "tessera/train/evaluate.h"

#include <numbers>
#include <numeric>
#include <optional>

#include "tessera/train/carried.h"

namespace tessera::train {
namespace {

/// Numbers of the windows, or of the pairs, that each pass computes.
std::vector<std::vector<int64_t>> passes_of(int64_t windows, const EvaluateOptions& options) {
  const int64_t passes = (windows + options.batch - 1) / options.batch;
  const int64_t chosen = options.batches > 0 ? std::min(options.batches, passes) : passes;
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(chosen));
  for (int64_t i = 0; i < chosen; ++i)
    for (int64_t row = 0; row < options.batch; ++row) {
      // carried: row r reads its own run of `passes` windows; else neighbours are read together
      const int64_t window =
          options.carried ? row * passes + i : (passes * i / chosen) * options.batch + row;
      if (window < windows) out[static_cast<size_t>(i)].push_back(window);
    }
  return out;
}

}  // namespace

Evaluation evaluate(const model::Model& model,
                    const Objective& objective,
                    const EvaluateOptions& options) {
  const Source& source = objective.source();
  const auto passes = passes_of(source.valid_samples(), options);
  std::optional<CarriedRows> carried;
  if (options.carried) carried.emplace(model.spec(), options.batch, options.carry_limit);
  size_t number = 0;
  PackedBatch packed;
  nn::Batch batch;
  std::vector<int64_t> streams;
  std::optional<model::State> state;
  const auto next = [&]() -> std::optional<infer::EvalPass> {
    // what the pass before has left
    if (state) carried->leave(*state, batch, packed, streams);
    if (number == passes.size()) return std::nullopt;
    const std::vector<int64_t>& samples = passes[number++];
    packed = source.valid(samples);
    infer::EvalPass pass = objective.question(packed);
    if (carried) {
      streams.resize(samples.size());
      std::iota(streams.begin(), streams.end(), 0);
      pass.state = &state.emplace(carried->enter(pass.batch, packed, streams));
      batch = pass.batch;
    }
    return pass;
  };
  const infer::Score sum = infer::evaluate(model, next, options.cancel);
  const auto targets = static_cast<double>(std::max<int64_t>(1, sum.targets));
  Evaluation result;
  result.tokens = sum.targets;
  result.loss = sum.nats / targets;
  result.accuracy = static_cast<double>(sum.hits) / targets;
  if (objective.counts_bytes())
    result.bits_per_byte = result.loss * source.tokens_per_byte() / std::numbers::ln2;
  return result;
}

}  // namespace tessera::train
