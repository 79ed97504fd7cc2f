#include "tessera/nn/mixer/attention/attention_experts.h"

#include <cmath>

#include "tessera/nn/dropout.h"
#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/router/sorted_choices.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {
namespace {

class AttentionExperts final : public Mixer {
 public:
  AttentionExperts(const AttentionExpertsConfig& config, const Builder& builder)
      : config_(config),
        router_(build_router(
            config.router, builder.under("router", config.child_scope(builder.scope(), "router")))),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        bias_(builder.optional("bias")),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))),
        mask_(builder, config.pattern, config.n_heads) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Routing routing = router_->route(x_ND, context);
    const SortedChoices sorted = sort_by_expert(routing.expert_NK, config_.n_experts);
    const Tensor unrotated = queries(x_ND, routing, sorted, context);
    const Tensor far = mask_.far_queries(unrotated, *position_, context);
    const Tensor q_NHD = position_->rotate(unrotated, Side::query, context),
                 k_NGD = position_->rotate(heads(k_(x_ND, context)), Side::key, context),
                 v_NGD = heads(v_(x_ND, context));
    ops::ScoreOptions how;
    how.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
    how.causal = context.causal;
    const PatternedScores scores = mask_.scores(std::move(how), context, far);
    const Tensor o_NHD = rows != nullptr
                             ? with_state(q_NHD, k_NGD, v_NGD, scores, context, *rows)
                             : attend_documents(q_NHD, k_NGD, v_NGD, *context.batch, scores);
    return outputs(o_NHD, routing, sorted, context).to(x_ND.scalar_type());
  }

 private:
  Tensor heads(const Tensor& x) const {
    return x.reshape({x.size(0), config_.n_heads, config_.head_dim});
  }

  static ops::ProductSettings of_experts(const SortedChoices& sorted, const Context& context) {
    return context.products.with(expert_input_drop(sorted.groups, context));
  }

  /// Those of the chosen experts, [N, G K, D], the experts of a head one after another: they read
  /// one head of keys. Zero where a choice is none.
  Tensor queries(const Tensor& x_ND,
                 const Routing& routing,
                 const SortedChoices& sorted,
                 const Context& context) const {
    const int64_t n = x_ND.size(0), k = routing.expert_NK.size(1), g = config_.n_heads,
                  d = config_.head_dim;
    const auto device = x_ND.device();
    const Tensor q_SE =
        ops::grouped_linear(x_ND.index_select(0, sorted.token_S.to(device)), *q_.weight,
                            sorted.groups->offsets, nullptr, of_experts(sorted, context));
    if (q_SE.size(0) == 0) return at::zeros({n, g * k, d}, q_SE.options());
    Tensor q_CE = q_SE.index_select(0, sorted.row_NK.reshape({-1}).to(device));
    if (!sorted.all())
      q_CE = q_CE.masked_fill(sorted.has_NK.logical_not().reshape({-1, 1}).to(device), 0);
    return q_CE.reshape({n, k, g, d}).transpose(1, 2).reshape({n, g * k, d});
  }

  Tensor with_state(const Tensor& q_NHD,
                    const Tensor& k_NGD,
                    const Tensor& v_NGD,
                    const PatternedScores& scores,
                    const Context& context,
                    const StateRows& rows) const {
    const BySegment part(*context.batch);
    std::vector<PatternMask::Past> pasts;
    std::vector<ops::AttentionCall> calls;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      pasts.push_back(mask_.past({part(k_NGD, i), part(v_NGD, i), s.start}, rows[i]->tokens(0),
                                 &rows[i]->tokens(1)));
      calls.push_back({part(q_NHD, i), pasts.back().kv, s.start, scores.in_document(part, i)});
    }
    const Tensor o_NHD = ops::attention(calls);
    for (PatternMask::Past& past : pasts) past.keep();
    return o_NHD;
  }

  /// Added up in the order of the choices, in float32 or double.
  Tensor outputs(const Tensor& o_NHD,
                 const Routing& routing,
                 const SortedChoices& sorted,
                 const Context& context) const {
    const int64_t n = o_NHD.size(0), k = routing.expert_NK.size(1), g = config_.n_heads,
                  d = config_.head_dim;
    const auto device = o_NHD.device();
    const Tensor o_CE = o_NHD.reshape({n, g, k, d}).transpose(1, 2).reshape({n * k, g * d});
    const Tensor y_SD =
        ops::grouped_linear(o_CE.index_select(0, sorted.choice_S.to(device)), *o_.weight,
                            sorted.groups->offsets, nullptr, of_experts(sorted, context));
    Tensor sum = at::zeros({n, y_SD.size(1)}, y_SD.options().dtype(ops::wide(y_SD)));
    for (int64_t j = 0; j < k; ++j)
      sum = with_choice(sum, j, y_SD, sorted,
                        routing.weight_NK.narrow(1, j, 1).to(sum.scalar_type()));
    return bias_ ? sum + ops::spread(bias_->tensor().to(sum.scalar_type()), sum) : sum;
  }

  AttentionExpertsConfig config_;
  std::unique_ptr<Router> router_;
  Linear q_, k_, v_, o_;
  WeightPtr bias_;
  std::unique_ptr<Position> position_;
  PatternMask mask_;
};

}  // namespace

std::unique_ptr<Mixer> build(const AttentionExpertsConfig& config, const Builder& builder) {
  return std::make_unique<AttentionExperts>(config, builder);
}

}  // namespace tessera::nn
