// The delta rule layer of delta_net, gated_delta_net and kda; they differ in what decays.
#include <algorithm>
#include <cmath>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/linear/delta_net.h"
#include "tessera/nn/mixer/linear/gated_delta_net.h"
#include "tessera/nn/mixer/linear/kda.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/nn/mixer/recurrent_step.h"
#include "tessera/ops/basic/l2_norm.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softplus.h"

namespace tessera::nn {
namespace {

/// The decay's projection is that of the parameters that exist: none, `decay`, or `decay_down` and
/// `decay_up`. Likewise the output gate's: none, `g`, or `g_down` and `g_up`.
struct DeltaRuleOptions {
  int64_t n_heads = 0, n_key_heads = 0, key_dim = 0, value_dim = 0;
  int64_t chunk = 64;
  bool by_channel = false;  // whether the decay is one number per key channel, or per head
  double lower_bound = 0;   // least ln of a bounded decay; 0: unbounded
  double beta_scale = 1;    // beta = beta_scale * sigmoid(...)
  ops::Activation gate = ops::Activation::silu;
  double norm_eps = 1e-5;
};

constexpr double kNormEps = 1e-6;  // of the queries' and keys' l2 norm

/// W x, or W_up W_down x, or nothing: whichever the layer declares.
struct Projection {
  Linear whole, down, up;
  Projection(const Builder& builder, const std::string& name) {
    if (builder.optional(name + ".weight")) whole = Linear(builder, name);
    if (builder.optional(name + "_down.weight"))
      down = Linear(builder, name + "_down"), up = Linear(builder, name + "_up");
  }
  explicit operator bool() const { return whole.weight || down.weight; }
  Tensor operator()(const Tensor& x, const Context& context) const {
    return whole.weight ? whole(x, context) : up(down(x, context), context);
  }
};

constexpr size_t kDeltaState = 0, kDeltaConv = 1;  // as the configs declare them

/// A Projection as its step reads it: one product, or two.
struct ProjectionStep {
  std::optional<StepProduct> first, second;
  ProjectionStep(const Projection& projection, StepWeights& weights) {
    if (projection.whole.weight) first = weights.product(projection.whole);
    if (projection.down.weight) {
      first = weights.product(projection.down);
      second = weights.product(projection.up);
    }
  }
  explicit operator bool() const { return first.has_value(); }
  int64_t rows() const { return second ? second->rows() : first ? first->rows() : 0; }
  int64_t rank() const { return second ? first->rows() : 0; }
};

/// The decoding step: one token of every row.
class DeltaRuleStep final : public PartStep {
 public:
  struct Weights {
    const Linear &q, &k, &v, &beta, &o;
    const Projection &decay, &gate;
    const CausalConv* conv;  // null: none
    WeightPtr a_log, dt_bias, norm;
  };
  DeltaRuleStep(const DeltaRuleOptions& options, const Weights& of, StepWeights& weights)
      : c(options),
        q(weights.product(of.q)),
        k(weights.product(of.k)),
        v(weights.product(of.v)),
        beta(weights.product(of.beta)),
        o(weights.product(of.o)),
        decay(of.decay, weights),
        gate(of.gate, weights),
        dt_bias(weights.numbers(of.dt_bias)),
        norm(weights.numbers(of.norm)) {
    weights.alike({&q, &k, &v, &beta, as_given(decay.first), as_given(gate.first)});
    if (of.conv != nullptr) conv = CausalConv::Step(*of.conv, weights);
    if (decay)
      rate = weights.follows(
          of.a_log, [&] { return ops::minus_exp(of.a_log->tensor().detach().to(at::kFloat)); });
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;
  int64_t channels() const { return q.rows() + k.rows() + v.rows(); }

  const DeltaRuleOptions& c;
  StepProduct q, k, v, beta, o;
  ProjectionStep decay, gate;
  std::optional<CausalConv::Step> conv;
  StepNumbers dt_bias, norm, rate;  // rate: -exp(a_log), of each head
};

class DeltaRuleCall final : public StepCall {
 public:
  DeltaRuleCall(const DeltaRuleStep& step, const StateRows& rows)
      : s_(step),
        c_(step.c),
        rows_(rows),
        n_(static_cast<int64_t>(rows.size())),
        states_(rows.size()) {
    input_ =
        memory_.take(StepInput::floats(n_, std::max(s_.q.weight->size(1), s_.o.weight->size(1))));
    low_input_[0] = memory_.take(StepInput::floats(n_, s_.decay.rank()));
    low_input_[1] = memory_.take(StepInput::floats(n_, s_.gate.rank()));
    const auto rows_of = [&](int64_t width) { return memory_.take(n_ * width); };
    q_ = rows_of(s_.q.rows()), k_ = rows_of(s_.k.rows()), v_ = rows_of(s_.v.rows());
    beta_ = rows_of(s_.beta.rows());
    decay_ = rows_of(s_.decay.rows()), gate_ = rows_of(s_.gate.rows());
    bounded_ = rows_of(c_.lower_bound < 0 ? s_.decay.rows() : 0);
    low_[0] = rows_of(s_.decay.rank()), low_[1] = rows_of(s_.gate.rank());
    joined_ = rows_of(s_.channels()), mixed_ = rows_of(s_.channels());
    y_ = rows_of(c_.n_heads * c_.value_dim);
  }

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    project(team, x_ND, memory);
    const Team::Share mine = team.share(n_);
    for (int64_t i = mine.begin; i < mine.end; ++i) prepare(i, memory);
    team.wait();
    const Team::Share heads = team.share(n_ * c_.n_heads);
    for (int64_t i = heads.begin; i < heads.end; ++i) head(i / c_.n_heads, i % c_.n_heads, memory);
    team.wait();
    const int64_t values = c_.n_heads * c_.value_dim, count = mine.end - mine.begin;
    float* y = memory + y_ + mine.begin * values;
    kernels::rms_norm(y, count * c_.n_heads, c_.value_dim, s_.norm.data(), 0,
                      static_cast<float>(c_.norm_eps), y);
    if (s_.gate) kernels::glu(c_.gate, memory + gate_ + mine.begin * values, y, count * values, y);
    StepInput read(memory + y_, n_, values, memory + input_);
    read.prepare(team, {&s_.o});
    team.wait();
    multiply(team, read, {{&s_.o, y_ND}});
  }

 private:
  /// All products of x, those of low rank in turn; waits.
  void project(Team& team, const float* x_ND, float* memory) const {
    StepInput in(x_ND, n_, s_.q.weight->size(1), memory + input_);
    in.prepare(team,
               {&s_.q, &s_.k, &s_.v, &s_.beta, as_given(s_.decay.first), as_given(s_.gate.first)});
    team.wait();
    float *decay = memory + (s_.decay.second ? low_[0] : decay_),
          *gate = memory + (s_.gate.second ? low_[1] : gate_);
    multiply(team, in,
             {{&s_.q, memory + q_},
              {&s_.k, memory + k_},
              {&s_.v, memory + v_},
              {&s_.beta, memory + beta_},
              {as_given(s_.decay.first), decay},
              {as_given(s_.gate.first), gate}});
    team.wait();
    if (!s_.decay.second && !s_.gate.second) return;
    StepInput low_decay(decay, n_, s_.decay.rank(), memory + low_input_[0]),
        low_gate(gate, n_, s_.gate.rank(), memory + low_input_[1]);
    if (s_.decay.second) low_decay.prepare(team, {&*s_.decay.second});
    if (s_.gate.second) low_gate.prepare(team, {&*s_.gate.second});
    team.wait();
    if (s_.decay.second) multiply(team, low_decay, {{&*s_.decay.second, memory + decay_}});
    if (s_.gate.second) multiply(team, low_gate, {{&*s_.gate.second, memory + gate_}});
    team.wait();
  }

  /// What comes between the products and the recurrence, of row i.
  void prepare(int64_t i, float* memory) {
    RowState& row = *rows_[static_cast<size_t>(i)];
    const int64_t channels = s_.channels(), keys = s_.k.rows();
    float *joined = memory + joined_ + i * channels, *mixed = memory + mixed_ + i * channels;
    float* to = joined;
    for (const auto& [product, at] : std::initializer_list<std::pair<const StepProduct*, int64_t>>{
             {&s_.q, q_}, {&s_.k, k_}, {&s_.v, v_}}) {
      const float* from = memory + at + i * product->rows();
      to = std::copy_n(from, product->rows(), to);
    }
    if (s_.conv)
      (*s_.conv)(joined, state_of(row, kDeltaConv), mixed);
    else
      kernels::act(kernels::Activation::silu, joined, channels, mixed);
    states_[static_cast<size_t>(i)] = state_of(row, kDeltaState);
    unit(mixed, 1 / std::sqrt(static_cast<double>(c_.key_dim)));
    unit(mixed + keys, 1);
    float* beta = memory + beta_ + i * c_.n_heads;
    kernels::act(kernels::Activation::sigmoid, beta, c_.n_heads, beta);
    const auto scale = static_cast<float>(c_.beta_scale);
    for (int64_t h = 0; h < c_.n_heads; ++h) beta[h] *= scale;
    if (!s_.decay) return;
    float* decay = memory + decay_ + i * s_.decay.rows();
    const int64_t per_head = s_.decay.rows() / c_.n_heads;
    const auto bound = static_cast<float>(c_.lower_bound);
    if (bound < 0) {
      const int64_t rows = s_.decay.rows();
      float* x = memory + bounded_ + i * rows;
      for (int64_t j = 0; j < rows; ++j) {
        x[j] = -((decay[j] + s_.dt_bias.data()[j]) * s_.rate.data()[j / per_head]);
        decay[j] = x[j] > 0 ? -x[j] : x[j];
      }
      kernels::act(kernels::Activation::sigmoid, decay, rows, decay);
      for (int64_t j = 0; j < rows; ++j) decay[j] = (x[j] > 0 ? 1 - decay[j] : decay[j]) * bound;
      return;
    }
    for (int64_t j = 0; j < s_.decay.rows(); ++j)
      decay[j] = ops::softplus_of(decay[j] + s_.dt_bias.data()[j]) * s_.rate.data()[j / per_head];
  }

  /// Heads of queries or keys brought to length 1, times `scale`.
  void unit(float* x, double scale) const {
    const auto width = static_cast<double>(c_.key_dim);
    kernels::rms_norm(x, c_.n_key_heads, c_.key_dim, nullptr, 0,
                      static_cast<float>(kNormEps / width), x);
    const auto root = static_cast<float>(1 / std::sqrt(width)), factor = static_cast<float>(scale);
    for (int64_t j = 0; j < c_.n_key_heads * c_.key_dim; ++j) x[j] = x[j] * root * factor;
  }

  void head(int64_t i, int64_t h, float* memory) const {
    const int64_t width = c_.key_dim, value = c_.value_dim,
                  key_head = h / (c_.n_heads / c_.n_key_heads);
    const float* mixed = memory + mixed_ + i * s_.channels();
    const bool by_channel = c_.by_channel;
    recur({.key_dim = width,
           .value_dim = value,
           .q = mixed + key_head * width,
           .k = mixed + s_.q.rows() + key_head * width,
           .v = mixed + 2 * s_.q.rows() + h * value,
           .decay = by_channel ? kernels::DecayPer::channel
                    : s_.decay ? kernels::DecayPer::token
                               : kernels::DecayPer::nothing,
           .log_decay = s_.decay
                            ? memory + decay_ + i * s_.decay.rows() + h * (by_channel ? width : 1)
                            : nullptr,
           .beta = memory + beta_ + i * c_.n_heads + h,
           .state = states_[static_cast<size_t>(i)] + h * width * value,
           .y = memory + y_ + (i * c_.n_heads + h) * value});
  }

  const DeltaRuleStep& s_;
  const DeltaRuleOptions& c_;
  const StateRows& rows_;
  int64_t n_;
  std::vector<float*> states_;  // by row, once it has been prepared
  int64_t input_, q_, k_, v_, beta_, decay_, bounded_, gate_, joined_, mixed_, y_;
  int64_t low_input_[2], low_[2];  // of the products of low rank: decay, gate
};

std::unique_ptr<StepCall> DeltaRuleStep::begin(Context& context, const StateRows* rows) const {
  if (!goes_on_by_a_token(*context.batch, rows, conv ? 2 : 1)) return nullptr;
  return std::make_unique<DeltaRuleCall>(*this, *rows);
}

class DeltaRule final : public Mixer {
 public:
  DeltaRule(const DeltaRuleOptions& options, const Builder& builder)
      : options_(options),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        beta_(builder, "beta"),
        o_(builder, "o"),
        decay_(builder, "decay"),
        g_(builder, "g"),
        a_log_(builder.optional("a_log")),
        dt_bias_(builder.optional("dt_bias")),
        norm_(builder.weight("norm.weight")) {
    if (builder.optional("conv.weight")) conv_.emplace(builder, "conv", ops::Activation::silu);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto& c = options_;
    const int64_t n = x_ND.size(0), per_channel = c.by_channel ? c.key_dim : 1;
    const Tensor projected_NC =
        at::cat({q_(x_ND, context), k_(x_ND, context), v_(x_ND, context)}, -1);
    const Tensor qkv_NC = conv_ ? (*conv_)(projected_NC, *context.batch, rows, kDeltaConv)
                                : ops::activate(projected_NC, ops::Activation::silu);
    const Tensor beta_NH = wide_sigmoid(beta_(x_ND, context)) * c.beta_scale;
    const Tensor log_decay_NE = decay_ ? log_decay(x_ND, per_channel, context) : Tensor();

    const Tensor o_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      ops::LinearRecurrence in = inputs(run, run.of(qkv_NC, {qkv_NC.size(1)}));
      in.beta_BTH = run.of(beta_NH, {c.n_heads});
      if (c.by_channel)
        in.log_decay = run.of(log_decay_NE, {c.n_heads, c.key_dim});
      else if (decay_)
        in.log_decay = run.of(log_decay_NE, {c.n_heads});
      return recur(run, in, c.chunk, kDeltaState);
    });
    const Tensor normed =
        ops::rms_norm(o_NE.reshape({n, c.n_heads, c.value_dim}), norm_->tensor(), 0, c.norm_eps)
            .reshape({n, c.n_heads * c.value_dim});
    return o_(g_ ? ops::gated(g_(x_ND, context), normed, c.gate) : normed, context);
  }
  /// The options are those of the weights that exist, and DeltaRuleOptions.
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    StepWeights weights(products);
    auto step = std::make_shared<DeltaRuleStep>(
        options_,
        DeltaRuleStep::Weights{q_, k_, v_, beta_, o_, decay_, g_, conv_ ? &*conv_ : nullptr, a_log_,
                               dt_bias_, norm_},
        weights);
    return weights.serve() ? step : nullptr;
  }

 private:
  static Tensor wide_sigmoid(const Tensor& x) {
    return ops::activate(x.to(ops::wide(x)), ops::Activation::sigmoid);
  }

  /// ln of the decay, -exp(a_log) softplus(W x + dt_bias) or its bounded form; a_log has one number
  /// per head.
  Tensor log_decay(const Tensor& x_ND, int64_t per_head, const Context& context) const {
    const Tensor raw = decay_(x_ND, context);
    const auto type = ops::wide(raw);
    const Tensor z = raw.to(type) + ops::spread(dt_bias_->tensor().to(type), raw);
    const Tensor rate = ops::repeat_each(ops::minus_exp(a_log_->tensor().to(type)), per_head, 0);
    if (options_.lower_bound < 0) {
      // 1 - sigmoid(-x) above 0, where the derivative of sigmoid(x) would be rounded away
      const Tensor x = -(z * ops::spread(rate, z)), above = x > 0;
      const Tensor s = ops::activate(at::where(above, -x, x), ops::Activation::sigmoid);
      return at::where(above, 1 - s, s) * options_.lower_bound;
    }
    const Tensor step = ops::softplus(z);
    return step * ops::spread(rate, step);
  }

  /// Unit queries and keys, by heads; every value head gets its key head.
  ops::LinearRecurrence inputs(const Run& run, const Tensor& qkv_BTC) const {
    const auto& c = options_;
    const int64_t keys = c.n_key_heads * c.key_dim;
    const auto parts = qkv_BTC.split_with_sizes({keys, keys, c.n_heads * c.value_dim}, -1);
    const auto heads = [&](const Tensor& x, double scale) {
      const Tensor unit =
          ops::l2_norm(x.to(ops::wide(x)).reshape({run.b, run.t, c.n_key_heads, c.key_dim}),
                       kNormEps) *
          scale;
      return ops::repeat_each(unit, c.n_heads / c.n_key_heads, 2);
    };
    return {heads(parts[0], 1 / std::sqrt(static_cast<double>(c.key_dim))), heads(parts[1], 1),
            parts[2].reshape({run.b, run.t, c.n_heads, c.value_dim})};
  }

  DeltaRuleOptions options_;
  Linear q_, k_, v_, beta_, o_;
  Projection decay_, g_;
  std::optional<CausalConv> conv_;
  WeightPtr a_log_, dt_bias_, norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const DeltaNetConfig& c, const Builder& builder) {
  const DeltaRuleOptions options{.n_heads = c.n_heads,
                                 .n_key_heads = c.n_heads,
                                 .key_dim = c.key_dim,
                                 .value_dim = c.value_dim,
                                 .chunk = c.chunk,
                                 .beta_scale = c.negative_eigenvalues ? 2.0 : 1.0,
                                 .norm_eps = c.norm_eps};
  return std::make_unique<DeltaRule>(options, builder);
}

std::unique_ptr<Mixer> build(const GatedDeltaNetConfig& c, const Builder& builder) {
  const DeltaRuleOptions options{
      .n_heads = c.n_heads,
      .n_key_heads = c.n_key_heads,
      .key_dim = c.key_dim,
      .value_dim = c.value_dim,
      .chunk = c.chunk,
      .beta_scale = c.negative_eigenvalues ? 2.0 : 1.0,
      .gate = c.gate_act == DeltaGate::sigmoid ? ops::Activation::sigmoid : ops::Activation::silu,
      .norm_eps = c.norm_eps};
  return std::make_unique<DeltaRule>(options, builder);
}

std::unique_ptr<Mixer> build(const KdaConfig& c, const Builder& builder) {
  const DeltaRuleOptions options{.n_heads = c.n_heads,
                                 .n_key_heads = c.n_heads,
                                 .key_dim = c.key_dim,
                                 .value_dim = c.value_dim,
                                 .chunk = c.chunk,
                                 .by_channel = true,
                                 .lower_bound = c.lower_bound,
                                 .beta_scale = c.negative_eigenvalues ? 2.0 : 1.0,
                                 .gate = ops::Activation::sigmoid,
                                 .norm_eps = c.norm_eps};
  return std::make_unique<DeltaRule>(options, builder);
}

}  // namespace tessera::nn
