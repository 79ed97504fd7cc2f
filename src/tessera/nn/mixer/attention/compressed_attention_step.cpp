#include "tessera/nn/mixer/attention/compressed_attention_step.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/indexer.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/position/turn.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

/// Products of an entry pool.
struct PoolStep {
  const EntryPool* pool;
  StepProduct kv, gate;
  PoolStep(const EntryPool& of, StepWeights& weights)
      : pool(&of), kv(weights.product(of.kv())), gate(weights.product(of.gate())) {}
  /// Numbers of a token that is to be pooled.
  int64_t width() const { return kv.rows() + gate.rows(); }
};

class CompressedStep final : public PartStep {
 public:
  CompressedStep(const CompressedAttentionParts& parts, StepWeights& weights)
      : config(parts.config),
        position(parts.position),
        q(weights.product(parts.q)),
        kv(weights.product(parts.kv)),
        o(weights.product(parts.o)),
        sinks(weights.numbers(parts.sinks)) {
    if (parts.q_a.weight) q_a = weights.product(parts.q_a);
    if (parts.q_a_norm != nullptr) q_a_norm = weights.norm(*parts.q_a_norm);
    if (parts.query_norm != nullptr) query_norm = weights.norm(*parts.query_norm);
    if (parts.kv_norm != nullptr) kv_norm = weights.norm(*parts.kv_norm);
    if (parts.pool != nullptr) pool.emplace(*parts.pool, weights);
    if (parts.index_pool != nullptr) {
      index_pool.emplace(*parts.index_pool, weights);
      index_q = weights.product(parts.index_q);
      index_weights = weights.product(parts.index_weights);
    }
    if (parts.o_a.weight) {
      o_a = weights.heads(parts.o_a.weight, parts.o_a.groups);
      // the tensor path multiplies in float32
      float32_groups = parts.o_a.groups == 1 || o_a->arithmetic == kernels::Arithmetic::float32;
    }
    weights.alike({&reads_x(), &kv, as_given(index_weights), pool ? &pool->kv : nullptr,
                   pool ? &pool->gate : nullptr, index_pool ? &index_pool->kv : nullptr,
                   index_pool ? &index_pool->gate : nullptr, q_a ? nullptr : as_given(index_q)});
    weights.alike({&q, as_given(index_q)});
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  /// The queries' product of what the layer reads.
  const StepProduct& reads_x() const { return q_a ? *q_a : q; }

  const CompressedAttentionConfig& config;
  const Position& position;
  std::optional<StepProduct> q_a, index_q, index_weights, o_a;
  StepProduct q, kv, o;
  std::optional<PoolStep> pool, index_pool;
  std::shared_ptr<const NormStep> q_a_norm, query_norm, kv_norm;
  StepNumbers sinks;
  bool float32_groups = true;
};

class CompressedCall final : public StepCall {
 public:
  CompressedCall(const CompressedStep& step, Context& context, const StateRows& rows)
      : s_(step),
        c_(step.config),
        batch_(*context.batch),
        rows_(rows),
        n_(batch_.n_tokens()),
        of_rows_(rows.size()),
        scores_of_(rows.size()),
        calls_(rows.size()) {
    turn_q_ = rotation(Side::query, context);
    turn_k_ = rotation(Side::key, context);
    back_ = turn_q_;
    if (turn_q_.table != nullptr) {
      back_table_ = {turn_q_.table->cos_NR, -turn_q_.table->sin_NR};
      back_.table = &back_table_;
    }
    if (s_.pool) {
      entries_ = entry_call_of(context, &rows, c_.block);
      if (entries_->batch.n_tokens() > 0) turn_entries_ = rotation(Side::key, entries_->context);
    }
    if (s_.index_pool) {
      const int64_t entries = batch_.longest() / c_.block;
      if (entries > c_.index.top_k) {
        entry_NK_ = at::zeros({n_, c_.index.top_k}, at::kInt);
        scores_stride_ = entries;
      }
    }
    for (kernels::Attention& call : calls_) call.T = 1, call.H = c_.n_heads, call.V = c_.head_dim;
    take();
  }

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    project(team, x_ND, memory);
    // a sequence is one thread's: what it keeps, and what its query reads
    const Team::Share own = team.share(n_);
    for (int64_t i = own.begin; i < own.end; ++i) finish(i, memory);
    team.wait();
    if (entry_NK_.defined()) {
      kernels::index_scores(team, scores_of_.data(), static_cast<int64_t>(scores_of_.size()));
      team.wait();
      for (int64_t i = own.begin; i < own.end; ++i)
        if (chooses(i))
          ops::top_of_scores(memory + scores_ + i * scores_stride_, met(i), c_.index.top_k,
                             entry_NK_.data_ptr<int32_t>() + i * c_.index.top_k);
      team.wait();
    }
    kernels::attend(team, calls_.data(), static_cast<int64_t>(calls_.size()), memory + partials_);
    team.wait();
    const int64_t width = c_.n_heads * c_.head_dim;
    for (int64_t i = own.begin; i < own.end; ++i)
      turn(back_, i, 1, turning(memory + read_ + i * width, c_.n_heads));
    output(team, y_ND, memory);
  }

 private:
  /// What a query reads, of each row.
  struct Seen {
    std::vector<TokenBuffer::Run> runs;
    std::vector<kernels::KeySpan> spans;
    std::vector<kernels::IndexKeys> index_keys;
    std::unique_ptr<EntriesAndWindow> visible;
  };

  void take() {
    const auto rows_of = [&](int64_t width) { return memory_.take(n_ * width); };
    const auto input_of = [&](int64_t width) { return memory_.take(StepInput::floats(n_, width)); };
    const int64_t width = c_.n_heads * c_.head_dim, rank = s_.q_a ? s_.q.width() : 0;
    input_ = input_of(s_.kv.width()), input_latent_ = input_of(rank);
    latent_ = rows_of(rank), q_ = rows_of(width), kv_ = rows_of(c_.head_dim);
    tokens_ = rows_of(s_.pool ? s_.pool->width() : 0);
    if (s_.index_pool) {
      index_tokens_ = rows_of(s_.index_pool->width());
      index_q_ = rows_of(s_.index_q->rows());
      index_weights_ = rows_of(s_.index_weights->rows());
      scores_ = rows_of(scores_stride_);
    }
    read_ = rows_of(width);
    if (s_.o_a) {
      const int64_t groups = s_.o_a->matrices;
      for (int64_t g = 0; g <= groups; ++g) offsets_.push_back(g * n_);
      grouped_ = rows_of(width), low_by_group_ = rows_of(groups * s_.o_a->rows());
      low_ = rows_of(groups * s_.o_a->rows());
      input_grouped_ = memory_.take(StepInput::floats(n_ * groups, s_.o_a->width()));
    }
    input_out_ = input_of(s_.o.width());
    // lists of keys need none
    partials_ =
        memory_.take(s_.pool ? 0
                             : kernels::team_floats(
                                   calls_.data(), static_cast<int64_t>(calls_.size()), c_.window));
  }

  Rotation rotation(Side side, Context& context) const {
    return s_.position.rotation(side, c_.rope_head_dim, at::kFloat, context);
  }
  /// The channels of one token's heads that rotate.
  HeadRows turning(float* x, int64_t heads) const { return turning(x, heads, c_.head_dim); }
  HeadRows turning(float* x, int64_t heads, int64_t width) const {
    return {x + width - c_.rope_head_dim, heads, width, heads * width};
  }

  /// All products before attention; waits.
  void project(Team& team, const float* x_ND, float* memory) const {
    StepInput in(x_ND, n_, s_.kv.width(), memory + input_);
    const auto pooled = [](const std::optional<PoolStep>& of, bool gate) -> const StepProduct* {
      return !of ? nullptr : gate ? &of->gate : &of->kv;
    };
    const StepProduct *kv = pooled(s_.pool, false), *gate = pooled(s_.pool, true),
                      *index_kv = pooled(s_.index_pool, false),
                      *index_gate = pooled(s_.index_pool, true),
                      *weights = as_given(s_.index_weights), *index_q = as_given(s_.index_q);
    in.prepare(team, {&s_.reads_x(), &s_.kv, kv, gate, index_kv, index_gate, weights,
                      s_.q_a ? nullptr : index_q});
    team.wait();
    const int64_t stride = s_.pool ? s_.pool->width() : 0,
                  index_stride = s_.index_pool ? s_.index_pool->width() : 0;
    float *tokens = memory + tokens_, *index_tokens = memory + index_tokens_;
    multiply(team, in,
             {{&s_.reads_x(), memory + (s_.q_a ? latent_ : q_)},
              {&s_.kv, memory + kv_},
              {kv, tokens, nullptr, stride},
              {gate, kv != nullptr ? tokens + kv->rows() : nullptr, nullptr, stride},
              {index_kv, index_tokens, nullptr, index_stride},
              {index_gate, index_kv != nullptr ? index_tokens + index_kv->rows() : nullptr, nullptr,
               index_stride},
              {weights, memory + index_weights_},
              {s_.q_a ? nullptr : index_q, memory + index_q_}});
    team.wait();
    if (!s_.q_a) return;
    const int64_t rank = s_.q.width();
    const Team::Share mine = team.share(n_);
    float* latent = memory + latent_ + mine.begin * rank;
    if (s_.q_a_norm) (*s_.q_a_norm)(latent, mine.end - mine.begin, rank, latent);
    StepInput of_latent(memory + latent_, n_, rank, memory + input_latent_);
    of_latent.prepare(team, {&s_.q, index_q});
    team.wait();
    multiply(team, of_latent, {{&s_.q, memory + q_}, {index_q, memory + index_q_}});
    team.wait();
  }

  int64_t start(int64_t i) const { return batch_.segments[static_cast<size_t>(i)].start; }
  /// Entries that the query of row i meets.
  int64_t met(int64_t i) const { return s_.pool ? (start(i) + 1) / c_.block : 0; }
  bool chooses(int64_t i) const { return entry_NK_.defined() && met(i) > c_.index.top_k; }

  /// Of row i: what its state keeps of the token, and what the query reads.
  void finish(int64_t i, float* memory) {
    const auto row = static_cast<size_t>(i);
    const int64_t heads = c_.n_heads, width = c_.head_dim, at = start(i);
    RowState& state = *rows_[row];
    float *q = memory + q_ + i * heads * width, *k = memory + kv_ + i * width;
    if (s_.query_norm) (*s_.query_norm)(q, heads, width, q);
    turn(turn_q_, i, 1, turning(q, heads));
    if (s_.kv_norm) (*s_.kv_norm)(k, 1, width, k);
    turn(turn_k_, i, 1, turning(k, 1));
    if (s_.pool) keep(*s_.pool, kEntrySlots, i, memory + tokens_ + i * s_.pool->width(), width);
    if (s_.index_pool) {
      keep(*s_.index_pool, kIndexKeySlots, i, memory + index_tokens_ + i * s_.index_pool->width(),
           c_.index.head_dim);
      if (chooses(i)) plan_choice(i, memory);
    }
    TokenBuffer& window = state.tokens(kCompressedKeysSlot);
    window.append(k, 1, width);

    // entries, then the tokens of the window
    Seen& seen = of_rows_[row];
    EntriesThenTokens keys{.entries = met(i),
                           .from = std::max<int64_t>(0, at - c_.window + 1),
                           .every = std::max<int64_t>(1, c_.block),
                           .window = c_.window};
    const int64_t bytes = width * static_cast<int64_t>(sizeof(float));
    const auto add = [&](const TokenBuffer& held, int64_t from, int64_t to, int64_t first) {
      seen.runs.clear();
      held.runs(from, to, seen.runs);
      for (const TokenBuffer::Run& run : seen.runs)
        seen.spans.push_back({run.data, run.data, bytes, bytes, bytes, bytes,
                              first + run.first - from, run.count, DType::f32});
    };
    if (keys.entries > 0) add(state.tokens(kEntrySlots.entries()), 0, keys.entries, 0);
    add(window, keys.from, at + 1, keys.entries);
    kernels::Attention& call = calls_[row];
    call.G = 1, call.K = width;
    call.q = q, call.out = memory + read_ + i * heads * width;
    call.q_token_stride = call.out_token_stride = heads * width;
    call.q_head_stride = call.out_head_stride = width;
    call.first_position = keys.of_position(at);
    call.kv = {seen.spans.data(), static_cast<int64_t>(seen.spans.size())};
    call.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
    call.sinks = s_.sinks.data();
    if (!s_.pool) {
      call.window = c_.window;
      return;
    }
    seen.visible = std::make_unique<EntriesAndWindow>(
        keys, chooses(i) ? entry_NK_.narrow(0, i, 1) : Tensor(), at, true);
    call.visible = seen.visible.get();
  }

  /// Keeps what a pool makes of the token of row i, and the entry that it completes, if it does.
  void keep(
      const PoolStep& of, EntrySlots slots, int64_t i, const float* token, int64_t width) const {
    RowState& state = *rows_[static_cast<size_t>(i)];
    TokenBuffer& tokens = state.tokens(slots.tokens);
    require(tokens.length() == start(i), "compressed_attention",
            "the state holds {} tokens, the call starts at {}", tokens.length(), start(i));
    const Segment& made = entries_->batch.segments[static_cast<size_t>(i)];
    if (made.length > 0) {
      const Tensor own = at::from_blob(const_cast<float*>(token), {1, of.width()}, at::kFloat);
      Tensor entry = of.pool->completed(&tokens, own, made.start, 1, at::kFloat, {}).contiguous();
      turn(turn_entries_, made.begin, 1, turning(entry.data_ptr<float>(), 1, width));
      state.tokens(slots.entries()).append(entry.const_data_ptr<float>(), 1, width);
    }
    tokens.append(token, 1, of.width());
  }

  /// The scores of the entries that row i chooses from.
  void plan_choice(int64_t i, float* memory) {
    Seen& seen = of_rows_[static_cast<size_t>(i)];
    kernels::IndexScores& scores = scores_of_[static_cast<size_t>(i)];
    const int64_t heads = c_.index.n_heads, width = c_.index.head_dim;
    float *q = memory + index_q_ + i * heads * width, *w = memory + index_weights_ + i * heads;
    turn(turn_q_, i, 1, turning(q, heads, width));
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(heads)));
    for (int64_t h = 0; h < heads; ++h) w[h] /= root;
    seen.runs.clear();
    rows_[static_cast<size_t>(i)]->tokens(kIndexKeySlots.entries()).runs(0, met(i), seen.runs);
    for (const TokenBuffer::Run& run : seen.runs)
      seen.index_keys.push_back({static_cast<const float*>(run.data), run.count});
    scores.T = 1, scores.H = heads, scores.D = width;
    scores.first = met(i) - 1;
    scores.q = q, scores.weights = w;
    scores.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
    scores.spans = seen.index_keys.data();
    scores.n_spans = static_cast<int64_t>(seen.index_keys.size());
    scores.out = memory + scores_ + i * scores_stride_, scores.out_stride = scores_stride_;
  }

  /// The product of what the heads read, in groups first where there are any.
  void output(Team& team, float* y_ND, float* memory) const {
    float* joined = memory + read_;
    if (s_.o_a) {
      const int64_t groups = s_.o_a->matrices, in = s_.o_a->width(), out = s_.o_a->rows();
      const Team::Share mine = team.share(n_);
      // by group, then by token
      for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int64_t g = 0; g < groups; ++g)
          std::copy_n(joined + (i * groups + g) * in, in, memory + grouped_ + (g * n_ + i) * in);
      team.wait();
      StepInput by_group(memory + grouped_, n_ * groups, in, memory + input_grouped_, offsets_);
      if (by_group.prepare(team, {&*s_.o_a})) team.wait();
      multiply(team, by_group, {{&*s_.o_a, memory + low_by_group_}});
      team.wait();
      for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int64_t g = 0; g < groups; ++g)
          std::copy_n(memory + low_by_group_ + (g * n_ + i) * out, out,
                      memory + low_ + (i * groups + g) * out);
      joined = memory + low_;
    }
    StepInput read(joined, n_, s_.o.width(), memory + input_out_);
    read.prepare(team, {&s_.o});
    team.wait();
    multiply(team, read, {{&s_.o, y_ND}});
  }

  const CompressedStep& s_;
  const CompressedAttentionConfig& c_;
  const Batch& batch_;
  const StateRows& rows_;
  int64_t n_;
  std::vector<Seen> of_rows_;
  std::vector<kernels::IndexScores> scores_of_;
  std::vector<kernels::Attention> calls_;
  Rotation turn_q_, turn_k_, back_, turn_entries_;
  ops::RotaryTable back_table_;
  std::shared_ptr<EntryCall> entries_;  // null: no pool
  Tensor entry_NK_;                     // undefined: every query reads all entries
  int64_t scores_stride_ = 0;
  std::vector<int64_t> offsets_;  // rows of each group
  int64_t input_ = 0, input_latent_ = 0, latent_ = 0, q_ = 0, kv_ = 0, tokens_ = 0,
          index_tokens_ = 0, index_q_ = 0, index_weights_ = 0, scores_ = 0, read_ = 0, grouped_ = 0,
          input_grouped_ = 0, low_by_group_ = 0, low_ = 0, input_out_ = 0, partials_ = 0;
};

std::unique_ptr<StepCall> CompressedStep::begin(Context& context, const StateRows* rows) const {
  if (rows == nullptr || context.batch->in_order()) return nullptr;
  for (size_t i = 0; i < rows->size(); ++i) {
    if (context.batch->segments[i].length != 1) return nullptr;
    const size_t slots = index_pool ? 5 : pool ? 3 : 1;
    for (size_t slot = 0; slot < slots; ++slot)
      if (const TokenBuffer& held = (*rows)[i]->tokens(slot);
          held.stored_type() != at::kFloat || !held.on_cpu())
        return nullptr;
  }
  return std::make_unique<CompressedCall>(*this, context, *rows);
}

}  // namespace

std::shared_ptr<const PartStep> compressed_attention_step(const CompressedAttentionParts& parts,
                                                          const ops::ProductSettings& products) {
  if (!others_at_default(parts.config, {"n_heads", "head_dim", "rope_head_dim", "q_lora_rank",
                                        "norm", "query_norm", "window", "block", "overlap", "index",
                                        "sinks", "o_groups", "o_lora_rank", "position"}) ||
      !parts.position.only_rotates())
    return nullptr;
  StepWeights weights(products);
  auto step = std::make_shared<CompressedStep>(parts, weights);
  return weights.serve() && step->float32_groups ? step : nullptr;
}

}  // namespace tessera::nn
