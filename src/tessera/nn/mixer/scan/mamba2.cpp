#include "tessera/nn/mixer/scan/mamba2.h"

#include <algorithm>
#include <limits>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/kernels/scan/mamba2.h"
#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/nn/mixer/recurrent_step.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/softplus.h"
#include "tessera/ops/scan/log_linear.h"
#include "tessera/ops/scan/mamba2.h"

namespace tessera::nn {
namespace {

constexpr size_t kMamba2State = 0, kMamba2Conv = 1;  // as declared in Mamba2Config::state

/// The decoding step: one token of every row.
class Mamba2Step final : public PartStep {
 public:
  Mamba2Step(const Mamba2Config& of,
             const Linear& in_product,
             const Linear& out_product,
             const CausalConv& convolution,
             const WeightPtr& steps,
             const WeightPtr& rates,
             const WeightPtr& skips,
             const WeightPtr& scales,
             const WeightPtr& of_levels,
             StepWeights& weights)
      : config(of),
        in(weights.product(in_product)),
        out(weights.product(out_product)),
        conv(convolution, weights),
        dt_bias(weights.numbers(steps)),
        d(weights.numbers(skips)),
        norm(weights.numbers(scales)),
        level_scale(weights.numbers(of_levels)) {
    a = weights.follows(rates, [&] { return -rates->tensor().detach().to(at::kFloat).exp(); });
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  const Mamba2Config& config;
  StepProduct in, out;
  CausalConv::Step conv;
  StepNumbers dt_bias, a, d, norm, level_scale;
};

class Mamba2Call final : public StepCall {
 public:
  Mamba2Call(const Mamba2Step& step, const Batch& batch, const StateRows& rows)
      : s_(step),
        c_(step.config),
        batch_(batch),
        rows_(rows),
        n_(static_cast<int64_t>(rows.size())),
        states_(rows.size()),
        input_(memory_.take(
            StepInput::floats(n_, std::max(step.in.weight->size(1), step.out.weight->size(1))))),
        projected_(memory_.take(n_ * step.in.rows())),
        convolved_(memory_.take(n_ * c_.conv_channels())),
        dt_(memory_.take(n_ * c_.heads())),
        level_weights_(memory_.take(n_ * c_.heads() * c_.levels)),
        read_(memory_.take(n_ * c_.d_ssm)),
        joined_(memory_.take(n_ * c_.inner())) {}

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    float* projected = memory + projected_;
    StepInput in(x_ND, n_, s_.in.weight->size(1), memory + input_);
    in.prepare(team, {&s_.in});
    team.wait();
    multiply(team, in, {{&s_.in, projected}});
    team.wait();
    // what precedes the recurrence is a row's, the recurrence a head's
    const Team::Share mine = team.share(n_);
    for (int64_t i = mine.begin; i < mine.end; ++i) prepare(i, memory);
    team.wait();
    const Team::Share heads = team.share(n_ * c_.heads());
    for (int64_t i = heads.begin; i < heads.end; ++i) scan(i / c_.heads(), i % c_.heads(), memory);
    team.wait();
    for (int64_t i = mine.begin; i < mine.end; ++i) finish(i, memory);
    StepInput joined(memory + joined_, n_, c_.inner(), memory + input_);
    joined.prepare(team, {&s_.out});
    team.wait();
    multiply(team, joined, {{&s_.out, y_ND}});
  }

 private:
  /// Of row i: the gate z, after the channels that are gated alone; inputs of the convolution
  /// follow it, then steps.
  float* gate_of(int64_t i, float* memory) const {
    return memory + projected_ + i * s_.in.rows() + 2 * c_.beside();
  }

  void prepare(int64_t i, float* memory) {
    RowState& row = *rows_[static_cast<size_t>(i)];
    const float* xbc = gate_of(i, memory) + c_.d_ssm;
    s_.conv(xbc, state_of(row, kMamba2Conv), memory + convolved_ + i * c_.conv_channels());
    states_[static_cast<size_t>(i)] = state_of(row, kMamba2State);
    const float* raw = xbc + c_.conv_channels();
    float* dt = memory + dt_ + i * c_.heads();
    const auto least = static_cast<float>(c_.dt_min),
               most =
                   static_cast<float>(c_.dt_max.value_or(std::numeric_limits<double>::infinity()));
    for (int64_t h = 0; h < c_.heads(); ++h) {
      dt[h] = ops::softplus_of(raw[h] + s_.dt_bias.data()[h]);
      if (c_.dt_min != 0 || c_.dt_max) dt[h] = std::min(std::max(dt[h], least), most);
    }
    const float* level = raw + c_.heads();
    float* weights = memory + level_weights_ + i * c_.heads() * c_.levels;
    for (int64_t j = 0; j < c_.heads() * c_.levels; ++j) {
      const float scaled = s_.level_scale.data()[j] * level[j];
      weights[j] = ops::softplus_of(scaled);
    }
  }

  void scan(int64_t i, int64_t h, float* memory) const {
    const int64_t p = c_.head_dim, n = c_.d_state, group = h / (c_.heads() / c_.n_groups);
    const float* x = memory + convolved_ + i * c_.conv_channels();
    const float *dt = memory + dt_ + i * c_.heads() + h, *b = x + c_.d_ssm + group * n,
                *c = b + c_.n_groups * n, *d = c_.d_per_channel ? nullptr : s_.d.data() + h;
    float *state = states_[static_cast<size_t>(i)] + h * p * n,
          *y = memory + read_ + i * c_.d_ssm + h * p;
    if (c_.levels > 0)
      return ops::log_linear_token(
          {.P = p,
           .N = n,
           .levels = c_.levels,
           .place = batch_.segments[static_cast<size_t>(i)].start,
           .x = x + h * p,
           .dt = dt,
           .A = s_.a.data() + h,
           .D = d,
           .B = b,
           .C = c,
           .weights = memory + level_weights_ + (i * c_.heads() + h) * c_.levels,
           .state = state,
           .block_stride = c_.heads() * p * n,
           .y = y});
    kernels::SsdScan scan;
    scan.T = scan.H = scan.G = 1, scan.P = p, scan.N = n;
    scan.x = x + h * p;
    scan.dt = dt, scan.A = s_.a.data() + h, scan.B = b, scan.C = c, scan.D = d;
    scan.state = state, scan.y = y;
    kernels::ssd_scan(scan);
  }

  void finish(int64_t i, float* memory) const {
    const int64_t e = c_.d_ssm, beside = c_.beside();
    float *y = memory + read_ + i * e, *to = memory + joined_ + i * c_.inner();
    if (c_.d_per_channel) {
      const float *x = memory + convolved_ + i * c_.conv_channels(), *d = s_.d.data();
      for (int64_t j = 0; j < e; ++j) {
        const float skipped = d[j] * x[j];
        y[j] += skipped;
      }
    }
    const float* z = gate_of(i, memory);
    if (beside > 0) kernels::glu(kernels::Activation::silu, z - 2 * beside, z - beside, beside, to);
    to += beside;
    kernels::glu(kernels::Activation::silu, z, y, e, to);
    if (c_.norm_groups == 0) return;
    kernels::rms_norm(to, c_.norm_groups, e / c_.norm_groups, nullptr, 0,
                      static_cast<float>(c_.norm_eps), to);
    for (int64_t j = 0; j < e; ++j) to[j] *= s_.norm.data()[j];
  }

  const Mamba2Step& s_;
  const Mamba2Config& c_;
  const Batch& batch_;
  const StateRows& rows_;
  int64_t n_;
  std::vector<float*> states_;  // by row, once it has been prepared
  int64_t input_, projected_, convolved_, dt_, level_weights_, read_, joined_;
};

std::unique_ptr<StepCall> Mamba2Step::begin(Context& context, const StateRows* rows) const {
  if (!goes_on_by_a_token(*context.batch, rows, 2) ||
      (config.levels > 0 && context.batch->longest() > config.max_positions()))
    return nullptr;
  return std::make_unique<Mamba2Call>(*this, *context.batch, *rows);
}

class Mamba2 final : public Mixer {
 public:
  Mamba2(const Mamba2Config& config, const Builder& builder)
      : config_(config),
        in_(builder, "in"),
        out_(builder, "out"),
        conv_(builder, "conv", kernels::Activation::silu),
        dt_bias_(builder.weight("dt_bias")),
        a_log_(builder.weight("a_log")),
        d_(builder.weight("d")),
        norm_(builder.optional("norm.weight")),
        level_scale_(builder.optional("level_scale")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t e = config_.d_ssm, channels = config_.conv_channels(), h = config_.heads(),
                  beside = config_.beside();
    if (const int64_t most = config_.max_positions(); most > 0 && context.batch->longest() > most)
      fail(ErrorKind::input, "mamba2",
           "a document has {} tokens; its {} levels cover {}; shorten the input",
           context.batch->longest(), config_.levels, most);
    Tensor projected_NC = in_(x_ND, context), beside_NC;
    if (beside > 0) {
      const auto split =
          projected_NC.split_with_sizes({beside, beside, projected_NC.size(1) - 2 * beside}, -1);
      beside_NC = ops::gated(split[0], split[1], ops::Activation::silu);
      projected_NC = split[2];
    }
    const auto parts = projected_NC.split_with_sizes({e, channels, h, h * config_.levels}, -1);
    const Tensor xbc_NC = conv_(parts[1], *context.batch, rows, kMamba2Conv);
    const Tensor dt_NH = step_sizes(parts[2]);
    const Tensor weights_NHL = level_weights(parts[3]);
    Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      const ops::Ssd in = inputs(run.of(xbc_NC, {channels}), run.of(dt_NH, {h}));
      if (config_.levels == 0) return scan(run, in);
      const int64_t start = run.row != nullptr ? context.batch->segments[run.index].start : 0;
      return scan_levels(run, {in, run.of(weights_NHL, {h, config_.levels}), start});
    });
    if (config_.d_per_channel)
      y_NE = y_NE + (ops::spread(d_->tensor().to(ops::wide(x_ND)), y_NE) * xbc_NC.narrow(1, 0, e))
                        .to(y_NE.scalar_type());
    y_NE = config_.norm_groups == 0 ? ops::gated(parts[0], y_NE, ops::Activation::silu)
                                    : ops::gated_rms_norm(y_NE, parts[0], norm_->tensor(),
                                                          config_.norm_groups, config_.norm_eps);
    return out_(beside_NC.defined() ? at::cat({beside_NC, y_NE}, -1) : y_NE, context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    if (!others_at_default(config_, {"n_heads", "head_dim", "d_ssm", "d_state", "n_groups",
                                     "d_conv", "proj_bias", "conv_bias", "d_per_channel", "dt_min",
                                     "dt_max", "norm_groups", "norm_eps", "levels", "chunk"}))
      return nullptr;
    StepWeights weights(products);
    auto step = std::make_shared<Mamba2Step>(config_, in_, out_, conv_, dt_bias_, a_log_, d_, norm_,
                                             level_scale_, weights);
    return weights.serve() ? step : nullptr;
  }

 private:
  Tensor step_sizes(const Tensor& raw_NH) const {
    const auto type = ops::wide(raw_NH);
    const Tensor biased = raw_NH.to(type) + ops::spread(dt_bias_->tensor().to(type), raw_NH);
    const Tensor dt = ops::softplus(biased);
    if (config_.dt_min == 0 && !config_.dt_max) return dt;
    return at::clamp(dt, config_.dt_min,
                     config_.dt_max.value_or(std::numeric_limits<double>::infinity()));
  }

  /// Of every token's levels, from dl [N, H * L]: [N, H, L]; undefined without levels.
  Tensor level_weights(const Tensor& raw_NC) const {
    if (config_.levels == 0) return {};
    const auto type = ops::wide(raw_NC);
    const Tensor raw = raw_NC.to(type).reshape({-1, config_.heads(), config_.levels});
    return ops::softplus(ops::spread(level_scale_->tensor().to(type), raw) * raw);
  }

  /// xbc_BTC, convolved, split into the inputs of the recurrence.
  ops::Ssd inputs(const Tensor& xbc_BTC, const Tensor& dt_BTH) const {
    const int64_t b = xbc_BTC.size(0), t = xbc_BTC.size(1), gn = config_.n_groups * config_.d_state;
    const auto parts = xbc_BTC.split_with_sizes({config_.d_ssm, gn, gn}, -1);
    const auto type = ops::wide(xbc_BTC);
    return {parts[0].reshape({b, t, config_.heads(), config_.head_dim}),
            dt_BTH,
            -a_log_->tensor().to(type).exp(),
            parts[1].reshape({b, t, config_.n_groups, config_.d_state}),
            parts[2].reshape({b, t, config_.n_groups, config_.d_state}),
            config_.d_per_channel ? Tensor() : d_->tensor().to(type)};
  }

  Tensor scan(const Run& run, ops::Ssd in) const {
    in.documents = run.documents;
    if (run.kernels) {
      Tensor state = run.row != nullptr
                         ? run.row->fixed_in_place(kMamba2State)
                         : at::zeros({config_.heads(), config_.head_dim, config_.d_state});
      return ops::ssd_scan(in, state);
    }
    if (run.row == nullptr) return ops::ssd_y(in, config_.chunk);
    const Tensor before = run.row->fixed(kMamba2State).unsqueeze(0);
    const auto [y, after] =
        run.t == 1 ? ops::ssd_recurrent(in, before) : ops::ssd(in, config_.chunk, before);
    run.row->fixed(kMamba2State) = after.squeeze(0);
    return y;
  }

  Tensor scan_levels(const Run& run, ops::LogLinear in) const {
    in.of.documents = run.documents;
    if (run.kernels) {
      Tensor state =
          run.row != nullptr
              ? run.row->fixed_in_place(kMamba2State)
              : at::zeros({config_.levels - 1, config_.heads(), config_.head_dim, config_.d_state});
      return ops::log_linear_scan(in, state);
    }
    if (run.row != nullptr) in.state_BLHPN = run.row->fixed(kMamba2State).unsqueeze(0);
    const Tensor y = ops::log_linear_y(in, config_.chunk);
    if (run.row != nullptr) run.row->fixed(kMamba2State) = ops::log_linear_state(in).squeeze(0);
    return y;
  }

  Mamba2Config config_;
  Linear in_, out_;
  CausalConv conv_;
  WeightPtr dt_bias_, a_log_, d_, norm_, level_scale_;
};

}  // namespace

std::unique_ptr<Mixer> build(const Mamba2Config& config, const Builder& builder) {
  return std::make_unique<Mamba2>(config, builder);
}

}  // namespace tessera::nn
