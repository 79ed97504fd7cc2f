#include "tessera/nn/mixer/attention/differential_attention.h"

#include <array>
#include <cmath>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/over_rows.h"

namespace tessera::nn {
namespace {

class DifferentialAttention final : public Mixer {
 public:
  DifferentialAttention(const DifferentialAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        lambda_init_(config.initial_lambda(builder.scope().layer)),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        lambda_q1_(builder.weight("lambda_q1")),
        lambda_k1_(builder.weight("lambda_k1")),
        lambda_q2_(builder.weight("lambda_q2")),
        lambda_k2_(builder.weight("lambda_k2")),
        norm_(build_norm(config.norm, builder.under("norm"))),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))),
        mask_(builder, config.pattern, config.n_heads) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, g = config_.n_kv_heads,
                  e = config_.head_dim;
    const Tensor unrotated = q_(x_ND, context).reshape({n, 2 * h, e});
    const Tensor q_NHK = position_->rotate(unrotated, Side::query, context);
    const Tensor k_NGK =
        position_->rotate(k_(x_ND, context).reshape({n, 2 * g, e}), Side::key, context);
    const Tensor v_NGV = values(v_(x_ND, context));

    // A v as two attentions over the same values
    const Tensor far_q = mask_.far_queries(unrotated, *position_, context);
    const auto scores = [&](int64_t map) {
      return mask_.scores(options(map, context), context,
                          far_q.defined() ? of_map(far_q, map) : far_q);
    };
    const BothScores how{scores(0), scores(1)};
    const auto [first, second] = rows != nullptr
                                     ? with_state(q_NHK, k_NGK, v_NGV, how, context, *rows)
                                     : whole(q_NHK, k_NGK, v_NGV, how, context);
    const Tensor o_NHV = first - ops::over_rows(lambda().to(first.scalar_type()), second) * second;
    const Tensor normed = norm_->forward(o_NHV, context.products) * (1 - lambda_init_);
    return o_(normed.reshape({n, 2 * h * e}), context);
  }

 private:
  using Maps = std::pair<Tensor, Tensor>;
  using BothScores = std::array<PatternedScores, 2>;  // of each map

  /// The sub-heads of map 0 or 1 of x [N, 2 heads, e].
  Tensor of_map(const Tensor& x, int64_t map) const {
    const int64_t heads = x.size(1) / 2;
    if (config_.layout == MapLayout::halves) return x.narrow(1, map * heads, heads);
    return x.unflatten(1, {heads, 2}).select(2, map);
  }

  Tensor values(const Tensor& projected) const {
    const int64_t n = projected.size(0), g = config_.n_kv_heads, e = config_.head_dim;
    if (config_.layout == MapLayout::paired) return projected.reshape({n, g, 2 * e});
    return projected.reshape({n, 2, g, e}).transpose(1, 2).reshape({n, g, 2 * e});
  }

  Tensor lambda() const {
    const auto type = ops::wide(lambda_q1_->tensor());
    const auto term = [&](const WeightPtr& q, const WeightPtr& k) {
      return ops::ordered_sum(q->tensor().to(type) * k->tensor().to(type)).exp();
    };
    return term(lambda_q1_, lambda_k1_) - term(lambda_q2_, lambda_k2_) + lambda_init_;
  }

  ops::ScoreOptions options(int64_t map, Context& context) const {
    const auto projected = [this, map, &context](const Linear& linear, const Tensor& x) {
      return of_map(linear(x, context).reshape({x.size(0), -1, config_.head_dim}), map);
    };
    return with_term(
        {.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)), .causal = context.causal},
        *position_,
        {.n_heads = config_.n_heads,
         .head_dim = config_.head_dim,
         .longest = context.batch->longest(),
         .project_q = [&](const Tensor& x) { return projected(q_, x); },
         .project_k = [&](const Tensor& x) { return projected(k_, x); }},
        context);
  }

  Maps whole(const Tensor& q,
             const Tensor& k,
             const Tensor& v,
             const BothScores& how,
             const Context& context) const {
    const auto one = [&](int64_t map, const std::string& site) {
      return attend_documents(of_map(q, map), of_map(k, map), v, *context.batch,
                              how.at(static_cast<size_t>(map)),
                              weight_dropout(context, name_, config_.dropout, site));
    };
    return {one(0, "first"), one(1, "second")};
  }

  /// Each segment after what its row holds; both maps of all of them together.
  Maps with_state(const Tensor& q_NHK,
                  const Tensor& k_NGK,
                  const Tensor& v_NGV,
                  const BothScores& how,
                  const Context& context,
                  const StateRows& rows) const {
    const BySegment part(*context.batch);
    std::vector<PatternMask::Past> pasts;
    for (size_t i = 0; i < rows.size(); ++i)
      pasts.push_back(mask_.past({part(k_NGK, i), part(v_NGV, i), context.batch->segments[i].start},
                                 rows[i]->tokens(0), &rows[i]->tokens(1)));
    std::vector<ops::AttentionCall> calls;
    for (const int64_t map : {0, 1}) {
      const WeightDropout dropout =
          weight_dropout(context, name_, config_.dropout, map == 0 ? "first" : "second");
      for (size_t i = 0; i < rows.size(); ++i) {
        const Segment& s = context.batch->segments[i];
        std::vector<ops::KeyValues> kv;
        for (const auto& [k, v, first, place] : pasts[i].kv)
          kv.push_back({of_map(k, map), v, first, place});
        calls.push_back({of_map(part(q_NHK, i), map), std::move(kv), s.start,
                         dropout.in(how.at(static_cast<size_t>(map)).in_document(part, i), s)});
      }
    }
    const Tensor both = ops::attention(calls);
    for (PatternMask::Past& past : pasts) past.keep();
    const int64_t n = q_NHK.size(0);
    return {both.narrow(0, 0, n), both.narrow(0, n, n)};
  }

  DifferentialAttentionConfig config_;
  std::string name_;
  double lambda_init_;
  Linear q_, k_, v_, o_;
  WeightPtr lambda_q1_, lambda_k1_, lambda_q2_, lambda_k2_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<Position> position_;
  PatternMask mask_;
};

}  // namespace

std::unique_ptr<Mixer> build(const DifferentialAttentionConfig& config, const Builder& builder) {
  return std::make_unique<DifferentialAttention>(config, builder);
}

}  // namespace tessera::nn
