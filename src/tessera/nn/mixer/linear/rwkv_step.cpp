#include "tessera/nn/mixer/linear/rwkv_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/mixer/linear/rwkv_step_parts.h"

namespace tessera::nn {
namespace {

class Rwkv7Step final : public PartStep {
 public:
  static constexpr std::string_view kMixed = "rwkvag";

  Rwkv7Step(const Rwkv7Parts& of, StepWeights& weights)
      : config(of.config),
        r(weights.product(of.r)),
        k(weights.product(of.k)),
        v(weights.product(of.v)),
        o(weights.product(of.o)),
        decay(of.decay_down, of.decay_up, weights),
        rate(of.rate_down, of.rate_up, weights),
        gate(of.gate_down, of.gate_up, weights),
        key_scale(weights.numbers(of.key_scale)),
        key_rate(weights.numbers(of.key_rate)),
        bonus(weights.numbers(of.bonus)),
        norm_weight(weights.numbers(of.norm_weight)),
        norm_bias(weights.numbers(of.norm_bias)) {
    if (of.value_mix_up.weight) {
      value_mix.emplace(of.value_mix_down, of.value_mix_up, weights);
      weights.alike({&v, &value_mix->down});
    }
    for (size_t j = 0; j < kMixed.size(); ++j) mix[j] = weights.numbers(of.mix.at(kMixed[j]));
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  const Rwkv7Config& config;
  StepProduct r, k, v, o;
  LowRankStep decay, rate, gate;
  std::optional<LowRankStep> value_mix;
  StepNumbers key_scale, key_rate, bonus, norm_weight, norm_bias;
  std::array<StepNumbers, kMixed.size()> mix;
};

class Rwkv7Call final : public TimeMixCall {
 public:
  Rwkv7Call(const Rwkv7Step& step, const StateRows& rows)
      : TimeMixCall(step.r, step.v, step.o, step.config.n_heads, rows), s_(step) {
    for (size_t j = 0; j < mixed_.size(); ++j) mixed_[j] = rows_of(d_), input_[j] = input_of(d_);
    low_ranks([&](size_t j, const LowRankStep& of) {
      low_[j] = rows_of(of.down.rows());
      low_input_[j] = input_of(of.down.rows());
      up_[j] = rows_of(of.up.rows());
    });
    r_ = rows_of(keys_), k_ = rows_of(keys_), v_ = rows_of(values_);
    removed_ = rows_of(keys_), written_ = rows_of(keys_);
  }

  void enter(Context& context) override {
    const Tensor* first = context.values.find(kFirstRwkvValue);
    if (s_.value_mix) {
      first_ = context.values.at(kFirstRwkvValue).contiguous();
    } else if (first == nullptr) {
      first_ = at::empty({n_, values_}, at::kFloat);
      context.values.put(kFirstRwkvValue, first_);
      publishes_ = true;
    }
  }

 private:
  enum { kDecay, kRate, kGate, kValueMix, kLowRanks };
  static constexpr size_t kMixes = Rwkv7Step::kMixed.size();

  /// f(number, product) of all products of low rank.
  template <class F>
  void low_ranks(const F& f) const {
    f(kDecay, s_.decay), f(kRate, s_.rate), f(kGate, s_.gate);
    if (s_.value_mix) f(kValueMix, *s_.value_mix);
  }

  void mix(RowState& row, int64_t i, const float* x_ND, float* memory) override {
    const float* x = x_ND + i * d_;
    std::array<float*, kMixes> to;
    std::array<const float*, kMixes> share;
    for (size_t j = 0; j < kMixes; ++j)
      to[j] = memory + mixed_[j] + i * d_, share[j] = s_.mix[j].data();
    shift_token(row, kTimeLast, x, d_, [&](int64_t c, float before) {
      const float step = before - x[c];
      for (size_t j = 0; j < kMixes; ++j) {
        const float part = step * share[j][c];
        to[j][c] = x[c] + part;
      }
    });
  }

  void project(Team& team, const float*, float* memory) const override {
    const auto input = [&](char name) {
      const size_t j = Rwkv7Step::kMixed.find(name);
      return StepInput(memory + mixed_[j], n_, d_, memory + input_[j]);
    };
    StepInput of_r = input('r'), of_w = input('w'), of_k = input('k'), of_v = input('v'),
              of_a = input('a'), of_g = input('g');
    const StepProduct *value_down = s_.value_mix ? &s_.value_mix->down : nullptr,
                      *value_up = s_.value_mix ? &s_.value_mix->up : nullptr;
    of_r.prepare(team, {&s_.r});
    of_w.prepare(team, {&s_.decay.down});
    of_k.prepare(team, {&s_.k});
    of_v.prepare(team, {&s_.v, value_down});
    of_a.prepare(team, {&s_.rate.down});
    of_g.prepare(team, {&s_.gate.down});
    team.wait();
    multiply(team, of_r,
             {{&s_.r, memory + r_},
              {&s_.k, memory + k_, &of_k},
              {&s_.v, values(memory), &of_v},
              {&s_.decay.down, memory + low_[kDecay], &of_w},
              {&s_.rate.down, memory + low_[kRate], &of_a},
              {&s_.gate.down, memory + low_[kGate], &of_g},
              {value_down, memory + low_[kValueMix], &of_v}});
    team.wait();
    const Team::Share mine = team.share(n_);
    const auto activate = [&](kernels::Activation act, size_t j, const LowRankStep& of) {
      const int64_t width = of.down.rows();
      float* low = memory + low_[j] + mine.begin * width;
      kernels::act(act, low, (mine.end - mine.begin) * width, low);
    };
    activate(kernels::Activation::tanh, kDecay, s_.decay);
    activate(kernels::Activation::sigmoid, kGate, s_.gate);
    const auto low = [&](size_t j, const LowRankStep& of) {
      return StepInput(memory + low_[j], n_, of.down.rows(), memory + low_input_[j]);
    };
    StepInput low_decay = low(kDecay, s_.decay), low_rate = low(kRate, s_.rate),
              low_gate = low(kGate, s_.gate),
              low_value = s_.value_mix ? low(kValueMix, *s_.value_mix) : low_decay;
    low_decay.prepare(team, {&s_.decay.up});
    low_rate.prepare(team, {&s_.rate.up});
    low_gate.prepare(team, {&s_.gate.up});
    if (value_up != nullptr) low_value.prepare(team, {value_up});
    team.wait();
    multiply(team, low_decay,
             {{&s_.decay.up, memory + up_[kDecay]},
              {&s_.rate.up, memory + up_[kRate], &low_rate},
              {&s_.gate.up, memory + up_[kGate], &low_gate},
              {value_up, memory + up_[kValueMix], &low_value}});
    team.wait();
  }

  /// The values of this layer: those that it publishes lie where later layers read them.
  float* values(float* memory) const { return publishes_ ? first_.data_ptr<float>() : memory + v_; }

  void head(int64_t i, int64_t h, float* memory) const override {
    const int64_t width = s_.config.key_dim, value = s_.config.value_dim;
    const int64_t key_at = h * width, keys = i * keys_ + key_at;
    const int64_t value_at = h * value, at = i * values_ + value_at;
    const float* r = memory + r_ + keys;
    float *k = memory + k_ + keys, *log_decay = memory + up_[kDecay] + keys,
          *rate = memory + up_[kRate] + keys, *removed = memory + removed_ + keys,
          *written = memory + written_ + keys;
    kernels::act(kernels::Activation::sigmoid, log_decay, width, log_decay);
    kernels::act(kernels::Activation::sigmoid, rate, width, rate);
    const auto most = static_cast<float>(-std::exp(-0.5));
    for (int64_t c = 0; c < width; ++c) {
      log_decay[c] *= most;
      removed[c] = k[c] * s_.key_scale.data()[key_at + c];
    }
    // the direction that is removed, of unit length (ops::l2_norm), and the key that is written
    const auto channels = static_cast<double>(width);
    kernels::rms_norm(removed, 1, width, nullptr, 0, static_cast<float>(kRwkvKeyEps / channels),
                      removed);
    const auto root = static_cast<float>(1 / std::sqrt(channels));
    for (int64_t c = 0; c < width; ++c) {
      removed[c] *= root;
      const float grown = (rate[c] - 1) * s_.key_rate.data()[key_at + c];
      k[c] *= 1 + grown;
      written[c] = removed[c] * rate[c];
      removed[c] = -removed[c];
    }
    float* v = values(memory) + at;
    if (s_.value_mix) {
      float* share = memory + up_[kValueMix] + at;
      kernels::act(kernels::Activation::sigmoid, share, value, share);
      const float* first = first_.const_data_ptr<float>() + at;
      for (int64_t c = 0; c < value; ++c) {
        const float moved = (first[c] - v[c]) * share[c];
        v[c] += moved;
      }
    }
    float* y = memory + y_ + at;
    recur({.key_dim = width,
           .value_dim = value,
           .q = r,
           .k = k,
           .v = v,
           .decay = kernels::DecayPer::channel,
           .log_decay = log_decay,
           .a = removed,
           .b = written,
           .state = states_[static_cast<size_t>(i)] + h * width * value,
           .y = y});
    // the head's norm, what the present token adds, and the gate
    kernels::layer_norm(y, 1, value, nullptr, nullptr, 0, static_cast<float>(s_.config.norm_eps),
                        y);
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) {
      const float product = r[c] * k[c];
      const float term = product * s_.bonus.data()[key_at + c];
      sum += static_cast<double>(term);
    }
    const auto present = static_cast<float>(sum);
    const float* gate = memory + up_[kGate] + at;
    for (int64_t c = 0; c < value; ++c) {
      const float scaled = y[c] * s_.norm_weight.data()[value_at + c];
      const float normed = scaled + s_.norm_bias.data()[value_at + c];
      const float added = present * v[c];
      y[c] = (normed + added) * gate[c];
    }
  }

  const Rwkv7Step& s_;
  Tensor first_;  // the first layer's values: its own where it publishes them
  bool publishes_ = false;
  std::array<int64_t, kMixes> mixed_, input_;
  std::array<int64_t, kLowRanks> low_{}, low_input_{}, up_{};
  int64_t r_, k_, v_, removed_, written_;
};

std::unique_ptr<StepCall> Rwkv7Step::begin(Context& context, const StateRows* rows) const {
  if (!goes_on_by_a_token(*context.batch, rows, 2)) return nullptr;
  return std::make_unique<Rwkv7Call>(*this, *rows);
}

class ChannelMixStep final : public PartStep {
 public:
  ChannelMixStep(const RwkvChannelMixParts& of, StepWeights& weights)
      : config(of.config),
        k(weights.product(of.k)),
        v(weights.product(of.v)),
        mix_k(weights.numbers(of.mix.at('k'))) {
    if (!config.gated()) return;
    r = weights.product(of.r);
    mix_r = weights.numbers(of.mix.at('r'));
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  const RwkvChannelMixConfig& config;
  StepProduct k, v;
  std::optional<StepProduct> r;
  StepNumbers mix_k, mix_r;
};

class ChannelMixCall final : public StepCall {
 public:
  ChannelMixCall(const ChannelMixStep& step, const StateRows& rows)
      : s_(step),
        rows_(rows),
        n_(static_cast<int64_t>(rows.size())),
        d_(step.k.width()),
        mixed_k_(memory_.take(n_ * d_)),
        mixed_r_(memory_.take(step.r ? n_ * d_ : 0)),
        input_k_(memory_.take(StepInput::floats(n_, std::max(d_, step.k.rows())))),
        input_r_(memory_.take(step.r ? StepInput::floats(n_, d_) : 0)),
        hidden_(memory_.take(n_ * step.k.rows())),
        gate_(memory_.take(step.r ? n_ * step.r->rows() : 0)) {}

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    const Team::Share mine = team.share(n_);
    for (int64_t i = mine.begin; i < mine.end; ++i) mix(i, x_ND, memory);
    StepInput in(memory + mixed_k_, n_, d_, memory + input_k_),
        of_r(memory + mixed_r_, n_, d_, memory + input_r_);
    in.prepare(team, {&s_.k});
    if (s_.r) of_r.prepare(team, {&*s_.r});
    team.wait();
    multiply(team, in, {{&s_.k, memory + hidden_}, {as_given(s_.r), memory + gate_, &of_r}});
    team.wait();
    const int64_t width = s_.k.rows(), own = mine.end - mine.begin;
    float* hidden = memory + hidden_ + mine.begin * width;
    kernels::act(kernels::Activation::relu2, hidden, own * width, hidden);
    StepInput read(memory + hidden_, n_, width, memory + input_k_);
    read.prepare(team, {&s_.v});
    team.wait();
    multiply(team, read, {{&s_.v, y_ND}});
    if (!s_.r) return;
    team.wait();
    const int64_t out = s_.v.rows(), first = mine.begin * out;
    kernels::glu(kernels::Activation::sigmoid, memory + gate_ + first, y_ND + first, own * out,
                 y_ND + first);
  }

 private:
  void mix(int64_t i, const float* x_ND, float* memory) const {
    const float* x = x_ND + i * d_;
    float *to_k = memory + mixed_k_ + i * d_, *to_r = memory + mixed_r_ + i * d_;
    const float *mix_k = s_.mix_k.data(), *mix_r = s_.mix_r.data();
    const bool present = s_.config.weighs_present();
    const auto mixed = [&](float now, float before, float share) {
      const float part = share * (present ? now - before : before - now);
      return (present ? before : now) + part;
    };
    shift_token(*rows_[static_cast<size_t>(i)], 0, x, d_, [&](int64_t c, float before) {
      to_k[c] = mixed(x[c], before, mix_k[c]);
      if (mix_r != nullptr) to_r[c] = mixed(x[c], before, mix_r[c]);
    });
  }

  const ChannelMixStep& s_;
  const StateRows& rows_;
  int64_t n_, d_, mixed_k_, mixed_r_, input_k_, input_r_, hidden_, gate_;
};

std::unique_ptr<StepCall> ChannelMixStep::begin(Context& context, const StateRows* rows) const {
  if (!goes_on_by_a_token(*context.batch, rows, 1)) return nullptr;
  return std::make_unique<ChannelMixCall>(*this, *rows);
}

}  // namespace

std::shared_ptr<const PartStep> rwkv7_step(const Rwkv7Parts& parts,
                                           const ops::ProductSettings& products) {
  if (!others_at_default(parts.config,
                         {"n_heads", "key_dim", "value_dim", "chunk", "decay_rank", "rate_rank",
                          "value_rank", "gate_rank", "value_residual", "norm_eps"}))
    return nullptr;
  StepWeights weights(products);
  auto step = std::make_shared<Rwkv7Step>(parts, weights);
  return weights.serve() ? step : nullptr;
}

std::shared_ptr<const PartStep> rwkv_channel_mix_step(const RwkvChannelMixParts& parts,
                                                      const ops::ProductSettings& products) {
  if (!others_at_default(parts.config, {"version", "d_hidden"})) return nullptr;
  StepWeights weights(products);
  auto step = std::make_shared<ChannelMixStep>(parts, weights);
  return weights.serve() ? step : nullptr;
}

}  // namespace tessera::nn
