#include "tessera/infer/feeder.h"

#include <algorithm>

#include "tessera/model/kept_bits.h"
#include "tessera/model/prefix.h"

namespace tessera::infer {
namespace {

int64_t size_of(const std::vector<int64_t>& ids) {
  return static_cast<int64_t>(ids.size());
}

}  // namespace

Feeder::Feeder(const model::Model& model, size_t rows, const Options& options)
    : model_(model),
      options_(options),
      stateful_(model.spec().no_state_reason().empty()),
      rows_(rows) {
  require(options.cache == nullptr || &options.cache->model() == &model, "feeder",
          "the prefix cache belongs to another model");
  model::check_kv_type(model.spec(), options.kv.type);
  if (stateful_) state_ = fresh(static_cast<int64_t>(rows));
}

void Feeder::resume(size_t row, const model::State& state, const Tensor& last) {
  if (stateful_) begin_with(row, state, 0, last);
}

Tensor Feeder::next(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows) {
  if (!stateful_) return whole(active, rows);
  for (const size_t r : active)
    if (changes(r, *rows[r])) restart(r);
  if (options_.cache != nullptr) share(active, rows);
  const auto unfinished = [&](size_t r) { return rows_[r].fed < size_of(rows[r]->tokens); };
  while (std::any_of(active.begin(), active.end(), unfinished)) feed_some(active, rows);
  std::vector<Tensor> last;
  for (const size_t r : active) {
    rows_[r].fresh = false;
    last.push_back(rows_[r].last);
  }
  return model_.logits(at::stack(last));
}

bool Feeder::changes(const std::vector<size_t>& active,
                     const std::vector<const Sequence*>& rows) const {
  return std::any_of(active.begin(), active.end(), [&](size_t r) { return changes(r, *rows[r]); });
}

bool Feeder::changes(size_t row, const Sequence& sequence) const {
  const int64_t fed = rows_[row].fed;
  return fed > 0 && size_of(sequence.tokens) > model_.spec().angles_until(fed);
}

bool Feeder::far(const Sequence& sequence) const {
  return size_of(sequence.tokens) > model_.spec().angles_until(1);
}

Tensor Feeder::run(const nn::Batch& batch, const nn::Encoded* encoded, bool pending) {
  model::ForwardOptions forward;
  forward.state = &state_;
  forward.encoded = encoded;
  forward.pending = pending;
  // one token, or a few guesses: the rows stay whole, and what was said so far can be kept
  const bool brief = batch.n_tokens() <= static_cast<int64_t>(batch.segments.size()) || pending;
  forward.cancel = brief && encoded == nullptr ? nullptr : options_.cancel;
  return model_.hidden(batch, forward);
}

std::vector<Tensor> Feeder::ahead(const std::vector<size_t>& active,
                                  const std::vector<const Sequence*>& rows,
                                  const std::vector<std::vector<int64_t>>& guesses) {
  nn::Batch batch;
  std::vector<int64_t> ids;
  for (const size_t r : active) {
    const int64_t n = size_of(guesses[r]) + 1;
    batch.segments.push_back(
        {static_cast<int64_t>(r), size_of(ids), n, rows_[r].fed, rows[r]->prefix});
    ids.push_back(rows[r]->tokens.back());
    ids.insert(ids.end(), guesses[r].begin(), guesses[r].end());
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.number();
  const Tensor hidden = run(batch, nullptr, true);
  const Tensor logits = model_.logits(hidden);
  std::vector<Tensor> parts;
  for (const nn::Segment& segment : batch.segments) {
    rows_[static_cast<size_t>(segment.row)].ahead = hidden.narrow(0, segment.begin, segment.length);
    parts.push_back(logits.narrow(0, segment.begin, segment.length));
  }
  return parts;
}

void Feeder::keep(size_t row, int64_t n) {
  state_.commit(static_cast<int64_t>(row), n);
  rows_[row].fed += n;
  if (n > 0) rows_[row].last = rows_[row].ahead.select(0, n - 1).clone();
  rows_[row].ahead = Tensor();
}

Tensor Feeder::whole(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows) {
  std::vector<Tensor> last;
  for (const size_t r : active) {
    model::ForwardOptions forward;
    forward.cancel = options_.cancel;
    if (model_.spec().encoder) {
      if (!rows_[r].encoded) rows_[r].encoded = encode({r}, {0}, rows);
      forward.encoded = &*rows_[r].encoded;
    }
    auto batch = nn::Batch::of(std::vector<std::vector<int64_t>>{rows[r]->tokens});
    batch.segments[0].prefix = rows[r]->prefix;
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
  forward.cancel = options_.cancel;
  return model_.encode(batch, forward);
}

model::State Feeder::fresh(int64_t rows) const {
  return {model_.spec(), rows, options_.max_pending, at::TensorOptions().dtype(at::kFloat),
          options_.kv};
}

void Feeder::restart(size_t row) {
  state_.put(static_cast<int64_t>(row), fresh(1));
  rows_[row].fed = rows_[row].reused = 0;
  rows_[row].last = Tensor();
}

void Feeder::feed_some(const std::vector<size_t>& active,
                       const std::vector<const Sequence*>& rows) {
  nn::Batch batch;
  std::vector<int64_t> ids;
  std::vector<size_t> encode_rows;
  int64_t source_tokens = 0;
  for (const size_t r : active) {
    const Row& row = rows_[r];
    const auto& tokens = rows[r]->tokens;
    const int64_t left = size_of(tokens) - row.fed;
    if (left == 0 || row.wait) continue;
    int64_t room = std::max<int64_t>(options_.prefill_chunk - size_of(ids), 0);
    if (far(*rows[r])) room = std::max(room, left);  // not cut where angles change
    // nor where tokens see each other
    room = std::max(room, model::longest_prefix(model_.spec(), rows[r]->prefix) - row.fed);
    if (const auto stop = row.stops.upper_bound(row.fed); stop != row.stops.end())
      room = std::min(room, *stop - row.fed);
    const int64_t n = std::min(left, room);
    if (n == 0) continue;
    if (const int64_t source = size_of(rows[r]->source);
        row.fed == 0 && source > 0 && state_.source_length(static_cast<int64_t>(r)) == 0) {
      if (!encode_rows.empty() && source_tokens + source > options_.prefill_chunk) continue;
      source_tokens += source;
      encode_rows.push_back(r);
    }
    batch.segments.push_back({static_cast<int64_t>(r), size_of(ids), n, row.fed, rows[r]->prefix});
    ids.insert(ids.end(), tokens.begin() + row.fed, tokens.begin() + row.fed + n);
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.number();
  std::optional<nn::Encoded> encoded;
  if (!encode_rows.empty())
    encoded = encode(encode_rows, {encode_rows.begin(), encode_rows.end()}, rows);
  const Tensor hidden = run(batch, encoded ? &*encoded : nullptr, false);
  for (const nn::Segment& segment : batch.segments) {
    Row& row = rows_[static_cast<size_t>(segment.row)];
    row.fed += segment.length;
    // a copy: a view would keep the hidden states of all
    row.last = hidden.select(0, segment.begin + segment.length - 1).clone();
  }
  if (options_.cache == nullptr) return;
  for (const nn::Segment& segment : batch.segments) settle(static_cast<size_t>(segment.row), rows);
}

// --- sharing

/// Of a row after n tokens in one go: its angles are those of its length then.
PrefixCache::Kind Feeder::kind_after(int64_t n) const {
  return {options_.max_pending, options_.kv.type, model_.spec().angles_until(n)};
}

void Feeder::begin_with(size_t row,
                        const model::State& state,
                        int64_t from_row,
                        const Tensor& last) {
  state_.put(static_cast<int64_t>(row), state, from_row);
  Row& r = rows_[row];
  r.fed = state_.length(static_cast<int64_t>(row));
  r.reused = r.fed + state_.source_length(static_cast<int64_t>(row));
  r.last = last;
}

void Feeder::share(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows) {
  std::vector<size_t> near;
  std::vector<const Sequence*> sequences;
  std::vector<int64_t> fed;
  for (const size_t r : active) {
    Row& row = rows_[r];
    row.wait.reset();
    row.stops.clear();
    row.fresh = row.fed == 0;
    if (!row.fresh) continue;
    if (const auto hit = options_.cache->find(*rows[r], kind_after(size_of(rows[r]->tokens)))) {
      begin_with(r, *hit->state, 0, hit->last);
      options_.cache->count_hit(row.reused);
    }
    // beyond where angles change a prompt is computed in one call, which cannot stop for others
    if (far(*rows[r])) continue;
    near.push_back(r);
    sequences.push_back(rows[r]);
    fed.push_back(row.fed);
  }
  const auto waits = shared_prefixes(sequences, fed, options_.cache->options().least);
  for (size_t i = 0; i < near.size(); ++i) {
    plan_stops(near[i], *sequences[i]);
    if (waits[i]) rows_[near[i]].wait = Wait{near[waits[i]->row], waits[i]->at};
  }
  for (const size_t r : near)
    if (rows_[r].wait) rows_[rows_[r].wait->row].stops.insert(rows_[r].wait->at);
}

/// Where snapshots of a prompt are due: at its end they are taken anyway.
void Feeder::plan_stops(size_t row, const Sequence& sequence) {
  const int64_t every = options_.cache->options().snapshot_every;
  if (every == 0 || options_.cache->cuts()) return;
  for (int64_t at = every; at < size_of(sequence.tokens); at += every) rows_[row].stops.insert(at);
}

void Feeder::settle(size_t row, const std::vector<const Sequence*>& rows) {
  if (!rows_[row].fresh) return;
  const int64_t fed = rows_[row].fed;
  if (fed < size_of(rows[row]->tokens) && !rows_[row].stops.contains(fed)) return;
  snapshot(row, *rows[row]);
  for (size_t r = 0; r < rows_.size(); ++r)
    if (rows_[r].wait && rows_[r].wait->row == row && rows_[r].wait->at == fed) {
      rows_[r].wait.reset();
      begin_with(r, state_, static_cast<int64_t>(row), rows_[row].last);
      options_.cache->count_hit(rows_[r].reused);
    }
}

void Feeder::snapshot(size_t row, const Sequence& sequence) {
  const Row& r = rows_[row];
  const PrefixCache::Kind kind = kind_after(r.fed);
  if (r.fed == 0 || !options_.cache->wants(sequence, r.fed, kind)) return;
  options_.cache->add(sequence, r.fed, kind, state_.select({static_cast<int64_t>(row)}), r.last);
}

void Feeder::remember(const std::vector<const Sequence*>& rows) {
  if (options_.cache == nullptr || !stateful_) return;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    // a cut-off call leaves nothing that could be continued
    if (state_.can_cut(row, state_.length(row)) && rows_[r].last.defined()) snapshot(r, *rows[r]);
  }
}

void Feeder::arrange(const std::vector<size_t>& parents) {
  bool same = parents.size() == rows_.size();
  std::vector<Row> arranged;
  for (size_t i = 0; i < parents.size(); ++i) {
    same = same && parents[i] == i;
    arranged.push_back(rows_[parents[i]]);
  }
  if (same) return;
  if (stateful_) state_ = state_.select({parents.begin(), parents.end()});
  rows_ = std::move(arranged);
}

}  // namespace tessera::infer
