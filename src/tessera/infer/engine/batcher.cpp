#include "tessera/infer/engine/batcher.h"

#include <algorithm>

#include "tessera/model/kv_quantization.h"
#include "tessera/infer/engine/request.h"
#include "tessera/model/call_plan.h"
#include "tessera/model/placement.h"
#include "tessera/nn/embed/feature_batch.h"

namespace tessera::infer {
namespace {

/// Prompts are cut where blocks of queries end.
constexpr int64_t kBlock = 16;

}  // namespace

at::ScalarType numbers_of(const model::Model& model) {
  const auto& all = model.weights().all();
  const bool doubles = std::any_of(all.begin(), all.end(), [](const auto& named) {
    const Tensor& tensor = named.second->dense_tensor();
    return tensor.defined() && tensor.scalar_type() == at::kDouble;
  });
  return doubles ? at::kDouble : at::kFloat;
}

Batcher::Batcher(const model::Model& model, const Options& options)
    : model_(model),
      options_(options),
      calls_(model.spec()),
      stateful_(calls_.goes_on()),
      virtual_(model.virtual_tokens()) {
  require(options.cache == nullptr || &options.cache->model() == &model, "feeder",
          "the prefix cache belongs to another model");
  model::check_kv_type(model.spec(), options.kv.type);
  if (!stateful_) return;
  empty_ =
      model::State(model.spec(), 1, options.max_pending,
                   at::TensorOptions(model::device_of(model)).dtype(numbers_of(model)), options.kv);
  state_ = empty_.select({});
  // statistics are read by the host
  if (options.layers == 0 && !options.statistics &&
      model::RecordedSteps::unavailable_reason(model, options.kv.type).empty())
    recorded_ = std::make_unique<model::RecordedSteps>(model);
}

// --- rows

size_t Batcher::add() {
  size_t& row = first_free_;
  while (row < rows_.size() && rows_[row].used) ++row;
  if (row == rows_.size()) {
    rows_.emplace_back();
    if (stateful_) state_.append(empty_);
  }
  rows_[row].used = true;
  return row;
}

void Batcher::drop(size_t row) {
  restart(row);
  rows_[row] = Row();
  first_free_ = std::min(first_free_, row);
}

void Batcher::restart(size_t row) {
  if (stateful_) state_.put(static_cast<int64_t>(row), empty_);
  rows_[row] = Row();
  rows_[row].used = true;
}

void Batcher::resume(size_t row, const model::State& state, const Tensor& last) {
  if (!stateful_) return;
  begin_with(row, state, 0, last);
  rows_[row].fresh = false;
}

void Batcher::begin_with(size_t row,
                         const model::State& state,
                         int64_t from_row,
                         const Tensor& last) {
  state_.put(static_cast<int64_t>(row), state, from_row);
  Row& r = rows_[row];
  r.fed = std::max<int64_t>(0, state_.length(static_cast<int64_t>(row)) - virtual_);
  r.reused = r.fed + state_.source_length(static_cast<int64_t>(row));
  r.last = last;
}

void Batcher::reorder_rows(std::span<const size_t> rows, std::span<const size_t> parents) {
  bool moves = false;
  for (size_t i = 0; i < parents.size(); ++i) moves = moves || parents[i] != i;
  if (!moves) return;
  std::vector<int64_t> from;
  std::vector<Row> was;
  for (const size_t parent : parents) {
    from.push_back(static_cast<int64_t>(rows[parent]));
    was.push_back(rows_[rows[parent]]);
  }
  const model::State picked = stateful_ ? state_.select(from) : model::State();
  for (size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] == i) continue;
    if (stateful_) state_.put(static_cast<int64_t>(rows[i]), picked, static_cast<int64_t>(i));
    rows_[rows[i]] = std::move(was[i]);
  }
}

model::State Batcher::state(size_t row) const {
  return stateful_ ? state_.select({static_cast<int64_t>(row)}) : model::State();
}

bool Batcher::decodes(const Work& work) const {
  if (work.whole) return rows_[work.row].encoded.has_value();
  return rows_[work.row].fed + 1 >= size_of(work.sequence->tokens);
}

bool Batcher::ready(const Work& work) const {
  const Row& row = rows_[work.row];
  return row.fed + row.pending() == size_of(work.sequence->tokens) + work.drafts.size();
}

Tensor Batcher::hidden(size_t row) const {
  return rows_[row].pending() > 0 ? rows_[row].ahead : rows_[row].last.unsqueeze(0);
}

void Batcher::keep(size_t row, int64_t n) {
  if (stateful_) state_.commit(static_cast<int64_t>(row), n);
  rows_[row].fed += n;
  if (n > 0) rows_[row].last = rows_[row].ahead.select(0, n - 1).clone();
  rows_[row].ahead = Tensor();
}

void Batcher::keep(size_t row, const std::vector<int64_t>& drafts) {
  const auto n = static_cast<int64_t>(drafts.size());
  if (n == 0 || drafts.back() + 1 == n) return keep(row, n + 1);
  // entries of the branch move to the front of the pending ones
  std::vector<int64_t> way = {0};
  for (const int64_t draft : drafts) way.push_back(draft + 1);
  Row& r = rows_[row];
  nn::Batch batch;
  batch.segments.push_back({.row = static_cast<int64_t>(row)});
  const auto layout = model::state_layout(model_.spec(), options_.kv.type);
  for (size_t b = 0; b < layout.size(); ++b) {
    nn::RowState& branch = *state_.branch(b, batch)[0];
    for (size_t d = 0; d < layout[b].tensors.size(); ++d) {
      if (layout[b].tensors[d].kind != spec::StateDecl::Kind::per_token) continue;
      nn::TokenBuffer& entries = branch.tokens(d);
      const int64_t first = entries.length() - r.pending();
      std::vector<Tensor> own;
      for (const int64_t i : way) own.push_back(entries.joined(first + i, first + i + 1).clone());
      entries.truncate(first);
      entries.append(at::cat(own));
    }
  }
  r.ahead = r.ahead.index_select(0, at::tensor(way, at::kLong).to(r.ahead.device()));
  keep(row, n + 1);
}

bool Batcher::changes(size_t row, const Sequence& sequence) const {
  const int64_t fed = rows_[row].fed;
  return stateful_ && fed > 0 && place(size_of(sequence.tokens)) > calls_.until(place(fed));
}

bool Batcher::far(const Sequence& sequence) const {
  return place(size_of(sequence.tokens)) > calls_.until_in_cuts();
}

// --- calls

/// A call under construction.
struct Batcher::Call {
  nn::Batch batch;
  std::vector<int64_t> ids;
  std::vector<const Work*> works;  // by segment
  std::vector<const Sequence*> sources;
  std::vector<int64_t> readers;
  int64_t source_tokens = 0;
  std::vector<std::pair<int64_t, int64_t>>
      moved;  // tokens of a tree: distance to their position in the chain
};

/// Number of prefix tokens, virtual ones included.
int64_t Batcher::given(const Sequence& sequence) const {
  return sequence.prefix > 0 ? place(sequence.prefix) : 0;
}

int64_t Batcher::room(const Work& work, int64_t left, int64_t budget) const {
  const Row& row = rows_[work.row];
  int64_t room = std::max<int64_t>(budget, 0);
  if (const int64_t over = place(row.fed + room) % kBlock; room < left && over < room) room -= over;
  if (far(*work.sequence)) room = std::max(room, left);  // not chunked where rotary angles change
  // nor inside a bidirectional prefix
  room = std::max(room, calls_.first_call(given(*work.sequence)) - place(row.fed));
  if (const auto stop = row.stops.upper_bound(row.fed); stop != row.stops.end())
    room = std::min(room, *stop - row.fed);
  return std::min(left, room);
}

void Batcher::plan(Call& call, const Work& work, int64_t budget) const {
  const Row& row = rows_[work.row];
  const std::vector<int64_t>& tokens = work.sequence->tokens;
  const int64_t own = size_of(tokens), begin = row.fed + row.pending();
  const bool pending = !work.drafts.empty() && begin >= own - 1;
  const int64_t end = own + (pending ? work.drafts.size() : 0), left = end - begin;
  if (left == 0 || row.wait) return;
  const int64_t n = left == 1 || pending ? left : room(work, left, budget - size_of(call.ids));
  if (n == 0) return;
  if (const int64_t source = size_of(work.sequence->source);
      begin == 0 && source > 0 && state_.source_length(static_cast<int64_t>(work.row)) == 0) {
    if (!call.sources.empty() && call.source_tokens + source > budget) return;
    call.source_tokens += source;
    call.sources.push_back(work.sequence);
    call.readers.push_back(static_cast<int64_t>(work.row));
  }
  call.batch.segments.push_back({.row = static_cast<int64_t>(work.row),
                                 .begin = size_of(call.ids),
                                 .length = n + virtual_at(begin),
                                 .start = begin == 0 ? 0 : place(begin),
                                 .prefix = given(*work.sequence),
                                 .pending = pending});
  call.works.push_back(&work);
  call.ids.insert(call.ids.end(), static_cast<size_t>(virtual_at(begin)), 0);
  for (int64_t i = begin; i < begin + n; ++i) {
    if (const int64_t draft = i - own; draft >= 0 && work.drafts.depth(draft) < draft)
      call.moved.emplace_back(size_of(call.ids), draft - work.drafts.depth(draft));
    call.ids.push_back(i < own ? tokens[static_cast<size_t>(i)]
                               : work.drafts.ids[static_cast<size_t>(i - own)]);
  }
}

void Batcher::step(std::span<const Work> work, int64_t budget) {
  fed_.clear();
  called_.clear();
  called_tokens_ = called_source_tokens_ = 0;
  if (!stateful_) return whole(work, budget);
  for (const Work& w : work)
    if (changes(w.row, *w.sequence)) restart(w.row);
  if (options_.cache != nullptr) share(work);
  // decoding rows first
  Call call;
  std::vector<const Work*> prompts;
  for (const Work& w : work)
    if (decodes(w))
      plan(call, w, budget);
    else if (!rows_[w.row].wait)
      prompts.push_back(&w);
  plan_prompts(call, prompts, budget);
  if (!call.works.empty()) run(call);
}

/// The prompt with the fewest tokens left goes first, which minimizes the mean time to first token.
/// The oldest prompt still has half of the budget, so that it does not starve.
void Batcher::plan_prompts(Call& call, std::vector<const Work*>& prompts, int64_t budget) const {
  if (prompts.empty()) return;
  const Work* const oldest = prompts.front();
  const auto left = [&](const Work* w) { return size_of(w->sequence->tokens) - rows_[w->row].fed; };
  std::stable_sort(prompts.begin(), prompts.end(),
                   [&](const Work* a, const Work* b) { return left(a) < left(b); });
  const int64_t room = budget - size_of(call.ids);
  const bool apart = prompts.front() != oldest && room > 0;
  if (apart) {
    int64_t others = -left(oldest);
    for (const Work* w : prompts) others += left(w);
    plan(call, *oldest, size_of(call.ids) + std::max<int64_t>({1, room / 2, room - others}));
  }
  for (const Work* w : prompts)
    if (w != oldest || !apart) plan(call, *w, budget);
}

void Batcher::run(const Call& call) {
  for (const Work* work : call.works) called_.push_back(work->row);
  called_tokens_ = size_of(call.ids);
  called_source_tokens_ = call.source_tokens;
  nn::Batch batch = call.batch;
  batch.ids_N = at::tensor(call.ids, at::kLong);
  batch.number();
  for (const auto& [token, nearer] : call.moved)
    batch.positions_N.data_ptr<int64_t>()[token] -= nearer;
  std::optional<nn::Encoded> encoded;
  if (!call.sources.empty()) encoded = encode(call.sources, call.readers);
  model::ForwardOptions forward;
  forward.state = &state_;
  forward.layers = options_.layers;
  forward.add_statistic = options_.statistics;
  forward.encoded = encoded ? &*encoded : nullptr;
  // a short call is not cancelled: the rows stay whole, and the text so far can be saved
  const bool brief = std::all_of(batch.segments.begin(), batch.segments.end(),
                                 [](const nn::Segment& s) { return s.length == 1 || s.pending; });
  forward.cancel = brief && !encoded ? nullptr : options_.cancel;
  Tensor hidden = recorded_ && !encoded ? recorded_->hidden(batch, state_) : Tensor();
  if (!hidden.defined()) hidden = model_.hidden(batch, forward);
  for (size_t i = 0; i < call.works.size(); ++i) {
    const nn::Segment& segment = batch.segments[i];
    Row& row = rows_[call.works[i]->row];
    const int64_t begin = segment.start == 0 ? 0 : segment.start - virtual_,
                  n = segment.length - virtual_at(begin);
    const Tensor own = hidden.narrow(0, segment.begin + virtual_at(begin), n);
    if (segment.pending) {
      row.ahead = row.ahead.defined() ? at::cat({row.ahead, own}) : own;
      continue;
    }
    fed_.push_back({call.works[i]->row, begin, own});
    row.fed += n;
    row.last = own.select(0, -1).clone();
    if (options_.cache != nullptr) settle(call.works[i]->row, *call.works[i]->sequence);
    if (row.fed == size_of(call.works[i]->sequence->tokens)) row.fresh = false;
  }
}

void Batcher::whole(std::span<const Work> work, int64_t budget) {
  std::vector<const Work*> works;
  std::vector<std::vector<int64_t>> documents;
  for (const Work& w : work) {
    const int64_t length = size_of(w.sequence->tokens);
    if (ready(w) || (!works.empty() && called_tokens_ + length > budget)) continue;
    works.push_back(&w);
    documents.push_back(w.sequence->tokens);
    called_.push_back(w.row);
    called_tokens_ += length;
  }
  if (works.empty()) return;
  nn::Batch batch = nn::Batch::of(documents);
  for (size_t i = 0; i < works.size(); ++i) batch.segments[i].prefix = works[i]->sequence->prefix;
  model::ForwardOptions forward;
  forward.cancel = options_.cancel;
  forward.add_statistic = options_.statistics;
  std::optional<nn::Encoded> encoded;
  if (model_.spec().encoder) forward.encoded = &encoded.emplace(encoded_once(works));
  const Tensor hidden = model_.hidden(batch, forward);
  for (size_t i = 0; i < works.size(); ++i) {
    const nn::Segment& segment = batch.segments[i];
    Row& row = rows_[works[i]->row];
    const Tensor own = hidden.narrow(0, segment.begin, segment.length);
    if (works[i]->whole) {
      row.ahead = own;
      continue;
    }
    fed_.push_back({works[i]->row, 0, own});
    row.last = own.select(0, -1).clone();
    row.fed = segment.length;
  }
}

nn::Encoded Batcher::encoded_once(const std::vector<const Work*>& works) {
  std::vector<std::vector<int64_t>> sources;
  std::vector<Tensor> x;
  for (const Work* work : works) {
    std::optional<nn::Encoded>& own = rows_[work->row].encoded;
    if (!own) {
      own = encode({work->sequence}, {0});
      called_source_tokens_ += size_of(work->sequence->source);
    }
    sources.push_back(work->sequence->source);
    x.push_back(own->x_SD);
  }
  return {nn::Batch::of(sources), at::cat(x)};
}

nn::Encoded Batcher::encode(const std::vector<const Sequence*>& sequences,
                            const std::vector<int64_t>& readers) const {
  std::vector<std::vector<int64_t>> sources;
  std::vector<Tensor> features;
  for (const Sequence* sequence : sequences) {
    sources.push_back(sequence->source);
    if (sequence->features) features.push_back(*sequence->features);
  }
  nn::Batch batch = sequences.front()->features != nullptr
                        ? nn::feature_batch(*feature_source(model_.spec()), features)
                        : nn::Batch::of(sources);
  for (size_t i = 0; i < readers.size(); ++i) batch.segments[i].row = readers[i];
  model::ForwardOptions forward;
  forward.cancel = options_.cancel;
  return model_.encode(batch, forward);
}

// --- sharing

/// Kind of a row after n tokens in one call: its rotary angles are those of that length.
PrefixCache::Kind Batcher::kind_after(int64_t n) const {
  return {options_.max_pending, options_.kv.type, calls_.until(place(n))};
}

void Batcher::share(std::span<const Work> work) {
  std::vector<size_t> near;
  std::vector<const Sequence*> sequences;
  std::vector<int64_t> fed, most;
  for (const Work& w : work) {
    Row& row = rows_[w.row];
    row.wait.reset();
    row.stops.clear();
    if (!row.fresh) continue;
    if (!row.sought) {
      row.sought = true;
      const PrefixCache::Kind kind = kind_after(size_of(w.sequence->tokens));
      if (const auto hit =
              w.own > 0 ? options_.cache->find(*w.sequence, kind, w.own) : std::nullopt) {
        begin_with(w.row, *hit->state, 0, hit->last);
        options_.cache->count_hit(row.reused);
      }
    }
    if (row.fed == size_of(w.sequence->tokens)) {
      row.fresh = false;
      continue;
    }
    // beyond a change of rotary angles a prompt is computed in one call, which cannot stop for
    // others
    if (far(*w.sequence)) continue;
    near.push_back(w.row);
    sequences.push_back(w.sequence);
    fed.push_back(row.fed);
    most.push_back(w.own);
  }
  const auto waits = shared_prefixes(sequences, fed, most, options_.cache->options().least);
  for (size_t i = 0; i < near.size(); ++i) {
    plan_stops(near[i], *sequences[i]);
    if (waits[i]) rows_[near[i]].wait = Wait{near[waits[i]->row], waits[i]->at};
  }
  for (const size_t r : near)
    if (rows_[r].wait) rows_[rows_[r].wait->row].stops.insert(rows_[r].wait->at);
}

/// Lengths at which to take snapshots of a prompt; one at its end is taken anyway.
void Batcher::plan_stops(size_t row, const Sequence& sequence) {
  const int64_t every = options_.cache->options().snapshot_every;
  if (every == 0 || options_.cache->cuts()) return;
  for (int64_t at = every; at < size_of(sequence.tokens); at += every) rows_[row].stops.insert(at);
}

void Batcher::settle(size_t row, const Sequence& sequence) {
  if (!rows_[row].fresh) return;
  const int64_t fed = rows_[row].fed;
  if (fed < size_of(sequence.tokens) && !rows_[row].stops.contains(fed)) return;
  snapshot(row, sequence);
  for (size_t r = 0; r < rows_.size(); ++r)
    if (rows_[r].wait && rows_[r].wait->row == row && rows_[r].wait->at == fed) {
      rows_[r].wait.reset();
      begin_with(r, state_, static_cast<int64_t>(row), rows_[row].last);
      options_.cache->count_hit(rows_[r].reused);
    }
}

void Batcher::snapshot(size_t row, const Sequence& sequence) {
  const Row& r = rows_[row];
  const PrefixCache::Kind kind = kind_after(r.fed);
  if (r.fed == 0 || !options_.cache->wants(sequence, r.fed, kind)) return;
  options_.cache->add(sequence, r.fed, kind, state_.select({static_cast<int64_t>(row)}), r.last);
}

void Batcher::cache_prefix(size_t row, const Sequence& sequence) {
  if (options_.cache == nullptr || !stateful_ || !rows_[row].last.defined()) return;
  // a cancelled call leaves no state to resume from
  const auto r = static_cast<int64_t>(row);
  if (state_.can_truncate(r, state_.length(r))) snapshot(row, sequence);
}

}  // namespace tessera::infer
