#include "tessera/infer/feeder.h"

#include <algorithm>

namespace tessera::infer {

Feeder::Feeder(const model::Model& model,
               size_t rows,
               int64_t prefill_chunk,
               const CancelToken* cancel,
               int64_t max_pending,
               const spec::KvOptions& kv)
    : model_(model),
      prefill_chunk_(prefill_chunk),
      max_pending_(max_pending),
      kv_(kv),
      cancel_(cancel),
      stateful_(model.spec().no_state_reason().empty()),
      fed_(rows, 0),
      encoded_(rows) {
  if (stateful_) {
    state_ = fresh(static_cast<int64_t>(rows));
  } else if (kv.type != spec::KvType::f32) {
    fail(ErrorKind::usage, "kv-type", "{} for a model that keeps no keys and values: {}",
         name_of(kv.type), model.spec().no_state_reason());
  }
}

Tensor Feeder::next(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows) {
  if (!stateful_) return whole(active, rows);
  const int64_t border = model_.spec().switch_length();
  for (const size_t r : active) {  // all angles change here: the row is computed anew
    const auto length = static_cast<int64_t>(rows[r]->tokens.size());
    if (border > 0 && fed_[r] > 0 && fed_[r] <= border && length > border) restart(r);
  }
  std::vector<Tensor> last(active.size());
  for (size_t done = 0; done < active.size();) done = feed_some(active, rows, last);
  return model_.logits(at::stack(last));
}

bool Feeder::changes(const std::vector<size_t>& active,
                     const std::vector<const Sequence*>& rows) const {
  const int64_t border = model_.spec().switch_length();
  return border > 0 && std::any_of(active.begin(), active.end(), [&](size_t r) {
           return fed_[r] <= border && static_cast<int64_t>(rows[r]->tokens.size()) > border;
         });
}

std::vector<Tensor> Feeder::ahead(const std::vector<size_t>& active,
                                  const std::vector<const Sequence*>& rows,
                                  const std::vector<std::vector<int64_t>>& guesses) {
  nn::Batch batch;
  std::vector<int64_t> ids;
  for (const size_t r : active) {
    const auto n = static_cast<int64_t>(guesses[r].size()) + 1;
    batch.segments.push_back(
        {static_cast<int64_t>(r), static_cast<int64_t>(ids.size()), n, fed_[r]});
    ids.push_back(rows[r]->tokens.back());
    ids.insert(ids.end(), guesses[r].begin(), guesses[r].end());
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.number();
  model::ForwardOptions forward;
  forward.state = &state_;
  forward.pending = true;
  forward.cancel = cancel_;
  const Tensor logits = model_.logits(model_.hidden(batch, forward));
  std::vector<Tensor> parts;
  for (const nn::Segment& segment : batch.segments)
    parts.push_back(logits.narrow(0, segment.begin, segment.length));
  return parts;
}

void Feeder::keep(size_t row, int64_t n) {
  state_.commit(static_cast<int64_t>(row), n);
  fed_[row] += n;
}

Tensor Feeder::whole(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows) {
  std::vector<Tensor> last;
  for (const size_t r : active) {
    model::ForwardOptions forward;
    forward.cancel = cancel_;
    if (model_.spec().encoder) {
      if (!encoded_[r]) encoded_[r] = encode({r}, {0}, rows);
      forward.encoded = &*encoded_[r];
    }
    const auto batch = nn::Batch::of(std::vector<std::vector<int64_t>>{rows[r]->tokens});
    last.push_back(model_.hidden(batch, forward).select(0, -1));
  }
  return model_.logits(at::stack(last));
}

nn::Encoded Feeder::encode(const std::vector<size_t>& which,
                           const std::vector<int64_t>& readers,
                           const std::vector<const Sequence*>& rows) const {
  std::vector<std::vector<int64_t>> sources;
  for (const size_t r : which) sources.push_back(rows[r]->source);
  nn::Batch batch = nn::Batch::of(sources);
  for (size_t i = 0; i < readers.size(); ++i) batch.segments[i].row = readers[i];
  model::ForwardOptions forward;
  forward.cancel = cancel_;
  return model_.encode(batch, forward);
}

model::State Feeder::fresh(int64_t rows) const {
  return {model_.spec(), rows, max_pending_, at::TensorOptions().dtype(at::kFloat), kv_};
}

void Feeder::restart(size_t row) {
  // rows keep their numbers: rebuild the list around the fresh one
  std::vector<int64_t> before, after;
  for (int64_t r = 0; r < state_.rows(); ++r)
    (r < static_cast<int64_t>(row) ? before : after).push_back(r);
  after.erase(after.begin());
  model::State rebuilt = state_.select(before);
  rebuilt.append(fresh(1));
  rebuilt.append(state_.select(after));
  state_ = std::move(rebuilt);
  fed_[row] = 0;
}

size_t Feeder::feed_some(const std::vector<size_t>& active,
                         const std::vector<const Sequence*>& rows,
                         std::vector<Tensor>& last) {
  nn::Batch batch;
  std::vector<int64_t> ids;
  std::vector<size_t> slots, encode_rows;
  int64_t source_tokens = 0;
  const int64_t border = model_.spec().switch_length();
  for (size_t a = 0; a < active.size(); ++a) {
    const auto& tokens = rows[active[a]]->tokens;
    const int64_t fed = fed_[active[a]], left = static_cast<int64_t>(tokens.size()) - fed;
    int64_t room = std::max<int64_t>(prefill_chunk_ - static_cast<int64_t>(ids.size()), 0);
    if (border > 0 && static_cast<int64_t>(tokens.size()) > border)
      room = std::max(room, left);  // not cut where angles change
    const int64_t n = std::min(left, room);
    if (n == 0) continue;
    if (const auto source = static_cast<int64_t>(rows[active[a]]->source.size());
        fed == 0 && source > 0) {
      if (!encode_rows.empty() && source_tokens + source > prefill_chunk_) continue;
      source_tokens += source;
      encode_rows.push_back(active[a]);
    }
    batch.segments.push_back(
        {static_cast<int64_t>(active[a]), static_cast<int64_t>(ids.size()), n, fed});
    ids.insert(ids.end(), tokens.begin() + fed, tokens.begin() + fed + n);
    slots.push_back(a);
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.number();
  model::ForwardOptions forward;
  forward.state = &state_;
  forward.cancel = cancel_;
  std::optional<nn::Encoded> encoded;
  if (!encode_rows.empty()) {
    encoded = encode(encode_rows, {encode_rows.begin(), encode_rows.end()}, rows);
    forward.encoded = &*encoded;
  }
  const Tensor hidden = model_.hidden(batch, forward);
  for (size_t i = 0; i < slots.size(); ++i) {
    const nn::Segment& segment = batch.segments[i];
    fed_[active[slots[i]]] += segment.length;
    if (fed_[active[slots[i]]] == static_cast<int64_t>(rows[active[slots[i]]]->tokens.size()))
      last[slots[i]] = hidden.select(0, segment.begin + segment.length - 1);
  }
  return static_cast<size_t>(
      std::count_if(last.begin(), last.end(), [](const Tensor& t) { return t.defined(); }));
}

void Feeder::arrange(const std::vector<size_t>& parents) {
  std::vector<int64_t> fed;
  std::vector<std::optional<nn::Encoded>> encoded;
  bool same = parents.size() == fed_.size();
  for (size_t i = 0; i < parents.size(); ++i) {
    same = same && parents[i] == i;
    fed.push_back(fed_[parents[i]]);
    encoded.push_back(encoded_[parents[i]]);
  }
  if (same) return;
  if (stateful_) state_ = state_.select({parents.begin(), parents.end()});
  fed_ = std::move(fed);
  encoded_ = std::move(encoded);
}

}  // namespace tessera::infer
