// The RWKV mixers: time mixing of versions 5, 6 and 7, and channel mixing.
#include <cmath>
#include <map>

#include "tessera/nn/decode_step.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/nn/mixer/linear/rwkv5.h"
#include "tessera/nn/mixer/linear/rwkv6.h"
#include "tessera/nn/mixer/linear/rwkv6_step.h"
#include "tessera/nn/mixer/linear/rwkv7.h"
#include "tessera/nn/mixer/linear/rwkv_channel_mix.h"
#include "tessera/nn/mixer/linear/rwkv_step.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/l2_norm.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {
namespace {

constexpr size_t kState = 0, kLast = 1;  // as the time mixers declare them

Tensor sigmoid_of(const Tensor& x) {
  return ops::activate(x, ops::Activation::sigmoid);
}
Tensor tanh_of(const Tensor& x) {
  return ops::activate(x, ops::Activation::tanh);
}

/// The parameters mix_<name>, by name.
std::map<char, WeightPtr> mixes(const Builder& builder, std::string_view names) {
  std::map<char, WeightPtr> out;
  for (const char name : names) out[name] = builder.weight(std::string("mix_") + name);
  return out;
}

/// What the time mixers share: r, k, v, o and the norm over each head.
struct TimeMix {
  RecurrentConfig shape;
  double norm_eps;
  Linear r, k, v, o;
  WeightPtr norm_weight, norm_bias;

  TimeMix(const RecurrentConfig& config, double eps, const Builder& builder)
      : shape(config),
        norm_eps(eps),
        r(builder, "r"),
        k(builder, "k"),
        v(builder, "v"),
        o(builder, "o"),
        norm_weight(builder.weight("norm.weight")),
        norm_bias(builder.weight("norm.bias")) {}

  Tensor normed(const Tensor& y_NE) const {
    const Tensor y = ops::layer_norm(y_NE.reshape({-1, shape.n_heads, shape.value_dim}), Tensor(),
                                     Tensor(), 0, norm_eps)
                         .reshape(y_NE.sizes());
    return y * ops::spread(norm_weight->tensor().to(y.scalar_type()), y) +
           ops::spread(norm_bias->tensor().to(y.scalar_type()), y);
  }
};

class Rwkv5 final : public Mixer {
 public:
  Rwkv5(const Rwkv5Config& config, const Builder& builder)
      : config_(config),
        base_(config, config.norm_eps, builder),
        mix_(mixes(builder, config.gate ? "rkvg" : "rkv")),
        decay_(builder.weight("decay")),
        bonus_(builder.weight("bonus")) {
    if (config.gate) g_ = Linear(builder, "g");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t h = base_.shape.n_heads, k = base_.shape.key_dim, v = base_.shape.value_dim;
    const Tensor before_ND = token_shift(x_ND, *context.batch, rows, kLast);
    const auto mixed = [&](char name) {
      return before_ND +
             ops::spread(mix_.at(name)->tensor().to(x_ND.scalar_type()), x_ND) * (x_ND - before_ND);
    };
    const Tensor r_NE = base_.r(mixed('r'), context), k_NE = base_.k(mixed('k'), context),
                 v_NE = base_.v(mixed('v'), context);
    const auto type = ops::wide(x_ND);
    const Tensor log_decay_HK = ops::minus_exp(decay_->tensor().to(type)),
                 bonus_HK = bonus_->tensor().to(type);
    const Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return recur(run,
                   {run.of(r_NE, {h, k}),
                    run.of(k_NE, {h, k}),
                    run.of(v_NE, {h, v}),
                    ops::expanded(log_decay_HK, {run.b, run.t, h, k}),
                    {},
                    {},
                    {},
                    bonus_HK},
                   base_.shape.chunk, kState);
    });
    const Tensor normed_NE = base_.normed(y_NE);
    return base_.o(config_.gate
                       ? ops::gated(g_(mixed('g'), context), normed_NE, ops::Activation::silu)
                       : normed_NE,
                   context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    if (!others_at_default(config_,
                           {"n_heads", "key_dim", "value_dim", "chunk", "gate", "norm_eps"}))
      return nullptr;
    return rwkv5_step({base_.shape, base_.norm_eps, base_.r, base_.k, base_.v, base_.o, g_, mix_,
                       bonus_, base_.norm_weight, base_.norm_bias, decay_},
                      products);
  }

 private:
  Rwkv5Config config_;
  TimeMix base_;
  Linear g_;
  std::map<char, WeightPtr> mix_;
  WeightPtr decay_, bonus_;
};

class Rwkv6 final : public Mixer {
 public:
  Rwkv6(const Rwkv6Config& config, const Builder& builder)
      : config_(config),
        base_(config, config.norm_eps, builder),
        g_(builder, "g"),
        mix_down_(builder, "mix_down"),
        decay_down_(builder, "decay_down"),
        decay_up_(builder, "decay_up"),
        mix_(mixes(builder, "xwkvrg")),
        bonus_(builder.weight("bonus")) {
    for (const char name : kRwkv6Mixes)
      mix_up_[name] = Linear(builder, std::string("mix_up_") + name);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t h = base_.shape.n_heads, k = base_.shape.key_dim, v = base_.shape.value_dim;
    const Tensor step_ND = token_shift(x_ND, *context.batch, rows, kLast) - x_ND;
    const auto share = [&](char name) {
      return ops::spread(mix_.at(name)->tensor().to(x_ND.scalar_type()), x_ND);
    };
    // how far each input steps back is itself decided by the token
    const Tensor z = tanh_of(mix_down_(x_ND + step_ND * share('x'), context));
    const auto mixed = [&](char name) {
      const auto j = static_cast<int64_t>(kRwkv6Mixes.find(name));
      return x_ND + step_ND * (share(name) +
                               mix_up_.at(name)(z.narrow(1, j * config_.mix_rank, config_.mix_rank),
                                                context));
    };
    const Tensor raw = decay_up_(tanh_of(decay_down_(mixed('w'), context)), context);
    const auto type = ops::wide(x_ND);
    const Tensor log_decay_NE = ops::minus_exp(raw.to(type)), bonus_HK = bonus_->tensor().to(type);
    const Tensor r_NE = base_.r(mixed('r'), context), k_NE = base_.k(mixed('k'), context),
                 v_NE = base_.v(mixed('v'), context);
    const Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return recur(run,
                   {run.of(r_NE, {h, k}),
                    run.of(k_NE, {h, k}),
                    run.of(v_NE, {h, v}),
                    run.of(log_decay_NE, {h, k}),
                    {},
                    {},
                    {},
                    bonus_HK},
                   base_.shape.chunk, kState);
    });
    return base_.o(ops::gated(g_(mixed('g'), context), base_.normed(y_NE), ops::Activation::silu),
                   context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    if (!others_at_default(config_, {"n_heads", "key_dim", "value_dim", "chunk", "mix_rank",
                                     "decay_rank", "norm_eps"}))
      return nullptr;
    const Rwkv6Parts follows{config_.mix_rank, mix_down_, decay_down_, decay_up_, mix_up_};
    return rwkv5_step({base_.shape, base_.norm_eps, base_.r, base_.k, base_.v, base_.o, g_, mix_,
                       bonus_, base_.norm_weight, base_.norm_bias, nullptr, &follows},
                      products);
  }

 private:
  Rwkv6Config config_;
  TimeMix base_;
  Linear g_, mix_down_, decay_down_, decay_up_;
  std::map<char, WeightPtr> mix_;
  std::map<char, Linear> mix_up_;
  WeightPtr bonus_;
};

class Rwkv7 final : public Mixer {
 public:
  Rwkv7(const Rwkv7Config& config, const Builder& builder)
      : config_(config),
        base_(config, config.norm_eps, builder),
        decay_down_(builder, "decay_down"),
        decay_up_(builder, "decay_up"),
        rate_down_(builder, "rate_down"),
        rate_up_(builder, "rate_up"),
        gate_down_(builder, "gate_down"),
        gate_up_(builder, "gate_up"),
        mix_(mixes(builder, "rwkvag")),
        key_scale_(builder.weight("key_scale")),
        key_rate_(builder.weight("key_rate")),
        bonus_(builder.weight("bonus")) {
    // parameters shared by several layers hold a mix that the first of them has no use for
    if (config.mixes_value(builder.scope())) {
      value_mix_down_ = Linear(builder, "value_mix_down");
      value_mix_up_ = Linear(builder, "value_mix_up");
    }
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = base_.shape.n_heads, k = base_.shape.key_dim,
                  v = base_.shape.value_dim;
    const auto type = ops::wide(x_ND);
    const Tensor step_ND = token_shift(x_ND, *context.batch, rows, kLast) - x_ND;
    const auto mixed = [&](char name) {
      return x_ND + step_ND * ops::spread(mix_.at(name)->tensor().to(x_ND.scalar_type()), step_ND);
    };
    // decay and rate
    const Tensor raw = decay_up_(tanh_of(decay_down_(mixed('w'), context)), context);
    const Tensor log_decay_NE = sigmoid_of(raw.to(type)) * -std::exp(-0.5);
    const Tensor rate_NE = sigmoid_of(rate_up_(rate_down_(mixed('a'), context), context).to(type));
    // keys: the direction that is removed, and the key that is written
    const Tensor r_NE = base_.r(mixed('r'), context),
                 raw_k_NE = base_.k(mixed('k'), context).to(type);
    const Tensor removed_NHK = ops::l2_norm(
        (raw_k_NE * ops::spread(key_scale_->tensor().to(type), raw_k_NE)).reshape({n, h, k}),
        kRwkvKeyEps);
    const Tensor k_NE =
        raw_k_NE * (1 + (rate_NE - 1) * ops::spread(key_rate_->tensor().to(type), rate_NE));
    const Tensor v_NE = value(mixed('v'), context);

    const Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      const Tensor removed = run.of(removed_NHK, {h, k});
      return recur(run,
                   {run.of(r_NE, {h, k}),
                    run.of(k_NE, {h, k}),
                    run.of(v_NE, {h, v}),
                    run.of(log_decay_NE, {h, k}),
                    {},
                    -removed,
                    removed * run.of(rate_NE, {h, k})},
                   base_.shape.chunk, kState);
    });
    const Tensor present_NH1 =
        ops::row_dots((r_NE.to(type) * k_NE).reshape({n, h, k}), bonus_->tensor().to(type))
            .unsqueeze(-1);
    const Tensor y =
        base_.normed(y_NE) + (present_NH1 * v_NE.reshape({n, h, v})).reshape({n, h * v});
    return base_.o(
        y.to(x_ND.scalar_type()) * gate_up_(sigmoid_of(gate_down_(mixed('g'), context)), context),
        context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    return rwkv7_step({config_, base_.r, base_.k, base_.v, base_.o, decay_down_, decay_up_,
                       rate_down_, rate_up_, gate_down_, gate_up_, value_mix_down_, value_mix_up_,
                       mix_, key_scale_, key_rate_, bonus_, base_.norm_weight, base_.norm_bias},
                      products);
  }

 private:
  /// W x, mixed with the values of the first layer; the first layer publishes its own.
  Tensor value(const Tensor& x_ND, Context& context) const {
    const Tensor own = base_.v(x_ND, context);
    const Tensor* first = context.values.find(kFirstRwkvValue);
    if (!value_mix_up_.weight) {
      if (first == nullptr) context.values.put(kFirstRwkvValue, own);
      return own;
    }
    // Rwkv7Config::check_behind refuses specs without it
    const Tensor theirs = context.values.at(kFirstRwkvValue);
    return own +
           (theirs - own) * sigmoid_of(value_mix_up_(value_mix_down_(x_ND, context), context));
  }

  Rwkv7Config config_;
  TimeMix base_;
  Linear decay_down_, decay_up_, rate_down_, rate_up_, gate_down_, gate_up_, value_mix_down_,
      value_mix_up_;
  std::map<char, WeightPtr> mix_;
  WeightPtr key_scale_, key_rate_, bonus_;
};

class RwkvChannelMix final : public Mixer {
 public:
  RwkvChannelMix(const RwkvChannelMixConfig& config, const Builder& builder)
      : config_(config),
        k_(builder, "k"),
        v_(builder, "v"),
        mix_(mixes(builder, config.gated() ? "kr" : "k")) {
    if (config.gated()) r_ = Linear(builder, "r");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Tensor before_ND = token_shift(x_ND, *context.batch, rows, 0);
    const auto mixed = [&](char name) {
      const Tensor mix = ops::spread(mix_.at(name)->tensor().to(x_ND.scalar_type()), x_ND);
      return config_.weighs_present() ? before_ND + mix * (x_ND - before_ND)
                                      : x_ND + mix * (before_ND - x_ND);
    };
    const Tensor out = v_(ops::activate(k_(mixed('k'), context), ops::Activation::relu2), context);
    return config_.gated() ? ops::gated(r_(mixed('r'), context), out, ops::Activation::sigmoid)
                           : out;
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    return rwkv_channel_mix_step({config_, k_, v_, r_, mix_}, products);
  }

 private:
  RwkvChannelMixConfig config_;
  Linear k_, v_, r_;
  std::map<char, WeightPtr> mix_;
};

}  // namespace

std::unique_ptr<Mixer> build(const Rwkv5Config& config, const Builder& builder) {
  return std::make_unique<Rwkv5>(config, builder);
}
std::unique_ptr<Mixer> build(const Rwkv6Config& config, const Builder& builder) {
  return std::make_unique<Rwkv6>(config, builder);
}
std::unique_ptr<Mixer> build(const Rwkv7Config& config, const Builder& builder) {
  return std::make_unique<Rwkv7>(config, builder);
}
std::unique_ptr<Mixer> build(const RwkvChannelMixConfig& config, const Builder& builder) {
  return std::make_unique<RwkvChannelMix>(config, builder);
}

}  // namespace tessera::nn
