#include "tessera/train/evaluate.h"

#include <numbers>
#include <numeric>

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

Tensor hidden_of(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 model::ForwardOptions options) {
  if (packed.sources.empty()) return model.hidden(batch, options);
  const nn::Encoded encoded = model.encode(nn::Batch::of(packed.sources), options);
  options.encoded = &encoded;
  return model.hidden(batch, options);
}

Evaluation evaluate(const model::Model& model,
                    const TokenSplit& split,
                    const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  const bool pairs = model.spec().encoder != nullptr;
  const std::vector<Window> windows =
      pairs ? std::vector<Window>() : windows_in_order(split.tokens(), options.length);
  std::vector<int64_t> all_pairs(static_cast<size_t>(pairs ? split.documents() / 2 : 0));
  std::iota(all_pairs.begin(), all_pairs.end(), 0);
  const auto count = static_cast<int64_t>(pairs ? all_pairs.size() : windows.size());
  const int64_t passes = (count + options.batch - 1) / options.batch;
  const int64_t chosen = options.batches > 0 ? std::min(options.batches, passes) : passes;
  Evaluation result;
  double nats = 0;
  for (int64_t i = 0; i < chosen; ++i) {
    if (options.cancel != nullptr) options.cancel->check("evaluate");
    const int64_t begin = (passes * i / chosen) * options.batch;
    const auto some = [&](const auto& list) {
      return std::span(list).subspan(static_cast<size_t>(begin),
                                     static_cast<size_t>(std::min(options.batch, count - begin)));
    };
    const PackedBatch packed =
        pairs ? pack_pairs(split, some(all_pairs), model.spec().start, options.length)
              : pack(split, some(windows));
    const auto [batch, targets] = to_tensors(packed);
    nats += loss_sum(model, hidden_of(model, packed, batch, {.cancel = options.cancel}), targets);
    result.tokens += packed.n_targets;
  }
  result.loss = result.tokens > 0 ? nats / static_cast<double>(result.tokens) : 0;
  int64_t text_tokens = pairs ? 0 : split.tokens();
  for (const int64_t pair : all_pairs) text_tokens += split.document(2 * pair + 1).second;
  const double tokens_per_byte =
      split.text_bytes() > 0
          ? static_cast<double>(text_tokens) / static_cast<double>(split.text_bytes())
          : 0;
  result.bits_per_byte = result.loss * tokens_per_byte / std::numbers::ln2;
  return result;
}

}  // namespace tessera::train
