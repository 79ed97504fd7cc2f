#include "tessera/nn/mixer/linear/retention.h"

#include <algorithm>
#include <cmath>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/nn/mixer/recurrent_step.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/position/rope.h"
#include "tessera/nn/position/turn.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/linear/retention.h"

namespace tessera::nn {

std::unique_ptr<Position> build(const RopeConfig& config, const Builder& builder);

namespace {

/// theta^{-m / (K/2 - 1)} is rope with the base theta^{K / (K - 2)}.
RopeConfig rotation(const RetentionConfig& config) {
  const auto width = static_cast<double>(config.key_dim);
  RopeConfig rope;
  rope.rotary_dim = config.key_dim;
  rope.theta = config.theta;
  if (config.angles == RetentionAngles::linear) {
    rope.layout = RopeLayout::interleaved;
    if (config.key_dim > 2) rope.theta = std::pow(config.theta, width / (width - 2));
  }
  return rope;
}

/// The decoding step of retention without divisors: one token of every row.
class RetentionStep final : public PartStep {
 public:
  struct Products {
    const Linear &q, &k, &v, &g, &o;
  };
  RetentionStep(const RetentionConfig& of,
                const Products& products,
                const Position* turns,
                const WeightPtr& scales,
                StepNumbers decays,
                StepWeights& weights)
      : config(of),
        rotation(turns),
        q(weights.product(products.q)),
        k(weights.product(products.k)),
        v(weights.product(products.v)),
        g(weights.product(products.g)),
        o(weights.product(products.o)),
        norm(weights.numbers(scales)),
        log_decay(std::move(decays)) {
    weights.alike({&q, &k, &v, &g});
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  const RetentionConfig& config;
  const Position* rotation;  // null: none
  StepProduct q, k, v, g, o;
  StepNumbers norm, log_decay;
};

class RetentionCall final : public StepCall {
 public:
  RetentionCall(const RetentionStep& step, Context& context, const StateRows& rows)
      : s_(step),
        rows_(rows),
        n_(static_cast<int64_t>(rows.size())),
        states_(rows.size()),
        input_(memory_.take(
            StepInput::floats(n_, std::max(step.q.weight->size(1), step.o.weight->size(1))))),
        q_(memory_.take(n_ * step.q.rows())),
        k_(memory_.take(n_ * step.q.rows())),
        v_(memory_.take(n_ * step.v.rows())),
        g_(memory_.take(n_ * step.v.rows())),
        y_(memory_.take(n_ * step.v.rows())) {
    if (s_.rotation == nullptr) return;
    turn_q_ = s_.rotation->rotation(Side::query, s_.config.key_dim, at::kFloat, context);
    turn_k_ = s_.rotation->rotation(Side::key, s_.config.key_dim, at::kFloat, context);
  }

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    const RetentionConfig& c = s_.config;
    const int64_t h = c.n_heads, width = c.key_dim, value = c.value_dim;
    float *q = memory + q_, *k = memory + k_, *v = memory + v_, *g = memory + g_, *y = memory + y_;
    StepInput in(x_ND, n_, s_.q.weight->size(1), memory + input_);
    in.prepare(team, {&s_.q, &s_.k, &s_.v, &s_.g});
    team.wait();
    multiply(team, in, {{&s_.q, q}, {&s_.k, k}, {&s_.v, v}, {&s_.g, g}});
    team.wait();
    const Team::Share mine = team.share(n_);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      for (int64_t j = i * h * width; j < (i + 1) * h * width; ++j) k[j] *= scale;
      turn(turn_q_, i, 1, h, width, q + i * h * width);
      turn(turn_k_, i, 1, h, width, k + i * h * width);
      states_[static_cast<size_t>(i)] = state_of(*rows_[static_cast<size_t>(i)], 0);
    }
    team.wait();
    const Team::Share heads = team.share(n_ * h);
    for (int64_t j = heads.begin; j < heads.end; ++j)
      recur({.key_dim = width,
             .value_dim = value,
             .q = q + j * width,
             .k = k + j * width,
             .v = v + j * value,
             .decay = kernels::DecayPer::head,
             .log_decay = s_.log_decay.data() + j % h,
             .state = states_[static_cast<size_t>(j / h)] + j % h * width * value,
             .y = y + j * value});
    team.wait();
    const int64_t first = mine.begin * h * value, count = mine.end - mine.begin;
    kernels::rms_norm(y + first, count * h, value, s_.norm.data(), 0,
                      static_cast<float>(c.norm_eps), y + first);
    kernels::glu(kernels::Activation::silu, g + first, y + first, count * h * value, y + first);
    StepInput read(y, n_, h * value, memory + input_);
    read.prepare(team, {&s_.o});
    team.wait();
    multiply(team, read, {{&s_.o, y_ND}});
  }

 private:
  const RetentionStep& s_;
  const StateRows& rows_;
  int64_t n_;
  std::vector<float*> states_;  // by row, once its token has been turned
  int64_t input_, q_, k_, v_, g_, y_;
  Rotation turn_q_, turn_k_;
};

std::unique_ptr<StepCall> RetentionStep::begin(Context& context, const StateRows* rows) const {
  if (!goes_on_by_a_token(*context.batch, rows, 1)) return nullptr;
  return std::make_unique<RetentionCall>(*this, context, *rows);
}

class Retention final : public Mixer {
 public:
  Retention(const RetentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        g_(builder, "g"),
        o_(builder, "o"),
        norm_(builder.optional("norm.weight")),
        decay_(builder.optional("decay")),
        log_decay_H_(at::tensor(config.log_decays(), at::kDouble)) {
    if (config.angles != RetentionAngles::none) rotation_ = build(rotation(config), builder);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    Tensor q_NHK = q_(x_ND, context).reshape({n, h, k});
    Tensor k_NHK = k_(x_ND, context).reshape({n, h, k}) * (1 / std::sqrt(static_cast<double>(k)));
    const Tensor v_NE = v_(x_ND, context);
    if (rotation_) {
      q_NHK = rotation_->rotate(q_NHK, Side::query, context);
      k_NHK = rotation_->rotate(k_NHK, Side::key, context);
    }
    const Tensor log_decay_H = log_decays(x_ND, context);
    // the gradient of decays is that of a number for each token
    const Tensor log_decay_NH =
        log_decay_H.requires_grad() ? ops::expanded(log_decay_H, {n, h}) : Tensor();
    const Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return recur(run,
                   {run.of(q_NHK, {h, k}), run.of(k_NHK, {h, k}), run.of(v_NE, {h, v}),
                    log_decay_NH.defined() ? run.of(log_decay_NH, {h}) : log_decay_H},
                   config_.chunk, 0);
    });
    Tensor y_NHV = y_NE.reshape({n, h, v});
    if (config_.normalise != RetentionNormalise::none)
      y_NHV = (y_NHV / divisors(q_NHK, k_NHK, log_decay_H.detach(), *context.batch).unsqueeze(-1))
                  .to(y_NE.scalar_type());
    const Tensor normed =
        ops::rms_norm(y_NHV, norm_ ? norm_->tensor() : Tensor(), 0, config_.norm_eps);
    return o_(ops::gated(g_(x_ND, context), normed.reshape({n, h * v}), ops::Activation::silu),
              context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    if (!others_at_default(config_, {"n_heads", "key_dim", "value_dim", "chunk", "angles", "theta",
                                     "decay_offset", "decay", "norm_weight", "norm_eps"}) ||
        (rotation_ && !rotation_->only_rotates()))
      return nullptr;
    StepWeights weights(products);
    const StepNumbers decays =
        decay_ ? weights.follows(decay_,
                                 [&] { return -ops::softplus(-decay_->tensor().to(at::kFloat)); })
               : StepNumbers(log_decay_H_);
    auto step =
        std::make_shared<RetentionStep>(config_, RetentionStep::Products{q_, k_, v_, g_, o_},
                                        rotation_.get(), norm_, decays, weights);
    return weights.serve() ? step : nullptr;
  }

 private:
  /// ln gamma [H].
  Tensor log_decays(const Tensor& like, Context& context) const {
    if (!decay_) return context.on_device(name_ + ".decays", log_decay_H_);
    return -ops::softplus(-decay_->tensor().to(ops::wide(like)));
  }

  /// [N, H], constant for gradients.
  Tensor divisors(const Tensor& q_NHK,
                  const Tensor& k_NHK,
                  const Tensor& log_decay_H,
                  const Batch& batch) const {
    const BySegment part(batch);
    return over_segments(batch,
                         [&](size_t i, const Segment& s) {
                           const Tensor root =
                               ops::retention_decay_norms(log_decay_H, s.start, s.length);
                           if (config_.normalise == RetentionNormalise::decays) return root;
                           const Tensor sums = ops::retention_magnitudes(
                               part(q_NHK, i), part(k_NHK, i), log_decay_H);
                           return root * (sums / root).clamp(1, kLargestSum);
                         })
        .to(ops::wide(q_NHK));
  }

  static constexpr double kLargestSum = 5e4;  // as published: within float16
  RetentionConfig config_;
  std::string name_;
  Linear q_, k_, v_, g_, o_;
  WeightPtr norm_, decay_;
  Tensor log_decay_H_;
  std::unique_ptr<Position> rotation_;
};

}  // namespace

std::unique_ptr<Mixer> build(const RetentionConfig& config, const Builder& builder) {
  return std::make_unique<Retention>(config, builder);
}

}  // namespace tessera::nn
