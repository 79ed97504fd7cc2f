#include "tessera/nn/mixer/attention/attention_step.h"

#include <algorithm>

#include "tessera/kernels/attention/attention.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/nn/mixer/attention/attention_calls.h"
#include "tessera/nn/position/turn.h"

namespace tessera::nn {
namespace {

class AttentionStep final : public PartStep {
 public:
  AttentionStep(const AttentionParts& parts, StepWeights& weights)
      : config(parts.config),
        position(parts.position),
        q(weights.product(parts.q)),
        k(weights.product(parts.k)),
        o(weights.product(parts.o)),
        q_norm(parts.q_norm.step(weights)),
        k_norm(parts.k_norm.step(weights)),
        v_norm(parts.v_norm.step(weights)),
        scale(parts.scale.step(weights)),
        gate(parts.gate.step(weights)),
        sinks(weights.numbers(parts.sinks)),
        window(*config.pattern_config().window()) {
    if (!config.k_eq_v) v = weights.product(parts.v);
    if (parts.inner_norm != nullptr) inner_norm = weights.norm(*parts.inner_norm);
    weights.alike({&q, &k, as_given(v), as_given(gate.product)});
  }

  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  const AttentionConfig& config;
  const Position& position;
  StepProduct q, k, o;
  std::optional<StepProduct> v;  // without one the values are the projected keys
  HeadNormsStep q_norm, k_norm, v_norm;
  std::shared_ptr<const NormStep> inner_norm;
  ScoreScalingStep scale;
  HeadGateStep gate;
  StepNumbers sinks;
  int64_t window;  // tokens that a query sees, 0 = all
};

class AttentionCall final : public StepCall {
 public:
  AttentionCall(const AttentionStep& step, Context& context, const StateRows& rows)
      : s_(step), batch_(*context.batch), rows_(rows), n_(batch_.n_tokens()) {
    const AttentionConfig& c = s_.config;
    shared_ = AttentionCalls::of(context);
    turn_q_ = s_.position.rotation(Side::query, c.head_dim, at::kFloat, context);
    turn_k_ = s_.position.rotation(Side::key, c.head_dim, at::kFloat, context);
    if (c.temperature.acts()) {
      const Tensor positions = batch_.positions_N.to(at::kCPU).contiguous();
      for (int64_t i = 0; i < n_; ++i)
        growth_.push_back(
            static_cast<float>(c.temperature.factor(positions.const_data_ptr<int64_t>()[i])));
    }
    const int64_t read = c.n_heads * c.value_dim();
    input_ = memory_.take(StepInput::floats(n_, std::max(read, s_.q.weight->size(1))));
    q_ = memory_.take(n_ * c.n_heads * c.head_dim);
    k_ = memory_.take(n_ * c.n_kv_heads * c.head_dim);
    v_ = memory_.take(n_ * c.n_kv_heads * c.value_dim());
    heads_ = memory_.take(n_ * read);
    gate_ = memory_.take(n_ * s_.gate.width());
    partials_ = memory_.take(shared_->floats(c.n_heads, c.value_dim()));
  }

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    const AttentionConfig& c = s_.config;
    const int64_t heads = c.n_heads * c.value_dim();
    StepInput in(x_ND, n_, s_.q.weight->size(1), memory + input_);
    float *q = memory + q_, *k = memory + k_, *v = memory + v_, *gate = memory + gate_,
          *read = memory + heads_;
    in.prepare(team, {&s_.q, &s_.k, as_given(s_.v), as_given(s_.gate.product)});
    team.wait();
    multiply(team, in,
             {{&s_.q, q}, {&s_.k, k}, {as_given(s_.v), v}, {as_given(s_.gate.product), gate}});
    team.wait();
    // a sequence is one thread's: norms and angles, its keys and values kept, and where all of
    // them lie
    const Team::Share own = team.share(static_cast<int64_t>(batch_.segments.size()));
    for (int64_t i = own.begin; i < own.end; ++i) {
      finish(static_cast<size_t>(i), q, k, v, gate);
      plan(static_cast<size_t>(i), q, read);
    }
    team.wait();
    kernels::attend(team, shared_->calls.data(), shared_->count(), memory + partials_);
    team.wait();
    // after the heads, rows are divided
    const Team::Share mine = team.share(n_);
    const int64_t first = mine.begin, count = mine.end - mine.begin;
    if (s_.gate.acts(GatePlace::after_sdpa))
      s_.gate(gate, first, count, c.n_heads, c.value_dim(), read);
    if (s_.inner_norm) (*s_.inner_norm)(read + first * heads, count, heads, read + first * heads);
    StepInput out(read, n_, heads, memory + input_);
    const bool changed = s_.gate.acts(GatePlace::after_sdpa) || s_.inner_norm != nullptr;
    if (out.prepare(team, {&s_.o}) || changed) team.wait();
    multiply(team, out, {{&s_.o, y_ND}});
    if (!s_.gate.acts(GatePlace::after_o)) return;
    team.wait();
    s_.gate(gate, first, count, 1, s_.o.rows(), y_ND);
  }

 private:
  /// What comes between the products and attention, of one segment.
  void finish(size_t segment, float* q, float* k, float* v, float* gate) const {
    const Segment& s = batch_.segments[segment];
    const AttentionConfig& c = s_.config;
    const int64_t n = s.length, width = c.head_dim, heads = c.n_heads, groups = c.n_kv_heads,
                  value = c.value_dim();
    q += s.begin * heads * width, k += s.begin * groups * width, v += s.begin * groups * value;
    if (c.clip > 0) {
      const auto most = static_cast<float>(c.clip);
      const std::pair<float*, int64_t> projections[] = {
          {q, n * heads * width}, {k, n * groups * width}, {v, n * groups * value}};
      for (const auto& [x, count] : projections)
        for (int64_t j = 0; j < count; ++j) x[j] = std::min(std::max(x[j], -most), most);
    }
    if (!s_.v) std::copy_n(k, n * groups * width, v);
    const bool normed_last = c.norms_after_rotation();
    if (normed_last) {
      turn(turn_q_, s.begin, n, heads, width, q);
      turn(turn_k_, s.begin, n, groups, width, k);
    }
    s_.q_norm(q, n, heads, width);
    scale_queries(s, q);
    s_.k_norm(k, n, groups, width);
    if (!normed_last) {
      turn(turn_q_, s.begin, n, heads, width, q);
      turn(turn_k_, s.begin, n, groups, width, k);
    }
    s_.v_norm(v, n, groups, value);
    if (s_.gate.acts(GatePlace::after_value))
      s_.gate(gate, s.begin, n, groups, value, v - s.begin * groups * value);
    TokenBuffer &keys = rows_[segment]->tokens(0), &values = rows_[segment]->tokens(1);
    for (int64_t t = 0; t < n; ++t) {
      keys.append(k + t * groups * width, groups, width);
      values.append(v + t * groups * value, groups, value);
    }
  }

  /// The factors on the queries of a segment, in the tensor path's order.
  void scale_queries(const Segment& s, float* q) const {
    const AttentionConfig& c = s_.config;
    for (int64_t t = 0; t < s.length; ++t, q += c.n_heads * c.head_dim)
      s_.scale(q, c.n_heads, c.head_dim,
               growth_.empty() ? 1 : growth_[static_cast<size_t>(s.begin + t)]);
  }

  /// Where the keys lie that the queries of a segment see.
  void plan(size_t segment, const float* q, float* read) {
    const Segment& s = batch_.segments[segment];
    const AttentionConfig& c = s_.config;
    const int64_t width = c.head_dim, value = c.value_dim(), heads = c.n_heads,
                  groups = c.n_kv_heads;
    shared_->find(s, segment,
                  {rows_[segment]->tokens(0), &rows_[segment]->tokens(1), groups, width, value},
                  s_.window);
    for (size_t u = shared_->first_unit[segment]; u < shared_->first_unit[segment + 1]; ++u) {
      const QueryUnit& unit = shared_->units[u];
      kernels::Attention& of = shared_->calls[u];
      of.H = heads, of.V = value;
      of.q = q + unit.begin * heads * width;
      of.out = read + unit.begin * heads * value;
      of.q_token_stride = heads * width, of.out_token_stride = heads * value;
      of.q_head_stride = width, of.out_head_stride = value;
      of.scale = s_.scale.on_logits;
      of.softcap = static_cast<float>(c.softcap);
      of.sinks = s_.sinks.data();
    }
  }

  const AttentionStep& s_;
  const Batch& batch_;
  const StateRows& rows_;
  int64_t n_;
  std::shared_ptr<AttentionCalls> shared_;
  Rotation turn_q_, turn_k_;
  std::vector<float> growth_;  // factors of positions; empty where there are none
  int64_t input_, q_, k_, v_, heads_, gate_, partials_;
};

std::unique_ptr<StepCall> AttentionStep::begin(Context& context, const StateRows* rows) const {
  if (!reads_entries(*context.batch, rows, window)) return nullptr;
  return std::make_unique<AttentionCall>(*this, context, *rows);
}

}  // namespace

std::shared_ptr<const PartStep> attention_step(const AttentionParts& parts,
                                               const ops::ProductSettings& products) {
  const AttentionConfig& c = parts.config;
  const PatternConfig& pattern = c.pattern_config();
  // dropout acts in training alone; parts in slots are asked themselves
  if (!others_at_default(c,
                         {"n_heads",   "n_kv_heads",  "head_dim",     "v_head_dim",  "bias",
                          "clip",      "qk_norm",     "qk_norm_over", "qk_norm_at",  "v_norm",
                          "k_eq_v",    "temperature", "scale",        "scale_value", "scale_on",
                          "softcap",   "sinks",       "gate",         "gate_at",     "gate_act",
                          "gate_bias", "pattern",     "position",     "inner_norm",  "dropout"}) ||
      !parts.position.only_rotates() || !pattern.window() || pattern.first_kept() > 0 ||
      pattern.farthest() > 0 || pattern.global_projections() || c.state(parts.scope).size() != 2)
    return nullptr;
  StepWeights weights(products);
  auto step = std::make_shared<AttentionStep>(parts, weights);
  return weights.serve() ? step : nullptr;
}

}  // namespace tessera::nn
