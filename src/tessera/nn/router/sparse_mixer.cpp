#include "tessera/nn/router/sparse_mixer.h"

#include <limits>

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

constexpr double kOut = -std::numeric_limits<double>::infinity();
// with this chance a draw that is not the best counts in full, else by kLess
constexpr double kFull = 0.25, kLess = 0.3333;

class SparseMixerRouter final : public LearnedRouter {
 public:
  SparseMixerRouter(const SparseMixerConfig& config, const Builder& builder)
      : LearnedRouter(config, builder), config_(config) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor z_NE = logits(x_ND, context);
    Tensor left_NE = z_NE;
    std::vector<Tensor> experts, weights;
    for (int64_t round = 0; round < 2; ++round) {
      const Tensor p_NE = competing(z_NE, left_NE);
      const Tensor expert_N1 = chosen(context, [&] {
        const at::NoGradGuard no_gradients;
        return largest(context.training ? with_noise(p_NE.log(), round, context) : left_NE, 1);
      });
      const Tensor at_N1 = expert_N1.to(z_NE.device());
      Tensor w_N1 = p_NE.gather(1, at_N1);
      if (context.training) {
        const Tensor less = (w_N1 * factor(left_NE, expert_N1, round, context)).detach();
        w_N1 = less + w_N1 - w_N1.detach();
      }
      experts.push_back(expert_N1);
      weights.push_back(w_N1);
      left_NE = left_NE.scatter(1, at_N1, kOut);
    }
    const Tensor expert_NK = at::cat(experts, 1);
    report(z_NE, ops::softmax(z_NE), expert_NK, context);
    return {expert_NK, at::cat(weights, 1)};
  }

 private:
  Tensor competing(const Tensor& z_NE, const Tensor& left_NE) const {
    const Tensor most_N1 = left_NE.amax(-1, /*keepdim=*/true).detach();
    const Tensor out =
        (most_N1 - z_NE.detach()) / at::maximum(z_NE.detach().abs(), most_N1) > 2 * config_.eps;
    return ops::softmax(left_NE.masked_fill(out, kOut));
  }

  Tensor with_noise(const Tensor& scores_NE, int64_t round, const Context& context) const {
    const Tensor gumbel = gumbel_by_token(context, fmt::format("{}.draw.{}", name(), round),
                                          scores_NE.size(0), scores_NE.size(1));
    return scores_NE + gumbel.to(scores_NE.options());
  }

  Tensor factor(const Tensor& left_NE,
                const Tensor& expert_N1,
                int64_t round,
                const Context& context) const {
    const Tensor best = largest(left_NE, 1) == expert_N1;
    const Tensor full =
        drawn_by_token(context, fmt::format("{}.full.{}", name(), round), expert_N1.size(0), 1,
                       [](const RandomKey& stream, uint64_t i) { return stream.uniform(i); }) >
        1 - kFull;
    return at::where(best | full, 1.0, kLess).to(left_NE.options());
  }

  SparseMixerConfig config_;
};

}  // namespace

std::unique_ptr<Router> build(const SparseMixerConfig& config, const Builder& builder) {
  return std::make_unique<SparseMixerRouter>(config, builder);
}

}  // namespace tessera::nn
