#include "tessera/infer/speculation/mtp_draft.h"

#include <algorithm>

#include "tessera/model/placement.h"
#include "tessera/model/predictor_spec.h"

namespace tessera::infer {

MtpDraft::MtpDraft(const model::Model& model, const CancelToken* cancel)
    : model_(model), cancel_(cancel) {
  const auto& predictors = model.spec().predictors;
  if (predictors.empty())
    fail(ErrorKind::usage, "generate",
         "this model has no predictors of tokens further ahead; expected a draft or a look-up");
  for (const model::PredictorSpec& predictor : predictors) {
    empty_.emplace_back(*predictor.stack, 1, std::ssize(predictors),
                        at::TensorOptions(model::device_of(model)).dtype(numbers_of(model)));
    states_.push_back(empty_.back().select({}));
  }
}

bool MtpDraft::chained(size_t k) const {
  return k > 0 && model_.spec().predictors[k].reads == model::PredictorReads::previous;
}

int64_t MtpDraft::reach(size_t k) const {
  return model_.spec().predictors[k].token ? static_cast<int64_t>(k) + 1 : 0;
}

void MtpDraft::wait(Own& own, const Tensor& hidden_ND) {
  own.waiting = own.left() > 0 ? at::cat({own.waiting, hidden_ND}) : hidden_ND;
}

void MtpDraft::drop(size_t row) {
  const auto found = rows_.find(row);
  if (found == rows_.end()) return;
  for (size_t k = 0; k < states_.size(); ++k) states_[k].put(found->second.slot, empty_[k]);
  rows_.erase(found);
}

void MtpDraft::on_hidden(size_t row, int64_t begin, const Tensor& hidden_ND) {
  if (hidden_ND.size(0) == 0) return;
  auto found = rows_.find(row);
  if (found != rows_.end() && found->second.begin + found->second.n_tokens != begin) {
    drop(row);
    found = rows_.end();
  }
  if (found == rows_.end()) {
    Row fresh;
    fresh.begin = begin;
    fresh.predictors.resize(states_.size());
    // the first free slot
    const auto taken = [&](int64_t slot) {
      return std::any_of(rows_.begin(), rows_.end(),
                         [slot](const auto& r) { return r.second.slot == slot; });
    };
    while (taken(fresh.slot)) ++fresh.slot;
    for (size_t k = 0; k < states_.size(); ++k)
      if (fresh.slot == states_[k].rows()) states_[k].append(empty_[k]);
    found = rows_.emplace(row, std::move(fresh)).first;
  }
  Row& r = found->second;
  const Tensor own_ND = hidden_ND.clone();
  for (size_t k = 0; k < states_.size(); ++k)
    if (!chained(k)) wait(r.predictors[k], own_ND);
  r.n_tokens += hidden_ND.size(0);
}

std::vector<Tensor> MtpDraft::call(size_t k, const std::vector<RowShare>& parts) {
  nn::Batch batch;
  std::vector<int64_t> ids, positions;
  std::vector<Tensor> read;
  for (const RowShare& part : parts) {
    const Own& own = part.row->predictors[k];
    const int64_t n = part.read_MD.size(0);
    batch.segments.push_back({.row = part.row->slot,
                              .begin = size_of(ids),
                              .length = n,
                              .start = own.read,
                              .pending = part.pending});
    for (int64_t i = 0; i < n; ++i) {
      const int64_t token = part.row->begin + own.read + i;
      positions.push_back(token);
      ids.push_back((*part.tokens)[static_cast<size_t>(token + reach(k))]);
    }
    read.push_back(part.read_MD);
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.positions_N = at::tensor(positions, at::kLong);
  model::ForwardOptions forward;
  forward.state = &states_[k];
  forward.cancel = cancel_;
  const Tensor out = model_.predict(k, at::cat(read), batch, forward);
  std::vector<Tensor> rows;
  for (const nn::Segment& s : batch.segments) rows.push_back(out.narrow(0, s.begin, s.length));
  return rows;
}

std::vector<DraftTree> MtpDraft::draft(const std::vector<DraftModel::Ask>& asks, int64_t budget) {
  struct Going {
    size_t ask;
    Row* row;
    std::vector<int64_t> tokens;  // draft tokens after them
    Tensor last;                  // the predictor's output for the last committed token
    Tensor ahead;                 // its output for pending tokens, after the committed ones
  };
  std::vector<std::vector<int64_t>> drafts(asks.size());
  std::vector<std::vector<std::vector<DraftToken>>> places(asks.size());
  std::vector<Going> going;
  for (size_t a = 0; a < asks.size(); ++a) {
    const auto found = rows_.find(asks[a].row);
    if (found == rows_.end()) continue;
    Row& row = found->second;
    if (row.begin + row.n_tokens != size_of(asks[a].sequence->tokens) - 1) continue;
    going.push_back({a, &row, asks[a].sequence->tokens, {}, {}});
  }
  for (size_t k = 0; k < states_.size() && !going.empty(); ++k) {
    std::erase_if(going,
                  [&](const Going& g) { return asks[g.ask].count <= static_cast<int64_t>(k); });
    // committed tokens, in chunks: tokens whose neighbours, reach(k) positions on, are known
    std::vector<std::vector<Tensor>> made(going.size());
    for (bool more = true; more;) {
      more = false;
      std::vector<RowShare> parts;
      std::vector<size_t> which;
      int64_t room = std::max<int64_t>(budget, 1);
      for (size_t g = 0; g < going.size() && room > 0; ++g) {
        Row& row = *going[g].row;
        Own& own = row.predictors[k];
        const int64_t certain =
            size_of(asks[going[g].ask].sequence->tokens) - std::max<int64_t>(1, reach(k));
        const int64_t left = std::min(own.left(), certain - (row.begin + own.read)),
                      n = std::min(left, room);
        if (n <= 0) continue;
        more = more || n < left;
        room -= n;
        parts.push_back({&row, &going[g].tokens, own.waiting.narrow(0, 0, n), false});
        which.push_back(g);
      }
      if (parts.empty()) break;
      const std::vector<Tensor> out = call(k, parts);
      for (size_t p = 0; p < parts.size(); ++p) {
        Own& own = parts[p].row->predictors[k];
        const int64_t n = out[p].size(0);
        own.read += n;
        own.waiting = own.waiting.narrow(0, n, own.left() - n);
        if (k + 1 < states_.size() && chained(k + 1)) wait(parts[p].row->predictors[k + 1], out[p]);
        made[which[p]].push_back(out[p]);
      }
      more = more || std::ssize(parts) < std::ssize(going);
    }
    // what depends on draft tokens stays pending and is rolled back
    std::vector<RowShare> parts;
    std::vector<size_t> which;
    for (size_t g = 0; g < going.size(); ++g) {
      Row& row = *going[g].row;
      Own& own = row.predictors[k];
      std::vector<Tensor> behind;
      if (own.left() > 0) behind.push_back(own.waiting);
      if (chained(k) && going[g].ahead.defined()) behind.push_back(going[g].ahead);
      going[g].ahead = Tensor();
      going[g].last =
          made[g].empty() ? Tensor() : made[g].back().narrow(0, made[g].back().size(0) - 1, 1);
      if (behind.empty()) continue;
      parts.push_back({&row, &going[g].tokens, at::cat(behind), true});
      which.push_back(g);
    }
    if (!parts.empty()) {
      const std::vector<Tensor> out = call(k, parts);
      for (size_t p = 0; p < parts.size(); ++p) {
        states_[k].commit(parts[p].row->slot, 0);
        going[which[p]].ahead = out[p];
        going[which[p]].last = out[p].narrow(0, out[p].size(0) - 1, 1);
      }
    }
    std::erase_if(going, [](const Going& g) { return !g.last.defined(); });
    if (going.empty()) break;
    std::vector<Tensor> last;
    for (const Going& g : going) last.push_back(g.last);
    const Tensor logits = model_.logits(at::cat(last)).to(at::kCPU, at::kFloat).contiguous();
    for (size_t g = 0; g < going.size(); ++g) {
      const DraftModel::Ask& ask = asks[going[g].ask];
      const std::span<const float> own(
          logits.const_data_ptr<float>() + static_cast<int64_t>(g) * logits.size(1),
          static_cast<size_t>(logits.size(1)));
      const int64_t id = ask.choose(own, going[g].tokens);
      if (ask.width > 1) places[going[g].ask].push_back(draft_tokens_at(own, ask.width, id));
      going[g].tokens.push_back(id);
      drafts[going[g].ask].push_back(id);
    }
  }
  // heads that read no token have the same output for all branches
  bool any = true;
  for (size_t k = 0; k < states_.size(); ++k)
    any = any && !chained(k) && !model_.spec().predictors[k].token;
  std::vector<DraftTree> trees;
  for (size_t a = 0; a < asks.size(); ++a)
    trees.push_back(asks[a].width > 1 ? grow(places[a], asks[a].count * asks[a].width, any)
                                      : DraftTree{drafts[a]});
  return trees;
}

}  // namespace tessera::infer
