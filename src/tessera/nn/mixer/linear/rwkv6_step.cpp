#include "tessera/nn/mixer/linear/rwkv6_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/mixer/linear/rwkv_step_parts.h"
#include "tessera/ops/linear/linear_recurrence.h"

namespace tessera::nn {
namespace {

constexpr size_t kMixes = kRwkv6Mixes.size();
enum RwkvMix : size_t { kMixW, kMixK, kMixV, kMixR, kMixG };

/// What RWKV-6 makes of the token first.
struct Rwkv6Follows {
  int64_t rank;
  StepNumbers mix_x;
  StepProduct mix_down;
  std::array<StepProduct, kMixes> mix_up;
  LowRankStep decay;

  Rwkv6Follows(const Rwkv5Parts& of, StepWeights& weights)
      : rank(of.follows->mix_rank),
        mix_x(weights.numbers(of.mix.at('x'))),
        mix_down(weights.product(of.follows->mix_down)),
        decay(of.follows->decay_down, of.follows->decay_up, weights) {
    for (size_t j = 0; j < kMixes; ++j)
      mix_up[j] = weights.product(of.follows->mix_up.at(kRwkv6Mixes[j]));
  }
};

class Rwkv5Step final : public PartStep {
 public:
  Rwkv5Step(const Rwkv5Parts& of, StepWeights& weights)
      : shape(of.shape),
        norm_eps(of.norm_eps),
        r(weights.product(of.r)),
        k(weights.product(of.k)),
        v(weights.product(of.v)),
        o(weights.product(of.o)),
        bonus(weights.numbers(of.bonus)),
        norm_weight(weights.numbers(of.norm_weight)),
        norm_bias(weights.numbers(of.norm_bias)) {
    if (of.g.weight) g = weights.product(of.g);
    if (of.follows != nullptr)
      follows.emplace(of, weights);
    else
      log_decay = weights.follows(
          of.decay, [&] { return ops::minus_exp(of.decay->tensor().detach().to(at::kFloat)); });
    for (size_t j = 0; j < kMixes; ++j)
      if (const auto found = of.mix.find(kRwkv6Mixes[j]); found != of.mix.end())
        mix[j] = weights.numbers(found->second);
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  const RecurrentConfig& shape;
  double norm_eps;
  StepProduct r, k, v, o;
  std::optional<StepProduct> g;
  StepNumbers bonus, norm_weight, norm_bias, log_decay;
  std::optional<Rwkv6Follows> follows;
  std::array<StepNumbers, kMixes> mix;
};

class Rwkv5Call final : public TimeMixCall {
 public:
  Rwkv5Call(const Rwkv5Step& step, const StateRows& rows)
      : TimeMixCall(step.r, step.v, step.o, step.shape.n_heads, rows), s_(step) {
    for (size_t j = 0; j < kMixes; ++j) mixed_[j] = rows_of(d_), input_[j] = input_of(d_);
    if (s_.follows) {
      step_ = rows_of(d_), first_ = rows_of(d_);
      first_input_ = input_of(d_);
      down_ = rows_of(s_.follows->mix_down.rows());
      for (size_t j = 0; j < kMixes; ++j) {
        low_[j] = rows_of(s_.follows->rank);
        low_input_[j] = input_of(s_.follows->rank);
      }
      const int64_t rank = s_.follows->decay.down.rows();
      low_decay_ = rows_of(rank), low_decay_input_ = input_of(rank);
      log_decay_ = rows_of(keys_);
    }
    r_ = rows_of(keys_), k_ = rows_of(keys_), v_ = rows_of(values_);
    gate_ = rows_of(s_.g ? values_ : 0);
  }

 private:
  void mix(RowState& row, int64_t i, const float* x_ND, float* memory) override {
    s_.follows ? step_back(row, i, x_ND, memory) : mix_as_learned(row, i, x_ND, memory);
  }

  /// RWKV-5: the inputs of row i's products.
  void mix_as_learned(RowState& row, int64_t i, const float* x_ND, float* memory) const {
    const float* x = x_ND + i * d_;
    shift_token(row, kTimeLast, x, d_, [&](int64_t c, float before) {
      const float grown = x[c] - before;
      for (const size_t j : {kMixR, kMixK, kMixV, kMixG}) {
        if (j == kMixG && !s_.g) continue;
        const float part = s_.mix[j].data()[c] * grown;
        memory[mixed_[j] + i * d_ + c] = before + part;
      }
    });
  }

  /// RWKV-6: d = x_{t-1} - x_t, and the input of mix_down.
  void step_back(RowState& row, int64_t i, const float* x_ND, float* memory) const {
    const float *x = x_ND + i * d_, *share = s_.follows->mix_x.data();
    float *step = memory + step_ + i * d_, *to = memory + first_ + i * d_;
    shift_token(row, kTimeLast, x, d_, [&](int64_t c, float before) {
      step[c] = before - x[c];
      const float part = step[c] * share[c];
      to[c] = x[c] + part;
    });
  }

  /// RWKV-6: x_j = x + d (mix_j + W_up_j z_j); waits before the products, not after the rows.
  void mix_by_token(Team& team, const float* x_ND, float* memory) const {
    const Rwkv6Follows& f = *s_.follows;
    const Team::Share mine = team.share(n_);
    StepInput first(memory + first_, n_, d_, memory + first_input_);
    first.prepare(team, {&f.mix_down});
    team.wait();
    multiply(team, first, {{&f.mix_down, memory + down_}});
    team.wait();
    const int64_t rank = f.rank, all = f.mix_down.rows();
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      float* z = memory + down_ + i * all;
      kernels::act(kernels::Activation::tanh, z, all, z);
      for (size_t j = 0; j < kMixes; ++j)
        std::copy_n(z + static_cast<int64_t>(j) * rank, rank, memory + low_[j] + i * rank);
    }
    const auto low = [&](size_t j) {
      return StepInput(memory + low_[j], n_, rank, memory + low_input_[j]);
    };
    StepInput of_w = low(kMixW), of_k = low(kMixK), of_v = low(kMixV), of_r = low(kMixR),
              of_g = low(kMixG);
    StepInput* const of[] = {&of_w, &of_k, &of_v, &of_r, &of_g};
    for (size_t j = 0; j < kMixes; ++j) of[j]->prepare(team, {&f.mix_up[j]});
    team.wait();
    multiply(team, of_w,
             {{&f.mix_up[kMixW], memory + mixed_[kMixW]},
              {&f.mix_up[kMixK], memory + mixed_[kMixK], &of_k},
              {&f.mix_up[kMixV], memory + mixed_[kMixV], &of_v},
              {&f.mix_up[kMixR], memory + mixed_[kMixR], &of_r},
              {&f.mix_up[kMixG], memory + mixed_[kMixG], &of_g}});
    team.wait();
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const float *x = x_ND + i * d_, *step = memory + step_ + i * d_;
      for (size_t j = 0; j < kMixes; ++j) {
        const float* share = s_.mix[j].data();
        float* to = memory + mixed_[j] + i * d_;
        for (int64_t c = 0; c < d_; ++c) {
          const float whole = share[c] + to[c];
          const float part = step[c] * whole;
          to[c] = x[c] + part;
        }
      }
    }
  }

  void project(Team& team, const float* x_ND, float* memory) const override {
    if (s_.follows) mix_by_token(team, x_ND, memory);
    const auto input = [&](size_t j) {
      return StepInput(memory + mixed_[j], n_, d_, memory + input_[j]);
    };
    StepInput of_r = input(kMixR), of_k = input(kMixK), of_v = input(kMixV), of_g = input(kMixG),
              of_w = input(kMixW);
    const StepProduct *gate = as_given(s_.g),
                      *decay = s_.follows ? &s_.follows->decay.down : nullptr;
    of_r.prepare(team, {&s_.r});
    of_k.prepare(team, {&s_.k});
    of_v.prepare(team, {&s_.v});
    if (gate != nullptr) of_g.prepare(team, {gate});
    if (decay != nullptr) of_w.prepare(team, {decay});
    team.wait();
    multiply(team, of_r,
             {{&s_.r, memory + r_},
              {&s_.k, memory + k_, &of_k},
              {&s_.v, memory + v_, &of_v},
              {gate, memory + gate_, &of_g},
              {decay, memory + low_decay_, &of_w}});
    team.wait();
    if (!s_.follows) return;
    const Team::Share mine = team.share(n_);
    const int64_t rank = decay->rows();
    float* own = memory + low_decay_ + mine.begin * rank;
    kernels::act(kernels::Activation::tanh, own, (mine.end - mine.begin) * rank, own);
    StepInput low(memory + low_decay_, n_, rank, memory + low_decay_input_);
    low.prepare(team, {&s_.follows->decay.up});
    team.wait();
    multiply(team, low, {{&s_.follows->decay.up, memory + log_decay_}});
    team.wait();
  }

  void head(int64_t i, int64_t h, float* memory) const override {
    const int64_t width = s_.shape.key_dim, value = s_.shape.value_dim;
    const int64_t key_at = h * width, keys = i * keys_ + key_at;
    const int64_t value_at = h * value, at = i * values_ + value_at;
    const float* log_decay = s_.log_decay.data();
    if (s_.follows) {
      float* own = memory + log_decay_ + keys;  // ops::minus_exp
      for (int64_t c = 0; c < width; ++c)
        own[c] = static_cast<float>(-std::exp(static_cast<double>(own[c])));
      log_decay = own;
    } else {
      log_decay += key_at;
    }
    float* y = memory + y_ + at;
    recur({.key_dim = width,
           .value_dim = value,
           .q = memory + r_ + keys,
           .k = memory + k_ + keys,
           .v = memory + v_ + at,
           .decay = kernels::DecayPer::channel,
           .log_decay = log_decay,
           .bonus = s_.bonus.data() + key_at,
           .state = states_[static_cast<size_t>(i)] + h * width * value,
           .y = y});
    // the head's norm, and the gate
    kernels::layer_norm(y, 1, value, nullptr, nullptr, 0, static_cast<float>(s_.norm_eps), y);
    for (int64_t c = 0; c < value; ++c) {
      const float scaled = y[c] * s_.norm_weight.data()[value_at + c];
      y[c] = scaled + s_.norm_bias.data()[value_at + c];
    }
    if (s_.g) kernels::glu(kernels::Activation::silu, memory + gate_ + at, y, value, y);
  }

  const Rwkv5Step& s_;
  std::array<int64_t, kMixes> mixed_, input_, low_{}, low_input_{};
  int64_t step_ = 0, first_ = 0, first_input_ = 0, down_ = 0, low_decay_ = 0, low_decay_input_ = 0,
          log_decay_ = 0;
  int64_t r_, k_, v_, gate_;
};

std::unique_ptr<StepCall> Rwkv5Step::begin(Context& context, const StateRows* rows) const {
  if (!goes_on_by_a_token(*context.batch, rows, 2)) return nullptr;
  return std::make_unique<Rwkv5Call>(*this, *rows);
}

}  // namespace

std::shared_ptr<const PartStep> rwkv5_step(const Rwkv5Parts& parts,
                                           const ops::ProductSettings& products) {
  StepWeights weights(products);
  auto step = std::make_shared<Rwkv5Step>(parts, weights);
  return weights.serve() ? step : nullptr;
}

}  // namespace tessera::nn
