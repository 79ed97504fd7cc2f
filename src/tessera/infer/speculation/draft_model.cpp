#include "tessera/infer/speculation/draft_model.h"

#include <algorithm>

namespace tessera::infer {
namespace {

/// What can be a draft.
const model::Model& checked(const model::Model& model) {
  const model::ModelSpec& spec = model.spec();
  if (!spec.causal() || !model.has_head())
    fail(ErrorKind::usage, "draft", "this model {}; expected a decoder with a head",
         spec.causal() ? "has no head" : "is an encoder");
  if (const std::string reason = spec.no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "draft", "this model cannot continue from a state: {}; take another one",
         reason);
  return model;
}

}  // namespace

// the last guess is never fed
DraftModel::DraftModel(const model::Model& model,
                       int64_t most,
                       const CancelToken* cancel,
                       int64_t layers)
    : model_(checked(model)),
      batcher_(model,
               {.max_pending = std::max<int64_t>(0, most - 1),
                .cache = nullptr,
                .kv = {},
                .cancel = cancel,
                .statistics = nullptr,
                .layers = layers}) {
  limit_ = batcher_.calls().longest_in_cuts();
}

bool DraftModel::reads(const Sequence& sequence) const {
  const int64_t positions = sequence.source.empty() ? 0 : model_.spec().encoder->max_positions();
  return positions == 0 || static_cast<int64_t>(sequence.source.size()) <= positions;
}

std::vector<DraftTree> DraftModel::draft(const std::vector<Ask>& asks, int64_t budget) {
  std::vector<int64_t> counts;
  std::vector<Batcher::Work> going_on;
  std::vector<size_t> which;  // of the asks
  for (size_t a = 0; a < asks.size(); ++a) {
    const auto length = static_cast<int64_t>(asks[a].sequence->tokens.size());
    counts.push_back(limit_ > 0 ? std::min(asks[a].count, limit_ - length + 1) : asks[a].count);
    if (counts[a] <= 0 || !reads(*asks[a].sequence)) continue;
    auto slot = slots_.find(asks[a].row);
    if (slot == slots_.end()) slot = slots_.emplace(asks[a].row, batcher_.add()).first;
    going_on.push_back({slot->second, asks[a].sequence});
    which.push_back(a);
  }
  std::vector<std::vector<int64_t>> drafts(asks.size());
  std::vector<std::vector<std::vector<DraftToken>>> places(asks.size());
  while (!which.empty()) {
    const auto unfinished = [&](const Batcher::Work& w) { return !batcher_.ready(w); };
    while (std::any_of(going_on.begin(), going_on.end(), unfinished))
      batcher_.step(going_on, budget);
    std::vector<Tensor> last;
    for (const Batcher::Work& w : going_on) last.push_back(batcher_.hidden(w.row).select(0, -1));
    const Tensor logits = model_.logits(at::stack(last)).to(at::kCPU, at::kFloat).contiguous();
    std::vector<Batcher::Work> next;
    std::vector<size_t> next_which;
    for (size_t i = 0; i < which.size(); ++i) {
      const Ask& ask = asks[which[i]];
      std::vector<int64_t>& made = drafts[which[i]];
      std::vector<int64_t> tokens = ask.sequence->tokens;
      tokens.insert(tokens.end(), made.begin(), made.end());
      const std::span<const float> own(
          logits.const_data_ptr<float>() + static_cast<int64_t>(i) * logits.size(1),
          static_cast<size_t>(logits.size(1)));
      made.push_back(ask.choose(own, tokens));
      if (ask.width > 1) places[which[i]].push_back(draft_tokens_at(own, ask.width, made.back()));
      if (static_cast<int64_t>(made.size()) == counts[which[i]]) continue;
      next.push_back({going_on[i].row, ask.sequence, {made}});
      next_which.push_back(which[i]);
    }
    going_on = std::move(next);
    which = std::move(next_which);
  }
  std::vector<DraftTree> trees;
  for (size_t a = 0; a < asks.size(); ++a) {
    trees.push_back(asks[a].width > 1
                        ? grow(places[a], asks[a].count * asks[a].width, /*any=*/false)
                        : DraftTree{drafts[a]});
    if (!drafts[a].empty()) chains_[asks[a].row] = std::move(drafts[a]);
  }
  return trees;
}

void DraftModel::keep(size_t row, const std::vector<int64_t>& ids) {
  const size_t slot = slots_.at(row);
  const std::vector<int64_t>& chain = chains_[row];
  const auto parts = std::mismatch(ids.begin(), ids.end(), chain.begin(), chain.end());
  const int64_t n = parts.first - ids.begin();
  // the last guess was never fed
  batcher_.keep(slot, std::min(n, batcher_.pending(slot)));
}

void DraftModel::drop(size_t row) {
  const auto slot = slots_.find(row);
  if (slot == slots_.end()) return;
  batcher_.drop(slot->second);
  slots_.erase(slot);
  chains_.erase(row);
}

}  // namespace tessera::infer
