#include "tessera/nn/mixer/attention.h"

#include "tessera/nn/parts.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/pointwise.h"
#include "tessera/ops/random.h"

namespace tessera::nn {
namespace {

class Attention final : public Mixer {
 public:
  Attention(const AttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        layer_(builder.scope().layer),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {
    if (config.qk_norm) {
      q_norm_ = build_norm(config.qk_norm, builder.under("q_norm"));
      k_norm_ = build_norm(config.qk_norm, builder.under("k_norm"));
    }
    if (config.gate != OutputGate::none) gate_ = Linear(builder, "gate");
    if (config.sinks) sinks_ = builder.weight("sinks");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, g = config_.n_kv_heads,
                  d = config_.head_dim;
    // projections, norms, rotation
    const Tensor q_NHD = position_->rotate(queries(x_ND), Side::query, context);
    const Tensor k_NGD = position_->rotate(keys(x_ND), Side::key, context);
    const Tensor v_NGD = v_(x_ND).reshape({n, g, d});

    const ops::ScoreOptions how = options(context);
    Tensor o_NHD = rows != nullptr ? with_state(q_NHD, k_NGD, v_NGD, how, context, *rows)
                                   : whole(q_NHD, k_NGD, v_NGD, how, context);
    if (gate_.weight)
      o_NHD = o_NHD * ops::activate(gate_(x_ND), ops::Activation::sigmoid).reshape({n, h, -1});
    return o_(o_NHD.reshape({n, h * d}));
  }

 private:
  Tensor queries(const Tensor& x_ND) const {
    return normed(q_(x_ND), q_norm_.get(), config_.n_heads);
  }
  Tensor keys(const Tensor& x_ND) const {
    return normed(k_(x_ND), k_norm_.get(), config_.n_kv_heads);
  }

  Tensor normed(const Tensor& projected, const Norm* norm, int64_t heads) const {
    const int64_t n = projected.size(0);
    if (norm != nullptr && config_.qk_norm_over == QkNormOver::projection)
      return norm->forward(projected).reshape({n, heads, config_.head_dim});
    const Tensor apart = projected.reshape({n, heads, config_.head_dim});
    return norm != nullptr ? norm->forward(apart) : apart;
  }

  ops::ScoreOptions options(Context& context) const {
    ops::ScoreOptions how;
    how.scale = config_.score_scale(layer_);
    how.softcap = config_.softcap;
    how.causal = context.causal;
    how.dropout = context.training ? config_.dropout : 0;
    if (sinks_) how.sinks_H = sinks_->tensor();
    ScoreSite site{config_.n_heads,
                   config_.head_dim,
                   context.batch->longest(),
                   how.scale,
                   [this](const Tensor& x) { return queries(x); },
                   [this](const Tensor& x) { return keys(x); }};
    how.term = position_->score_term(site, context);
    how.scale = site.scale;
    return how;
  }

  /// With the pattern of one document.
  ops::ScoreOptions in_document(ops::ScoreOptions how, int64_t length) const {
    const PatternConfig& who = config_.who();
    if (const auto window = who.window())
      how.window = *window;
    else
      how.visibility = std::make_shared<PatternVisibility>(
          who, PatternSite{layer_, config_.n_heads, length, how.causal});
    return how;
  }

  std::function<Tensor(const Tensor&)> dropper(const Context& context, uint64_t site) const {
    if (!context.training || config_.dropout == 0) return {};
    const RandomKey key = context.key.fold(name_ + ".weights").fold(site);
    return
        [key, p = config_.dropout](const Tensor& weights) { return ops::dropout(weights, p, key); };
  }

  /// Whole documents, without a past.
  Tensor whole(const Tensor& q_NHD,
               const Tensor& k_NGD,
               const Tensor& v_NGD,
               const ops::ScoreOptions& how,
               Context& context) const {
    const Batch& batch = *context.batch;
    if (const int64_t t = batch.equal_length(); t > 0 && !ops::use_kernels(q_NHD)) {
      const int64_t b = q_NHD.size(0) / t;
      const auto fold = [&](const Tensor& x) { return x.reshape({b, t, x.size(1), x.size(2)}); };
      return ops::attention_equal(fold(q_NHD), fold(k_NGD), fold(v_NGD), in_document(how, t),
                                  dropper(context, 0))
          .reshape(q_NHD.sizes());
    }
    std::vector<Tensor> out;
    for (const Segment& s : batch.segments) {
      const ops::KeyValues kv{k_NGD.narrow(0, s.begin, s.length),
                              v_NGD.narrow(0, s.begin, s.length), s.start};
      out.push_back(ops::attention(q_NHD.narrow(0, s.begin, s.length), {kv}, s.start,
                                   in_document(how, s.length),
                                   dropper(context, static_cast<uint64_t>(s.begin))));
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// Each segment after what its row holds.
  Tensor with_state(const Tensor& q_NHD,
                    const Tensor& k_NGD,
                    const Tensor& v_NGD,
                    const ops::ScoreOptions& how,
                    Context& context,
                    const StateRows& rows) const {
    const Batch& batch = *context.batch;
    const int64_t horizon = config_.who().horizon();
    std::vector<Tensor> out;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Segment& s = batch.segments[i];
      TokenBuffer &keys = rows[i]->tokens(0), &values = rows[i]->tokens(1);
      const Tensor k = k_NGD.narrow(0, s.begin, s.length), v = v_NGD.narrow(0, s.begin, s.length);
      require(keys.length() == s.start, "attention",
              "the state holds {} tokens, the call starts at {}", keys.length(), s.start);
      // first position that the first query sees
      const int64_t from = horizon > 0 ? std::max<int64_t>(0, s.start - horizon + 1) : 0;
      std::vector<ops::KeyValues> kv;
      const auto held = [&](int64_t to) {
        const auto k_spans = keys.spans(from, to), v_spans = values.spans(from, to);
        for (int64_t j = 0, at = from; j < static_cast<int64_t>(k_spans.size());
             at += k_spans[static_cast<size_t>(j)].size(0), ++j)
          kv.push_back({k_spans[static_cast<size_t>(j)], v_spans[static_cast<size_t>(j)], at});
      };
      // a ring may not hold both the oldest visible key and all new ones: several new tokens stay
      // outside until computed
      const bool append_first = horizon == 0 || s.length == 1;
      if (append_first) {
        keys.append(k);
        values.append(v);
        held(s.start + s.length);
      } else {
        held(s.start);
        kv.push_back({k, v, s.start});
      }
      out.push_back(ops::attention(q_NHD.narrow(0, s.begin, s.length), kv, s.start,
                                   in_document(how, s.start + s.length)));
      if (!append_first) {
        keys.append(k);
        values.append(v);
      }
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  AttentionConfig config_;
  std::string name_;
  int64_t layer_ = 0;
  Linear q_, k_, v_, o_, gate_;
  WeightPtr sinks_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
  std::unique_ptr<Position> position_;
};

}  // namespace

std::unique_ptr<Mixer> build(const AttentionConfig& config, const Builder& builder) {
  return std::make_unique<Attention>(config, builder);
}

}  // namespace tessera::nn
