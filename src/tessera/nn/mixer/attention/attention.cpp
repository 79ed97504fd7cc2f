#include "tessera/nn/mixer/attention/attention.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include <fmt/format.h>

#include "tessera/nn/draft_branches.h"
#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/attention_step.h"
#include "tessera/nn/mixer/attention/head_gate.h"
#include "tessera/nn/mixer/attention/head_norms.h"
#include "tessera/nn/mixer/attention/heavy_keys.h"
#include "tessera/nn/mixer/attention/score_scaling.h"
#include "tessera/nn/mixer/attention/shared_keys.h"
#include "tessera/nn/mixer/shown.h"
#include "tessera/ops/form.h"
#include "tessera/ops/random.h"
#include "tessera/ops/side_by_side.h"
#include "tessera/ops/attention/ring_attention.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

class Attention final : public Mixer {
 public:
  Attention(const AttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        scope_(builder.scope()),
        q_(builder, "q", config.groups.q),
        o_(builder, "o", config.groups.o),
        q_norm_(builder, "q_norm", config, config.n_heads),
        k_norm_(
            builder,
            "k_norm",
            config.has_keys() ? static_cast<const spec::AnyPart&>(config.qk_norm) : spec::AnyPart(),
            config.qk_norm_over,
            config.n_kv_heads),
        v_norm_(builder, "v_norm", config.v_norm, QkNormOver::head, config.n_kv_heads),
        scale_(builder, config, config.head_dim),
        gate_(builder, config),
        shared_(config),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))),
        mask_(builder, config.pattern, config.n_heads) {
    if (config.has_keys()) {
      k_ = GroupedLinear(builder, "k", config.groups.k);
      if (!config.k_eq_v) v_ = GroupedLinear(builder, "v", config.groups.v);
    }
    if (config.pattern_config().global_projections()) {
      q_global_ = GroupedLinear(builder, "q_global", config.groups.q);
      k_global_ = GroupedLinear(builder, "k_global", config.groups.k);
      v_global_ = GroupedLinear(builder, "v_global", config.groups.v);
    }
    if (config.inner_norm)
      inner_norm_ = build_norm(
          config.inner_norm,
          builder.under("inner_norm", config.child_scope(builder.scope(), "inner_norm")));
    if (config.sinks) sinks_ = builder.weight("sinks");
    if (config.select)
      select_ = build_select(
          config.select, builder.under("select", config.child_scope(builder.scope(), "select")));
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0);
    // projections, norms, rotation
    const ops::SharedInput shared(x_ND);
    Tensor unrotated = unrotated_queries(q_, shared, context);
    const Tensor far = rotated_queries(mask_.far_queries(unrotated, *position_, context), context);
    Projected x{
        rotated_queries(position_->rotate(std::move(unrotated), Side::query, context), context),
        {},
        {}};
    own_or_shared(x, shared, context);
    PatternedScores scores = mask_.scores(options(context), context, far);
    if (select_) choose(x, x_ND, scores, context, rows);
    if (rows != nullptr && context.split.ranks > 1 && !ops::documents_apart(x_ND))
      fail(ErrorKind::spec, name_,
           "a sequence that continues from a state is not split over ranks; use windows "
           "\"isolated\"");
    Tensor o_NHD = attend(x, scores, context, rows);
    if (config_.pattern_config().global_projections())
      o_NHD = with_global_rows(o_NHD, shared, scores, context, rows);
    o_NHD = gate_(o_NHD, shared, GatePlace::after_sdpa, context);
    Tensor merged = o_NHD.reshape({n, config_.n_heads * config_.value_dim()});
    show(x, scores, merged, context);
    if (inner_norm_) merged = inner_norm_->forward(merged, context.products);
    return gate_(o_(merged, context), shared, GatePlace::after_o, context);
  }

  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    // without keys of its own it has no product of them; which keys are chosen, tensors say
    if (!config_.has_keys() || select_) return nullptr;
    return attention_step({.config = config_,
                           .scope = scope_,
                           .q = q_,
                           .k = k_,
                           .v = v_,
                           .o = o_,
                           .q_norm = q_norm_,
                           .k_norm = k_norm_,
                           .v_norm = v_norm_,
                           .scale = scale_,
                           .gate = gate_,
                           .position = *position_,
                           .inner_norm = inner_norm_.get(),
                           .sinks = sinks_},
                          products);
  }

 private:
  /// Queries, keys and values of the tokens of a call.
  struct Projected {
    Tensor q_NHD, k_NGD, v_NGD;
  };

  static constexpr size_t kSelectSlot = 2;  // its entries follow keys and values

  /// Has the keys of every query chosen, and the part that does so learn.
  void choose(const Projected& x,
              const Tensor& x_ND,
              PatternedScores& scores,
              Context& context,
              const StateRows* rows) const {
    const SelectInput input{x_ND, x_ND, position_.get()};
    const Tensor key_NK = select_->choose(input, context, rows, kSelectSlot);
    scores.choose(*select_, key_NK, config_.n_heads, *context.batch);
    if (rows == nullptr) select_->learn(input, key_NK, {x.q_NHD, x.k_NGD, scores.how}, context);
  }

  /// What a probe may ask for by name: values [N, G, D], heads [N, H D], and for every document the
  /// weights [H, T, T].
  void show(const Projected& x,
            const PatternedScores& scores,
            const Tensor& heads_NE,
            Context& context) const {
    if (const std::string name = name_ + ".values"; is_asked_for(context, name))
      context.probe(name, x.v_NGD);
    if (const std::string name = name_ + ".heads"; is_asked_for(context, name))
      context.probe(name, heads_NE);
    const std::string name = name_ + ".weights";
    if (!is_asked_for(context, name)) return;
    if (config_.heavy)
      fail(ErrorKind::usage, name_,
           "attention weights are not available with H2O eviction (heavy)");
    const BySegment part(*context.batch);
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      ops::ScoreOptions how = scores.in_document(part, i);
      how.term.values = nullptr;
      if (how.far_q.defined()) how.far_q = how.far_q.transpose(0, 1).unsqueeze(0);
      const auto by_head = [&](const Tensor& y) { return part(y, i).transpose(0, 1).unsqueeze(0); };
      const Tensor q = by_head(x.q_NHD), k = by_head(x.k_NGD);
      // the weight of every key
      const Tensor each =
          at::eye(k.size(2), k.options()).expand({1, k.size(1), k.size(2), k.size(2)});
      context.probe(name, ops::attention_of_block(q, k, each, 0, {{0, k.size(2)}}, how).squeeze(0));
    }
  }

  /// Keys and values: its own, or an earlier layer's.
  void own_or_shared(Projected& x, const ops::SharedInput& x_ND, Context& context) const {
    if (!config_.has_keys()) {
      std::tie(x.k_NGD, x.v_NGD) = shared_.of_earlier(context);
      return;
    }
    // a prefix replaces keys and values themselves, rotated by no position
    const Tensor& positions = context.batch->positions_N;
    if (config_.k_eq_v) {
      const Tensor both_NE = projected(k_, x_ND, context);
      x.v_NGD = values(both_NE, x_ND, context);
      x.k_NGD = rotated_keys(both_NE, context);
    } else {
      x.k_NGD =
          ops::prefixed(rotated_keys(projected(k_, x_ND, context), context), *k_.weight, positions);
      x.v_NGD =
          ops::prefixed(values(projected(v_, x_ND, context), x_ND, context), *v_.weight, positions);
    }
    shared_.leave(x.k_NGD, x.v_NGD, context);
  }

  template <class X>
  Tensor projected(const GroupedLinear& linear, const X& x_ND, const Context& context) const {
    const Tensor y = linear(x_ND, context);
    return config_.clip > 0 ? y.clamp(-config_.clip, config_.clip) : y;
  }
  Tensor values(const Tensor& projected_NE,
                const ops::SharedInput& x_ND,
                const Context& context) const {
    return gate_(v_norm_(projected_NE, context.products), x_ND, GatePlace::after_value, context);
  }
  template <class X>
  Tensor queries(const GroupedLinear& linear, const X& x_ND, const Context& context) const {
    return scale_.learned(q_norm_(projected(linear, x_ND, context), context.products));
  }
  Tensor keys(const Tensor& x_ND, const Context& context) const {
    return k_norm_(projected(k_, x_ND, context), context.products);
  }

  /// Normed queries times the factors of their positions, and that of the scores where it is on
  /// them.
  Tensor scaled(const Tensor& q_NHD, const Context& context) const {
    return tempered(scale_.on_queries(q_NHD), config_.temperature, context);
  }

  /// Queries as the position takes them.
  Tensor unrotated_queries(const GroupedLinear& linear,
                           const ops::SharedInput& x_ND,
                           const Context& context) const {
    if (config_.norms_after_rotation())
      return projected(linear, x_ND, context).unflatten(1, {config_.n_heads, -1});
    return scaled(queries(linear, x_ND, context), context);
  }
  /// What is done to queries that the position has turned; undefined ones stay so.
  Tensor rotated_queries(const Tensor& q_NHD, const Context& context) const {
    if (!config_.norms_after_rotation() || !q_NHD.defined()) return q_NHD;
    return scaled(scale_.learned(q_norm_(q_NHD.flatten(1), context.products)), context);
  }
  /// Projected keys, normed and rotated.
  Tensor rotated_keys(const Tensor& k_NE, Context& context) const {
    if (!config_.norms_after_rotation())
      return position_->rotate(k_norm_(k_NE, context.products), Side::key, context);
    const Tensor k_NGD = k_NE.unflatten(1, {config_.n_kv_heads, -1});
    return k_norm_(position_->rotate(k_NGD, Side::key, context).flatten(1), context.products);
  }

  ops::ScoreOptions options(Context& context) const {
    ops::ScoreOptions how;
    how.scale = scale_.on_logits();
    how.softcap = config_.softcap;
    how.causal = context.causal;
    how.sinks_H = sinks(*context.batch);
    return with_term(
        std::move(how), *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim,
         .longest = context.batch->longest(),
         .project_q = [this, &context](const Tensor& x) { return queries(q_, x, context); },
         .project_k = [this, &context](const Tensor& x) { return keys(x, context); }},
        context);
  }

  /// The logits that take weight and give nothing. A key of zeros scores 0, and its value is 0.
  Tensor sinks(const Batch& batch) const {
    if (!config_.add_zero_attn) return sinks_ ? sinks_->tensor() : Tensor();
    const Tensor zero = at::zeros({config_.n_heads}, batch.positions_N.options().dtype(at::kFloat));
    return sinks_ ? at::logaddexp(sinks_->tensor(), zero.to(sinks_->tensor().options())) : zero;
  }

  /// The heads' outputs [N, H, V], in the form that the call asks for.
  Tensor attend(const Projected& x,
                const PatternedScores& scores,
                Context& context,
                const StateRows* rows) const {
    uint32_t brought = documents_bring(x.q_NHD, *context.batch, scores);
    if (config_.heavy) brought |= brings::evicts;
    if (rows != nullptr) brought |= brings::past;
    if (shared_.reads_past(context)) brought |= brings::past_of_layer;
    if (context.split.ranks > 1 && !ops::documents_apart(x.q_NHD)) brought |= brings::ranks;
    switch (const CallForm form = call_form(brought)) {
      case CallForm::heavy:
        return among_heavy(x, scores, context, rows);
      case CallForm::after_past:
        return after_rows(x, scores, context, *rows);
      case CallForm::after_layer:
        return after_layer(x, scores, context);
      case CallForm::ring_together:
      case CallForm::ring:
        return over_ranks(x, scores, context, form == CallForm::ring_together);
      default:
        return attend_documents(form, x.q_NHD, x.k_NGD, x.v_NGD, *context.batch, scores,
                                weight_dropout(context, name_, config_.dropout));
    }
  }

  /// Whole sequences by the ranks of a ring.
  Tensor spread(const Tensor& q_BTHD,
                const Tensor& k_BTGD,
                const Tensor& v_BTGD,
                const SequenceSplit& split,
                const ops::ScoreOptions& how) const {
    const ops::RingOrder order(q_BTHD.size(1), split.ranks, split.layout);
    return ops::ring_attention(q_BTHD, k_BTGD, v_BTGD, order, how).out;
  }

  /// Whole documents by the ranks of a ring, those of equal length `together`.
  Tensor over_ranks(const Projected& x,
                    const PatternedScores& scores,
                    const Context& context,
                    bool together) const {
    const Batch& batch = *context.batch;
    if (const std::string reason = config_.no_split_reason(batch.longest()); !reason.empty())
      fail(ErrorKind::spec, name_, "{}", reason);
    if (batch.in_order())
      fail(ErrorKind::usage, name_,
           "texts that are given in an order cannot be split over ranks; expected one rank");
    const BySegment part(batch);
    if (together) {
      const int64_t t = batch.equal_length();
      const auto fold = [&](const Tensor& y) { return y.unflatten(0, {-1, t}); };
      return spread(fold(x.q_NHD), fold(x.k_NGD), fold(x.v_NGD), context.split,
                    scores.in_document(part, 0))
          .reshape(x.q_NHD.sizes());
    }
    return over_segments(batch, [&](size_t i, const Segment&) {
      const auto alone = [&](const Tensor& y) { return part(y, i).unsqueeze(0); };
      return spread(alone(x.q_NHD), alone(x.k_NGD), alone(x.v_NGD), context.split,
                    scores.in_document(part, i))
          .squeeze(0);
    });
  }

  /// Each segment after what its row holds.
  Tensor after_rows(const Projected& x,
                    const PatternedScores& scores,
                    Context& context,
                    const StateRows& rows) const {
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(*context.batch);
    std::vector<PatternMask::Past> pasts;
    std::vector<ops::AttentionCall> calls;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      pasts.push_back(mask_.past({part(x.k_NGD, i), part(x.v_NGD, i), s.start}, rows[i]->tokens(0),
                                 &rows[i]->tokens(1)));
      ops::AttentionCall call{part(x.q_NHD, i), pasts[i].kv, s.start,
                              dropout.in(scores.in_document(part, i), s)};
      const auto ways = branches_of(*context.batch, s);
      if (ways.empty()) {
        scores.add_call(calls, std::move(call), i);
        continue;
      }
      const ops::KeyValues own{rows[i]->tokens(0).stored(part(x.k_NGD, i)),
                               rows[i]->tokens(1).stored(part(x.v_NGD, i)), s.start};
      for (const std::vector<int64_t>& way : ways) calls.push_back(on_branch(call, own, way));
    }
    const Tensor out = ops::attention(calls);
    shared_.keep(std::move(pasts), context);
    return out;
  }

  /// Each segment among the keys that stay, of its row or of a whole document.
  Tensor among_heavy(const Projected& x,
                     const PatternedScores& scores,
                     const Context& context,
                     const StateRows* rows) const {
    const Batch& batch = *context.batch;
    if (!context.causal || batch.in_order())
      fail(ErrorKind::input, name_,
           "H2O eviction (heavy) needs causal tokens in order; found tokens {}",
           context.causal ? "that are given in an order" : "that see later ones");
    const BySegment part(batch);
    std::vector<Tensor> out(batch.segments.size());
    std::vector<int64_t> costs;
    for (const Segment& s : batch.segments)
      costs.push_back(s.length * std::min(s.start + s.length, config_.heavy->most()));
    const auto attend = [&](size_t i) {
      const Segment& s = batch.segments[i];
      RowState own({}, 0, x.q_NHD.options());
      if (rows == nullptr)
        own = RowState(config_.state({}), 0,
                       at::TensorOptions(x.q_NHD.device()).dtype(ops::wide(x.q_NHD)));
      HeavyKeys keys(*config_.heavy, rows != nullptr ? *(*rows)[i] : own);
      out[i] = keys.attend(part(x.q_NHD, i), part(x.k_NGD, i), part(x.v_NGD, i), s.start,
                           scores.in_document(part, i));
    };
    if (ops::documents_apart(x.q_NHD))
      ops::side_by_side(costs, attend);
    else
      for (size_t i = 0; i < out.size(); ++i) attend(i);
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// The query of the last token of a draft branch: `own` are the keys of all of them, `way`
  /// those of its branch.
  static ops::AttentionCall on_branch(const ops::AttentionCall& segment,
                                      const ops::KeyValues& own,
                                      const std::vector<int64_t>& way) {
    ops::AttentionCall call{segment.q_THD.narrow(0, way.back(), 1),
                            {},
                            own.first + static_cast<int64_t>(way.size()) - 1,
                            segment.options};
    for (const ops::KeyValues& held : segment.kv) {
      const int64_t n = std::min(held.k_SGD.size(0), own.first - held.first);
      if (n > 0)
        call.kv.push_back({held.k_SGD.narrow(0, 0, n), held.v_SGD.narrow(0, 0, n), held.first});
    }
    for (size_t j = 0, k = 0; j < way.size(); j = k) {
      while (k < way.size() && way[k] - way[j] == static_cast<int64_t>(k - j)) ++k;
      const auto n = static_cast<int64_t>(k - j);
      call.kv.push_back({own.k_SGD.narrow(0, way[j], n), own.v_SGD.narrow(0, way[j], n),
                         own.first + static_cast<int64_t>(j)});
    }
    return call;
  }

  /// Each segment after what another layer's rows hold.
  Tensor after_layer(const Projected& x, const PatternedScores& scores, Context& context) const {
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(*context.batch);
    const SharedKeyValues::Lists& lists = shared_.past(context);
    std::vector<ops::AttentionCall> calls;
    for (size_t i = 0; i < lists.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      calls.push_back(
          {part(x.q_NHD, i), lists[i], s.start, dropout.in(scores.in_document(part, i), s)});
    }
    return ops::attention(calls);
  }

  /// PatternMask::after_past with the buffers of declarations `slot` and `slot` + 1.
  void after_past(const ops::KeyValues& own,
                  size_t slot,
                  RowState& row,
                  const std::function<void(const std::vector<ops::KeyValues>&)>& compute) const {
    mask_.after_past(own, row.tokens(slot), &row.tokens(slot + 1), compute);
  }

  /// o_NHD with the rows of global tokens replaced by what their own projections give: attention
  /// over the whole document.
  Tensor with_global_rows(const Tensor& o_NHD,
                          const ops::SharedInput& x_ND,
                          const PatternedScores& scores,
                          Context& context,
                          const StateRows* rows) const {
    const Batch& batch = *context.batch;
    const Tensor q = unrotated_queries(q_global_, x_ND, context);
    const Projected x{rotated_queries(position_->rotate(q, Side::query, context), context),
                      rotated_keys(projected(k_global_, x_ND, context), context),
                      values(projected(v_global_, x_ND, context), x_ND, context)};
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout, "global_weights");
    const BySegment part(batch);
    std::vector<Tensor> found, numbers;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const Segment& s = batch.segments[i];
      const auto compute = [&](const std::vector<ops::KeyValues>& kv) {
        const auto global = [&](int64_t t) {
          return t < s.length &&
                 config_.pattern_config().is_global(scores.documents[i], s.start + t);
        };
        // runs of neighbouring global tokens
        for (int64_t t = 0; t < s.length; ++t) {
          if (!global(t)) continue;
          int64_t end = t;
          while (global(end)) ++end;
          found.push_back(ops::attention(x.q_NHD.narrow(0, s.begin + t, end - t), kv, s.start + t,
                                         dropout.in(scores.how, s, t)));
          numbers.push_back(at::arange(s.begin + t, s.begin + end, at::kLong));
          t = end;
        }
      };
      const ops::KeyValues own{part(x.k_NGD, i), part(x.v_NGD, i), s.start};
      if (rows != nullptr)
        after_past(own, 2, *(*rows)[i], compute);
      else
        compute({own});
    }
    if (found.empty()) return o_NHD;
    return o_NHD.index_copy(0, at::cat(numbers).to(o_NHD.device()), at::cat(found));
  }

  AttentionConfig config_;
  std::string name_;
  spec::Scope scope_;
  GroupedLinear q_, k_, v_, o_, q_global_, k_global_, v_global_;
  std::unique_ptr<Norm> inner_norm_;
  WeightPtr sinks_;
  HeadNorms q_norm_, k_norm_, v_norm_;
  ScoreScaling scale_;
  HeadGate gate_;
  SharedKeys shared_;
  std::unique_ptr<Position> position_;
  std::unique_ptr<Select> select_;
  PatternMask mask_;
};

}  // namespace

std::unique_ptr<Mixer> build(const AttentionConfig& config, const Builder& builder) {
  return std::make_unique<Attention>(config, builder);
}

}  // namespace tessera::nn
