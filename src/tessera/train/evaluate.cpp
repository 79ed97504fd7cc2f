#include "tessera/train/evaluate.h"

#include <numbers>
#include <numeric>
#include <optional>

#include "tessera/model/prefix.h"
#include "tessera/train/carried.h"
#include "tessera/train/loss.h"

namespace tessera::train {

std::pair<nn::Batch, Tensor> to_tensors(const PackedBatch& packed) {
  nn::Batch batch;
  // a piece is a sequence of its own, and keeps its place in the sample
  int64_t row = -1, row_begin = 0;
  for (const Piece& piece : packed.pieces) {
    if (piece.row != row) row = piece.row, row_begin = piece.begin;
    batch.segments.push_back({static_cast<int64_t>(batch.segments.size()), piece.begin,
                              piece.length, 0, piece.prefix, packed.first_sample + row,
                              piece.begin - row_begin});
  }
  batch.ids_N = at::tensor(packed.ids, at::kLong);
  batch.number();
  return {std::move(batch), at::tensor(packed.targets, at::kLong)};
}

Tensor hidden_of(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 model::ForwardOptions options) {
  if (packed.sources.empty()) return model.hidden(batch, options);
  nn::Batch sources = nn::Batch::of(packed.sources);
  for (nn::Segment& s : sources.segments) s.sample = packed.first_sample + s.row;
  const nn::Encoded encoded = model.encode(sources, options);
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

/// Over `count` samples, of which fetch(numbers) packs some.
template <class Fetch>
Evaluation evaluate_samples(const model::Model& model,
                            int64_t count,
                            Fetch fetch,
                            const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  std::optional<CarriedRows> carried;
  if (options.carried) carried.emplace(model.spec(), options.batch, options.carry_limit);
  Evaluation result;
  Score sum;
  for (const auto& pass : passes_of(count, options)) {
    if (options.cancel != nullptr) options.cancel->check("evaluate");
    const PackedBatch packed = fetch(pass);
    auto [batch, targets] = to_tensors(packed);
    model::ForwardOptions forward;
    forward.cancel = options.cancel;
    std::optional<model::State> state;
    std::vector<int64_t> streams(pass.size());
    std::iota(streams.begin(), streams.end(), 0);
    if (carried) forward.state = &state.emplace(carried->enter(batch, packed, streams));
    const Score some = score(model, hidden_of(model, packed, batch, forward), targets);
    if (carried) carried->leave(*state, batch, packed, streams);
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
      [&](const std::vector<int64_t>& numbers) { return source.valid(numbers); }, options);
  result.bits_per_byte = result.loss * source.tokens_per_byte() / std::numbers::ln2;
  return result;
}

Evaluation evaluate(const model::Model& model,
                    const TokenSplit& split,
                    const EvaluateOptions& options) {
  const std::vector<Window> windows = windows_in_order(split.tokens(), options.length);
  Evaluation result = evaluate_samples(
      model, static_cast<int64_t>(windows.size()),
      [&](const std::vector<int64_t>& numbers) {
        PackedBatch batch = pack(split, chosen(windows, numbers));
        hide_seen(batch, model::longest_prefix(model.spec(), 0));
        return batch;
      },
      options);
  if (split.text_bytes() > 0)
    result.bits_per_byte = result.loss * static_cast<double>(split.tokens()) /
                           static_cast<double>(split.text_bytes()) / std::numbers::ln2;
  return result;
}

}  // namespace tessera::train
