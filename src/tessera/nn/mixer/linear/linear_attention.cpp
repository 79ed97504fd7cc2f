#include "tessera/nn/mixer/linear/linear_attention.h"

#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/mixer/shown.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

class LinearAttention final : public Mixer {
 public:
  LinearAttention(const LinearAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o") {
    if (config.feature == FeatureMap::hadamard) {
      feature_q_ = {builder, "feature_q"};
      feature_k_ = config.tied_features ? feature_q_ : Product{builder, "feature_k"};
    }
    if (config.head_norm)
      head_norm_ =
          build_norm(config.head_norm,
                     builder.under("head_norm", config.child_scope(builder.scope(), "head_norm")));
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    const bool normalised = *config_.normaliser;
    const Tensor q_NE = queries(q_(x_ND, context), context),
                 k_NE = keys(k_(x_ND, context), context);
    Tensor v_NHV = v_(x_ND, context).to(q_NE.scalar_type()).reshape({n, h, v});
    if (normalised) v_NHV = at::cat({v_NHV, at::ones({n, h, 1}, v_NHV.options())}, -1);

    const Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      ops::LinearRecurrence in{run.of(q_NE, {h, k}), run.of(k_NE, {h, k}),
                               run.of(v_NHV, {h, config_.columns()})};
      in.documents = run.documents;
      return context.causal ? recur(run, in, config_.chunk, 0) : ops::linear_recurrence_whole(in);
    });
    Tensor y_NHV = y_NE.reshape({n, h, config_.columns()});
    if (normalised) y_NHV = y_NHV.narrow(2, 0, v) / (y_NHV.narrow(2, v, 1) + config_.eps);
    if (head_norm_) y_NHV = head_norm_->forward(y_NHV, context.products);
    const Tensor heads_NE = y_NHV.reshape({n, h * v});
    show(q_NE, k_NE, heads_NE, context);
    return o_(heads_NE.to(x_ND.scalar_type()), context);
  }

 private:
  /// (A x + a) * (B x + b) of every head's channels.
  struct Product {
    Product() = default;
    Product(const Builder& builder, const std::string& name)
        : first(builder, name + ".first"), second(builder, name + ".second") {}
    Tensor operator()(const Tensor& x_NHK, const Context& context) const {
      return first(x_NHK, context) * second(x_NHK, context);
    }
    Linear first, second;
  };

  /// What a probe may ask for by name, as mixer "attention" shows it: the heads, and for every
  /// document the matrices [H, T, T] that mix its values.
  void show(const Tensor& q_NE,
            const Tensor& k_NE,
            const Tensor& heads_NE,
            Context& context) const {
    if (const std::string name = name_ + ".heads"; is_asked_for(context, name))
      context.probe(name, heads_NE);
    const std::string name = name_ + ".weights";
    if (!is_asked_for(context, name)) return;
    const BySegment part(*context.batch);
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      const auto by_head = [&](const Tensor& y) {
        return part(y, i).unflatten(1, {config_.n_heads, config_.key_dim}).transpose(0, 1);
      };
      Tensor weights_HTS = at::matmul(by_head(q_NE), by_head(k_NE).transpose(1, 2));
      if (context.causal) weights_HTS = weights_HTS.tril();
      if (*config_.normaliser)
        weights_HTS = weights_HTS / (weights_HTS.sum(-1, true) + config_.eps);
      context.probe(name, weights_HTS);
    }
  }

  Tensor queries(const Tensor& x_NE, const Context& context) const {
    if (config_.feature != FeatureMap::softmax)
      return summed(feature(x_NE, feature_q_, context), config_.sum_norm_q);
    return ops::softmax(by_heads(x_NE.to(ops::wide(x_NE)))).flatten(1);
  }
  Tensor by_heads(const Tensor& x_NE) const {
    return x_NE.unflatten(1, {config_.n_heads, config_.key_dim});
  }
  /// Divided by the sum of each head's channels, where asked for.
  Tensor summed(const Tensor& x_NE, bool asked) const {
    constexpr double kSumEps = 1e-4;
    if (!asked) return x_NE;
    const Tensor x_NHK = by_heads(x_NE);
    return (x_NHK / (x_NHK.sum(-1, /*keepdim=*/true) + kSumEps)).flatten(1);
  }
  Tensor keys(const Tensor& x_NE, const Context& context) const {
    if (config_.feature != FeatureMap::softmax)
      return summed(feature(x_NE, feature_k_, context), config_.sum_norm_k);
    const Tensor wide = x_NE.to(ops::wide(x_NE));
    const BySegment part(*context.batch);
    return over_segments(*context.batch, [&](size_t i, const Segment&) {
      const Tensor x_TE = part(wide, i);
      return at::GradMode::is_enabled() ? ops::softmax(x_TE.t()).t() : at::softmax(x_TE, 0);
    });
  }

  /// phi, in float32 at least: the sums of many keys follow.
  Tensor feature(const Tensor& x, const Product& learned, const Context& context) const {
    const Tensor wide = x.to(ops::wide(x));
    switch (config_.feature) {
      case FeatureMap::elu1:
        // x + 1 above 0, e^x below: neither branch can overflow in the other's gradient
        return at::relu(wide) - ops::minus_exp(-at::relu(-wide));
      case FeatureMap::relu:
        return at::relu(wide);
      case FeatureMap::exp:
        return -ops::minus_exp(wide);
      case FeatureMap::hadamard:
        return learned(by_heads(x), context).to(ops::wide(x)).flatten(1);
      case FeatureMap::identity:
      case FeatureMap::softmax:
        return wide;
    }
    return wide;
  }

  LinearAttentionConfig config_;
  std::string name_;
  Linear q_, k_, v_, o_;
  Product feature_q_, feature_k_;
  std::unique_ptr<Norm> head_norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const LinearAttentionConfig& config, const Builder& builder) {
  return std::make_unique<LinearAttention>(config, builder);
}

}  // namespace tessera::nn
