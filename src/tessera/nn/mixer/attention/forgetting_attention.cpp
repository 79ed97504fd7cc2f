#include "tessera/nn/mixer/attention/forgetting_attention.h"

#include <cmath>
#include <memory>

#include "tessera/nn/dropout.h"
#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/mixer/attention/head_gate.h"
#include "tessera/nn/mixer/attention/head_norms.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

/// c_i - c_j of a block of queries i and keys j, from c of all positions [H, S].
Tensor forgotten(const ops::ScoreBlock& block, const std::vector<Tensor>& inputs) {
  const auto of = [&](int64_t first, int64_t n, int64_t step) {
    return inputs[0].slice(1, first, first + (n - 1) * step + 1, step);
  };
  const int64_t t = block.q_BHTD.size(2), s = block.k_BHSD.size(2);
  const std::vector<int64_t> sizes{inputs[0].size(0), t, s};
  const Tensor queries = of(block.first_query, t, block.query_step).unsqueeze(2),
               keys = of(block.first_key, s, block.key_step).unsqueeze(1);
  return (ops::expanded(queries, sizes) - ops::expanded(keys, sizes))
      .to(ops::wide(block.q_BHTD))
      .unsqueeze(0);
}

class ForgettingAttention final : public Mixer {
 public:
  ForgettingAttention(const ForgettingAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        forget_(builder, "forget"),
        q_norm_(builder, "q_norm", config, config.n_heads),
        k_norm_(builder, "k_norm", config, config.n_kv_heads),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))),
        gate_(builder, config.output_gate()) {
    how_.scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    if (context.split.ranks > 1 && !ops::documents_apart(x_ND))
      fail(ErrorKind::spec, name_,
           "forgetting_attention is not split over ranks; expected one rank for a sequence");
    const int64_t n = x_ND.size(0);
    const ops::SharedInput shared(x_ND);
    const Tensor q_NHD = position_->rotate(q_norm_(q_(shared, context), context.products),
                                           Side::query, context),
                 k_NGD = position_->rotate(k_norm_(k_(shared, context), context.products),
                                           Side::key, context),
                 v_NGD = v_(shared, context).reshape({n, config_.n_kv_heads, config_.head_dim});
    const Tensor z_NH = forget_(shared, context), f_NH = -ops::softplus(-z_NH.to(ops::wide(z_NH)));
    const WeightDropout dropout = weight_dropout(context, name_, config_.dropout);
    const BySegment part(*context.batch);
    std::vector<ops::AttentionCall> calls;
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      std::vector<ops::KeyValues> kv{{part(k_NGD, i), part(v_NGD, i), s.start}};
      Tensor f_SH = part(f_NH, i);
      if (rows != nullptr) {
        RowState& row = *(*rows)[i];
        require(row.tokens(2).length() == s.start, "forgetting_attention",
                "the state holds {} tokens, the call starts at {}", row.tokens(2).length(),
                s.start);
        row.tokens(0).append(kv[0].k_SGD);
        row.tokens(1).append(kv[0].v_SGD);
        row.tokens(2).append(f_SH);
        kv = held_keys(row.tokens(0), row.tokens(1), 0, s.start + s.length);
        f_SH = at::cat(row.tokens(2).spans(0, s.start + s.length));
      }
      ops::ScoreOptions how = dropout.in(how_, s);
      how.products = context.products.type;
      how.term.bias = forgotten;
      how.term.inputs = {f_SH.to(at::kDouble).cumsum(0).t()};
      calls.push_back({part(q_NHD, i), std::move(kv), s.start, std::move(how)});
    }
    const Tensor heads_NE = ops::attention(calls).reshape({n, -1});
    return o_(gate_(heads_NE, shared, GatePlace::after_sdpa, context), context);
  }

 private:
  ForgettingAttentionConfig config_;
  std::string name_;
  ops::ScoreOptions how_;
  Linear q_, k_, v_, o_, forget_;
  HeadNorms q_norm_, k_norm_;
  std::unique_ptr<Position> position_;
  HeadGate gate_;
};

}  // namespace

std::unique_ptr<Mixer> build(const ForgettingAttentionConfig& config, const Builder& builder) {
  return std::make_unique<ForgettingAttention>(config, builder);
}

}  // namespace tessera::nn
