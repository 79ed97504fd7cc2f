#include "tessera/nn/ffn/moe_step.h"

#include <algorithm>
#include <optional>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {
namespace {

class MoeStep final : public PartStep {
 public:
  MoeStep(const MoeParts& of, StepWeights& weights)
      : config(of.config),
        router(of.router.step(weights.products())),
        expert(of.expert.step(weights.products())),
        shared(of.shared != nullptr ? of.shared->step(weights.products()) : nullptr),
        bias(weights.numbers(of.bias)),
        d_in(of.d_in),
        d_model(of.d_model) {
    if (of.shared_gate.weight) shared_gate = weights.product(of.shared_gate);
    if (of.latent_in.weight) latent_in = weights.product(of.latent_in);
    if (of.latent_out.weight) latent_out = weights.product(of.latent_out);
    const auto norm = [&](const char* name) -> std::shared_ptr<const NormStep> {
      const Norm* given = of.norm(name);
      return given != nullptr ? weights.norm(*given) : nullptr;
    };
    router_norm = norm("router_norm"), expert_norm = norm("expert_norm");
    expert_out_norm = norm("expert_out_norm");
    shared_norm = norm("shared_norm"), shared_out_norm = norm("shared_out_norm");
  }

  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;
  /// Channels that an expert reads, and those that it writes.
  int64_t expert_in() const { return latent_in ? latent_in->rows() : d_in; }
  int64_t expert_out() const { return latent_out ? latent_out->width() : d_model; }

  const MoeConfig& config;
  std::shared_ptr<const RouterStep> router;
  std::shared_ptr<const PartStep> expert, shared;
  std::optional<StepProduct> shared_gate, latent_in, latent_out;
  StepNumbers bias;
  std::shared_ptr<const NormStep> router_norm, expert_norm, expert_out_norm, shared_norm,
      shared_out_norm;
  int64_t d_in, d_model;
};

class MoeCall final : public StepCall {
 public:
  MoeCall(const MoeStep& step, int64_t tokens, std::shared_ptr<Groups> groups)
      : s_(step),
        n_(tokens),
        k_(step.router->choices()),
        groups_(std::move(groups)),
        expert_NK_(static_cast<size_t>(n_ * k_)),
        row_NK_(expert_NK_.size()),
        choice_S_(expert_NK_.size()) {
    const int64_t most = n_ * k_;
    router_ = memory_.take(s_.router->floats(n_));
    weight_ = memory_.take(most);
    normed_ = memory_.take(n_ * s_.d_in);
    latent_ = memory_.take(s_.latent_in ? n_ * s_.expert_in() : 0);
    sorted_ = memory_.take(most * s_.expert_in());
    outputs_ = memory_.take(most * s_.expert_out());
    sum_ = memory_.take(s_.latent_out ? n_ * s_.expert_out() : 0);
    shared_out_ = memory_.take(s_.shared ? n_ * s_.d_model : 0);
    gate_ = memory_.take(s_.shared_gate ? n_ : 0);
    input_ = memory_.take(StepInput::floats(n_, std::max(s_.d_in, s_.expert_out())));
  }
  /// Takes over the steps of the expert and of the shared layer, null where there is none.
  void take(std::unique_ptr<StepCall> expert, std::unique_ptr<StepCall> shared) {
    expert_ = std::move(expert), shared_ = std::move(shared);
    // they run one after the other
    parts_ = memory_.take(std::max(expert_->floats(), shared_ ? shared_->floats() : 0));
  }

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    const Team::Share mine = team.share(n_);
    float* weight_NK = memory + weight_;
    s_.router->run(team, n_, normed(s_.router_norm, x_ND, mine, memory), expert_NK_.data(),
                   weight_NK, memory + router_);
    const auto scale = static_cast<float>(s_.config.scale);
    for (int64_t i = mine.begin * k_; scale != 1 && i < mine.end * k_; ++i) weight_NK[i] *= scale;
    // what experts read, by token
    const float* read = normed(s_.expert_norm, x_ND, mine, memory);
    if (s_.latent_in) {
      product(team, read, s_.d_in, *s_.latent_in, memory + latent_, memory);
      read = memory + latent_;
    }
    team.wait();
    if (team.index() == 0) sort();
    team.wait();
    of_experts(team, read, memory);
    // a token's outputs in the order of its choices
    float* sum = s_.latent_out ? memory + sum_ : y_ND;
    for (int64_t i = mine.begin; i < mine.end; ++i) add(i, x_ND, memory, sum);
    if (s_.latent_out) {
      product(team, sum, s_.expert_out(), *s_.latent_out, y_ND, memory);
      team.wait();
    }
    const int64_t first = mine.begin * s_.d_model, own = mine.end - mine.begin;
    float* y = y_ND + first;
    if (const float* bias = s_.bias.data(); bias != nullptr)
      for (int64_t j = 0; j < own * s_.d_model; ++j) y[j] += bias[j % s_.d_model];
    if (s_.expert_out_norm) (*s_.expert_out_norm)(y, own, s_.d_model, y);
    if (shared_) add_shared(team, x_ND, y_ND, memory);
  }

 private:
  /// This thread's rows of x by the norm, where there is one; x itself where there is none.
  const float* normed(const std::shared_ptr<const NormStep>& norm,
                      const float* x_ND,
                      const Team::Share& mine,
                      float* memory) const {
    if (norm == nullptr) return x_ND;
    const int64_t first = mine.begin * s_.d_in;
    (*norm)(x_ND + first, mine.end - mine.begin, s_.d_in, memory + normed_ + first);
    return memory + normed_;
  }

  /// y = W x of the tokens, which others see after a wait().
  void product(Team& team,
               const float* x,
               int64_t width,
               const StepProduct& weight,
               float* y,
               float* memory) const {
    StepInput in(x, n_, width, memory + input_);
    in.prepare(team, {&weight});
    team.wait();
    multiply(team, in, {{&weight, y}});
  }

  /// The choices that have an expert, sorted by it; on one thread.
  void sort() {
    std::vector<int64_t>& offsets = groups_->offsets;
    const int64_t experts = s_.config.n_experts;
    std::fill(offsets.begin(), offsets.end(), 0);
    const auto is_row = [&](int64_t e) { return e >= 0 && e < experts; };
    for (const int64_t e : expert_NK_)
      if (is_row(e)) ++offsets[static_cast<size_t>(e) + 1];
    for (size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
    next_.assign(offsets.begin(), offsets.end());
    for (size_t i = 0; i < expert_NK_.size(); ++i) {
      if (!is_row(expert_NK_[i])) continue;
      row_NK_[i] = next_[static_cast<size_t>(expert_NK_[i])]++;
      choice_S_[static_cast<size_t>(row_NK_[i])] = static_cast<int64_t>(i);
    }
  }

  /// The outputs of all rows; waits.
  void of_experts(Team& team, const float* read, float* memory) const {
    const int64_t rows = groups_->offsets.back(), width = s_.expert_in();
    if (rows == 0) return;
    const Team::Share own = team.share(rows);
    for (int64_t s = own.begin; s < own.end; ++s) {
      const int64_t choice = choice_S_[static_cast<size_t>(s)];
      float* x = memory + sorted_ + s * width;
      std::copy_n(read + choice / k_ * width, width, x);
      const float factor = memory[weight_ + choice];
      for (int64_t j = 0; s_.config.scale_input && j < width; ++j) x[j] *= factor;
    }
    expert_->run(team, memory + sorted_, memory + outputs_, memory + parts_);
    team.wait();
  }

  void add(int64_t i, const float* x_ND, const float* memory, float* sum_N) const {
    const MoeConfig& c = s_.config;
    const int64_t width = s_.expert_out();
    float* sum = sum_N + i * width;
    std::fill_n(sum, width, 0.0f);
    for (int64_t choice = i * k_; choice < (i + 1) * k_; ++choice) {
      const int64_t e = expert_NK_[static_cast<size_t>(choice)];
      if (e < 0 || (e >= c.n_experts && e < c.n_experts + c.zero)) continue;
      const bool is_identity = e >= c.n_experts;
      const float* term = is_identity
                              ? x_ND + i * width
                              : memory + outputs_ + row_NK_[static_cast<size_t>(choice)] * width;
      const float factor = c.scale_input && !is_identity ? 1 : memory[weight_ + choice];
      for (int64_t j = 0; j < width; ++j) {
        const float weighted = term[j] * factor;
        sum[j] += weighted;
      }
    }
  }

  /// The shared layer's output joins y.
  void add_shared(Team& team, const float* x_ND, float* y_ND, float* memory) const {
    const Team::Share mine = team.share(n_);
    const int64_t width = s_.d_model, first = mine.begin * width, own = mine.end - mine.begin;
    const float* in = normed(s_.shared_norm, x_ND, mine, memory);
    shared_->run(team, in, memory + shared_out_, memory + parts_);
    float *y = y_ND + first, *out = memory + shared_out_ + first,
          *gate = memory + gate_ + mine.begin;
    if (s_.shared_gate) product(team, in, s_.d_in, *s_.shared_gate, memory + gate_, memory);
    team.wait();
    if (s_.shared_gate) {
      kernels::act(kernels::Activation::sigmoid, gate, own, gate);
      for (int64_t j = 0; j < own * width; ++j) out[j] *= gate[j / width];
    }
    if (s_.shared_out_norm) (*s_.shared_out_norm)(out, own, width, out);
    kernels::add(out, y, own * width);
  }

  const MoeStep& s_;
  int64_t n_, k_;
  std::shared_ptr<Groups> groups_;  // the expert's step reads it
  std::unique_ptr<StepCall> expert_, shared_;
  std::vector<int64_t> expert_NK_, row_NK_, choice_S_, next_;
  int64_t router_, weight_, normed_, latent_, sorted_, outputs_, sum_, shared_out_, gate_, input_,
      parts_ = 0;
};

std::unique_ptr<StepCall> MoeStep::begin(Context& context, const StateRows*) const {
  // losses and statistics are the tensor path's
  if (context.add_loss || context.add_statistic) return nullptr;
  const int64_t tokens = context.batch->n_tokens();
  auto groups = std::make_shared<Groups>();
  groups->offsets.assign(static_cast<size_t>(config.n_experts) + 1, 0);
  groups->offsets.back() = tokens * router->choices();
  auto call = std::make_unique<MoeCall>(*this, tokens, groups);
  context.groups = groups;
  auto of_experts = expert->begin(context, nullptr);
  context.groups = nullptr;
  auto of_shared = shared ? shared->begin(context, nullptr) : nullptr;
  if (of_experts == nullptr || (shared && of_shared == nullptr)) return nullptr;
  call->take(std::move(of_experts), std::move(of_shared));
  return call;
}

}  // namespace

std::shared_ptr<const PartStep> moe_step(const MoeParts& parts,
                                         const ops::ProductSettings& products) {
  // parts in slots check their own options; dropout and jitter act in training only
  if (!others_at_default(
          parts.config,
          {"n_experts", "zero", "identity", "router", "expert", "shared", "shared_gate",
           "router_norm", "expert_norm", "expert_out_norm", "shared_norm", "shared_out_norm",
           "d_latent", "scale_input", "scale", "bias", "expert_dropout", "jitter"}))
    return nullptr;
  StepWeights weights(products);
  auto step = std::make_shared<MoeStep>(parts, weights);
  const bool all = step->router != nullptr && step->expert != nullptr &&
                   (parts.shared == nullptr || step->shared != nullptr);
  return weights.serve() && all ? step : nullptr;
}

}  // namespace tessera::nn
