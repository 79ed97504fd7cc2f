#include "tessera/nn/mixer/attention.h"

#include "tessera/nn/parts.h"
#include "tessera/nn/pattern/window.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/random.h"

namespace tessera::nn {
namespace {

class Attention final : public Mixer {
 public:
  Attention(const AttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        position_(build_position(config.position, builder.under("position"))) {
    if (config.qk_norm) {
      q_norm_ = build_norm(config.qk_norm, builder.under("q_norm"));
      k_norm_ = build_norm(config.qk_norm, builder.under("k_norm"));
    }
    options_.scale = config.score_scale(builder.scope().layer);
    options_.softcap = config.softcap;
    options_.window = config.who().horizon();
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, g = config_.n_kv_heads,
                  d = config_.head_dim;
    // projections, norms, rotation
    Tensor q_NHD = normed(q_(x_ND), q_norm_.get(), h);
    Tensor k_NGD = normed(k_(x_ND), k_norm_.get(), g);
    const Tensor v_NGD = v_(x_ND).reshape({n, g, d});
    q_NHD = position_->rotate(q_NHD, context);
    k_NGD = position_->rotate(k_NGD, context);

    const Tensor o_NHD = rows != nullptr ? with_state(q_NHD, k_NGD, v_NGD, context, *rows)
                                         : whole(q_NHD, k_NGD, v_NGD, context);
    return o_(o_NHD.reshape({n, h * d}));
  }

 private:
  Tensor normed(const Tensor& projected, const Norm* norm, int64_t heads) const {
    const int64_t n = projected.size(0);
    if (norm != nullptr && config_.qk_norm_over == QkNormOver::projection)
      return norm->forward(projected).reshape({n, heads, config_.head_dim});
    const Tensor apart = projected.reshape({n, heads, config_.head_dim});
    return norm != nullptr ? norm->forward(apart) : apart;
  }

  ops::ScoreOptions options(const Context& context) const {
    ops::ScoreOptions options = options_;
    options.causal = context.causal;
    options.dropout = context.training ? config_.dropout : 0;
    return options;
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
               Context& context) const {
    const Batch& batch = *context.batch;
    const ops::ScoreOptions how = options(context);
    if (const int64_t t = batch.equal_length(); t > 0 && !ops::use_kernels(q_NHD)) {
      const int64_t b = q_NHD.size(0) / t;
      const auto fold = [&](const Tensor& x) { return x.reshape({b, t, x.size(1), x.size(2)}); };
      return ops::attention_equal(fold(q_NHD), fold(k_NGD), fold(v_NGD), how, dropper(context, 0))
          .reshape(q_NHD.sizes());
    }
    std::vector<Tensor> out;
    for (const Segment& s : batch.segments) {
      const ops::KeyValues kv{k_NGD.narrow(0, s.begin, s.length),
                              v_NGD.narrow(0, s.begin, s.length), s.start};
      out.push_back(ops::attention(q_NHD.narrow(0, s.begin, s.length), {kv}, s.start, how,
                                   dropper(context, static_cast<uint64_t>(s.begin))));
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  /// Each segment after what its row holds.
  Tensor with_state(const Tensor& q_NHD,
                    const Tensor& k_NGD,
                    const Tensor& v_NGD,
                    Context& context,
                    const StateRows& rows) const {
    const Batch& batch = *context.batch;
    const ops::ScoreOptions how = options(context);
    std::vector<Tensor> out;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Segment& s = batch.segments[i];
      TokenBuffer &keys = rows[i]->tokens(0), &values = rows[i]->tokens(1);
      const Tensor k = k_NGD.narrow(0, s.begin, s.length), v = v_NGD.narrow(0, s.begin, s.length);
      require(keys.length() == s.start, "attention",
              "the state holds {} tokens, the call starts at {}", keys.length(), s.start);
      // first position that the first query sees
      const int64_t from = how.window > 0 ? std::max<int64_t>(0, s.start - how.window + 1) : 0;
      std::vector<ops::KeyValues> kv;
      const auto held = [&](int64_t to) {
        const auto k_spans = keys.spans(from, to), v_spans = values.spans(from, to);
        for (int64_t j = 0, at = from; j < static_cast<int64_t>(k_spans.size());
             at += k_spans[static_cast<size_t>(j)].size(0), ++j)
          kv.push_back({k_spans[static_cast<size_t>(j)], v_spans[static_cast<size_t>(j)], at});
      };
      // a ring may not hold both the oldest visible key and all new ones: several new tokens stay
      // outside until computed
      const bool append_first = how.window == 0 || s.length == 1;
      if (append_first) {
        keys.append(k);
        values.append(v);
        held(s.start + s.length);
      } else {
        held(s.start);
        kv.push_back({k, v, s.start});
      }
      out.push_back(ops::attention(q_NHD.narrow(0, s.begin, s.length), kv, s.start, how));
      if (!append_first) {
        keys.append(k);
        values.append(v);
      }
    }
    return out.size() == 1 ? out[0] : at::cat(out);
  }

  AttentionConfig config_;
  std::string name_;
  Linear q_, k_, v_, o_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
  std::unique_ptr<Position> position_;
  ops::ScoreOptions options_;
};

}  // namespace

std::unique_ptr<Mixer> build(const AttentionConfig& config, const Builder& builder) {
  return std::make_unique<Attention>(config, builder);
}

}  // namespace tessera::nn
