#include "tessera/train/evaluate.h"

#include <numbers>

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

Evaluation evaluate(const model::Model& model,
                    const TokenSplit& split,
                    const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  const std::vector<Window> windows = windows_in_order(split.tokens(), options.length);
  const auto count = static_cast<int64_t>(windows.size());
  const int64_t passes = (count + options.batch - 1) / options.batch;
  const int64_t chosen = options.batches > 0 ? std::min(options.batches, passes) : passes;
  Evaluation result;
  double nats = 0;
  for (int64_t i = 0; i < chosen; ++i) {
    if (options.cancel != nullptr) options.cancel->check("evaluate");
    const int64_t begin = (passes * i / chosen) * options.batch;
    const auto some = std::span(windows).subspan(
        static_cast<size_t>(begin), static_cast<size_t>(std::min(options.batch, count - begin)));
    const PackedBatch packed = pack(split, some);
    const auto [batch, targets] = to_tensors(packed);
    nats += loss_sum(model, model.hidden(batch, {.cancel = options.cancel}), targets);
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
