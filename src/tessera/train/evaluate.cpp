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

namespace {

/// Over `count` samples, of which fetch(first, n) packs some.
template <class Fetch>
Evaluation evaluate_samples(const model::Model& model,
                            int64_t count,
                            Fetch fetch,
                            const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  const int64_t passes = (count + options.batch - 1) / options.batch;
  const int64_t chosen = options.batches > 0 ? std::min(options.batches, passes) : passes;
  Evaluation result;
  Score sum;
  for (int64_t i = 0; i < chosen; ++i) {
    if (options.cancel != nullptr) options.cancel->check("evaluate");
    const int64_t first = (passes * i / chosen) * options.batch;
    const PackedBatch packed = fetch(first, std::min(options.batch, count - first));
    const auto [batch, targets] = to_tensors(packed);
    const Score some = score(model, model.hidden(batch, {.cancel = options.cancel}), targets);
    sum.nats += some.nats;
    sum.hits += some.hits;
    result.tokens += packed.n_targets;
  }
  const auto tokens = static_cast<double>(std::max<int64_t>(1, result.tokens));
  result.loss = sum.nats / tokens;
  result.accuracy = static_cast<double>(sum.hits) / tokens;
  return result;
}

}  // namespace

Evaluation evaluate(const model::Model& model,
                    const Source& source,
                    const EvaluateOptions& options) {
  Evaluation result = evaluate_samples(
      model, source.valid_samples(),
      [&](int64_t first, int64_t n) { return source.valid(first, n); }, options);
  result.bits_per_byte = result.loss * source.tokens_per_byte() / std::numbers::ln2;
  return result;
}

Evaluation evaluate(const model::Model& model,
                    const TokenSplit& split,
                    const EvaluateOptions& options) {
  const std::vector<Window> windows = windows_in_order(split.tokens(), options.length);
  Evaluation result = evaluate_samples(
      model, static_cast<int64_t>(windows.size()),
      [&](int64_t first, int64_t n) {
        return pack(split,
                    std::span(windows).subspan(static_cast<size_t>(first), static_cast<size_t>(n)));
      },
      options);
  if (split.text_bytes() > 0)
    result.bits_per_byte = result.loss * static_cast<double>(split.tokens()) /
                           static_cast<double>(split.text_bytes()) / std::numbers::ln2;
  return result;
}

}  // namespace tessera::train
