#include "tessera/train/evaluate.h"

#include <numbers>
#include <numeric>
#include <optional>

#include "tessera/train/carried.h"
#include "tessera/train/loss.h"

namespace tessera::train {

std::pair<nn::Batch, Tensor> to_tensors(const PackedBatch& packed) {
  nn::Batch batch;
  // a piece is a sequence of its own
  for (const Piece& piece : packed.pieces)
    batch.segments.push_back(
        {static_cast<int64_t>(batch.segments.size()), piece.begin, piece.length, 0});
  batch.ids_N = at::tensor(packed.ids, at::kLong);
  batch.number();
  return {std::move(batch), at::tensor(packed.targets, at::kLong)};
}

namespace {

/// Numbers of the windows that each pass computes.
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
                    const TokenSplit& split,
                    const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  const std::vector<Window> windows = windows_in_order(split.tokens(), options.length);
  std::optional<CarriedRows> carried;
  if (options.carried) carried.emplace(model.spec(), options.batch, options.carry_limit);
  Evaluation result;
  double nats = 0;
  for (const auto& pass : passes_of(static_cast<int64_t>(windows.size()), options)) {
    if (options.cancel != nullptr) options.cancel->check("evaluate");
    std::vector<Window> some;
    for (const int64_t number : pass) some.push_back(windows[static_cast<size_t>(number)]);
    const PackedBatch packed = pack(split, some);
    auto [batch, targets] = to_tensors(packed);
    model::ForwardOptions forward;
    forward.cancel = options.cancel;
    std::optional<model::State> state;
    std::vector<int64_t> streams(pass.size());
    std::iota(streams.begin(), streams.end(), 0);
    if (carried) forward.state = &state.emplace(carried->enter(batch, packed, streams));
    nats += loss_sum(model, model.hidden(batch, forward), targets);
    if (carried) carried->leave(*state, batch, packed, streams);
    result.tokens += packed.n_targets;
  }
  result.loss = result.tokens > 0 ? nats / static_cast<double>(result.tokens) : 0;
  const double tokens_per_byte =
      split.text_bytes() > 0
          ? static_cast<double>(split.tokens()) / static_cast<double>(split.text_bytes())
          : 0;
  result.bits_per_byte = result.loss * tokens_per_byte / std::numbers::ln2;
  return result;
}

}  // namespace tessera::train
