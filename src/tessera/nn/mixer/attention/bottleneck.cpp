#include "tessera/nn/mixer/attention/bottleneck.h"

#include <cmath>

#include <fmt/format.h>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

class Bottleneck final : public Mixer {
 public:
  Bottleneck(const BottleneckConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        in_(builder, "in"),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        out_(builder, "out") {
    const spec::Scope inner = config.child_scope(builder.scope(), "ffn");
    const auto norm = [&](const std::string& name) {
      return build_norm(config.norm, builder.under(name, inner));
    };
    in_norm_ = norm("in_norm");
    o_norm_ = norm("o_norm");
    if (config.attention == BottleneckAttention::stream) {
      qk_ = Linear(builder, "qk");
      qk_norm_ = norm("qk_norm");
    }
    for (int64_t i = 0; i < config.n_ffns; ++i) {
      ffns_.push_back(build_ffn(config.ffn, builder.under(fmt::format("ffn.{}", i), inner)));
      ffn_norms_.push_back(norm(fmt::format("ffn_norm.{}", i)));
    }
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const ops::SharedInput shared(x_ND);
    const Tensor a_NB = in_norm_->forward(in_(shared, context), context);
    const Tensor s_NB = qk_norm_ ? qk_norm_->forward(qk_(shared, context), context) : a_NB;
    Tensor h_NB = o_norm_->forward(
        a_NB + o_(attended(s_NB, qk_norm_ ? v_(shared, context) : v_(a_NB, context), context),
                  context),
        context);
    for (size_t i = 0; i < ffns_.size(); ++i)
      h_NB = ffn_norms_[i]->forward(h_NB + ffns_[i]->forward(h_NB, context), context);
    return out_(h_NB, context);
  }

 private:
  Tensor attended(const Tensor& s_NB, const Tensor& v_NB, const Context& context) const {
    const auto heads = [&](const Tensor& y) {
      return y.reshape({y.size(0), config_.n_heads, -1});
    };
    PatternedScores scores;
    scores.how.scale =
        1 / std::sqrt(static_cast<double>(config_.width) / static_cast<double>(config_.n_heads));
    scores.how.causal = false;
    return attend_documents(heads(q_(s_NB, context)), heads(k_(s_NB, context)), heads(v_NB),
                            *context.batch, scores, weight_dropout(context, name_, config_.dropout))
        .reshape(v_NB.sizes());
  }

  BottleneckConfig config_;
  std::string name_;
  Linear in_, qk_, q_, k_, v_, o_, out_;
  std::unique_ptr<Norm> in_norm_, qk_norm_, o_norm_;
  std::vector<std::unique_ptr<Ffn>> ffns_;
  std::vector<std::unique_ptr<Norm>> ffn_norms_;
};

}  // namespace

std::unique_ptr<Mixer> build(const BottleneckConfig& config, const Builder& builder) {
  return std::make_unique<Bottleneck>(config, builder);
}

}  // namespace tessera::nn
