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

Tensor hidden_of(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 model::ForwardOptions options) {
  if (packed.sources.empty()) return model.hidden(batch, options);
  const nn::Encoded encoded = model.encode(nn::Batch::of(packed.sources), options);
  options.encoded = &encoded;
  return model.hidden(batch, options);
}

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

/// Tokens of all texts of a split of pairs.
int64_t tokens_of_texts(const TokenSplit& split) {
  int64_t tokens = 0;
  for (int64_t document = 1; document < split.documents(); document += 2)
    tokens += split.document(document).second;
  return tokens;
}

}  // namespace

Evaluation evaluate(const model::Model& model,
                    const TokenSplit& split,
                    const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  const bool pairs = model.spec().encoder != nullptr;
  const auto windows =
      pairs ? std::vector<Window>() : windows_in_order(split.tokens(), options.length);
  const int64_t count = pairs ? split.documents() / 2 : static_cast<int64_t>(windows.size());
  std::optional<CarriedRows> carried;
  if (options.carried) carried.emplace(model.spec(), options.batch, options.carry_limit);
  Evaluation result;
  double nats = 0;
  for (const auto& pass : passes_of(count, options)) {
    if (options.cancel != nullptr) options.cancel->check("evaluate");
    std::vector<Window> some;
    if (!pairs)
      for (const int64_t number : pass) some.push_back(windows[static_cast<size_t>(number)]);
    const PackedBatch packed =
        pairs ? pack_pairs(split, pass, model.spec().start, options.length) : pack(split, some);
    auto [batch, targets] = to_tensors(packed);
    model::ForwardOptions forward;
    forward.cancel = options.cancel;
    std::optional<model::State> state;
    std::vector<int64_t> streams(pass.size());
    std::iota(streams.begin(), streams.end(), 0);
    if (carried) forward.state = &state.emplace(carried->enter(batch, packed, streams));
    nats += loss_sum(model, hidden_of(model, packed, batch, forward), targets);
    if (carried) carried->leave(*state, batch, packed, streams);
    result.tokens += packed.n_targets;
  }
  result.loss = result.tokens > 0 ? nats / static_cast<double>(result.tokens) : 0;
  const int64_t text_tokens = pairs ? tokens_of_texts(split) : split.tokens();
  const double tokens_per_byte =
      split.text_bytes() > 0
          ? static_cast<double>(text_tokens) / static_cast<double>(split.text_bytes())
          : 0;
  result.bits_per_byte = result.loss * tokens_per_byte / std::numbers::ln2;
  return result;
}

}  // namespace tessera::train
