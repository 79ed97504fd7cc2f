// What routers compute alike: choices, losses, statistics, random numbers by token.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/nn/router/router_config.h"
#include "tessera/nn/router/top_k.h"

namespace tessera::nn {

/// The k largest of every row, the largest first and the lower index first among equals: [N, k]
/// int64 on the CPU. What is -inf comes last.
Tensor largest(const Tensor& scores_NE, int64_t k);

/// s of the logits z (top_k.h), in their type.
Tensor router_scores(const Tensor& z_NE, RouterScore score);
/// Weights divided by their q-norm (+ 1e-20), token by token; q = 0: as they are.
Tensor normed_weights(const Tensor& w_NK, double q);

/// c_ji / N of the experts' choices: [K, E], double on the CPU.
Tensor choice_fractions(const Tensor& expert_NK, int64_t n_experts);
/// balance_loss() of BalanceLoss but hf_topk over layers: documents' lengths are needed by
/// `sequence` alone. A scalar; gradients reach p_NE.
Tensor balance_loss(BalanceLoss kind,
                    const Tensor& p_NE,
                    const Tensor& expert_NK,
                    const std::vector<int64_t>& lengths);
/// The same of fractions, which may be of more tokens than these; not of `sequence`.
Tensor balance_loss(BalanceLoss kind, const Tensor& p_NE, const Tensor& f_KE);
/// mean over rows of ln(sum_i e^{z_i})^2
Tensor router_z_loss(const Tensor& z_NE);
/// var / (mean^2 + 1e-10), of all or of a sample of them (divided by n - 1).
Tensor cv_squared(const Tensor& values_E, bool unbiased = false);
/// P(x, i) of noisy_top_k.h.
Tensor chance_to_be_chosen(const Tensor& clean_NE,
                           const Tensor& deviation_NE,
                           const Tensor& noisy_NE,
                           int64_t k);

/// Which choices [N, K] have room: all first choices in the order `token_N` of tokens, then all
/// second ones; `room` for each of E experts within every group of tokens, lengths[g] of them.
/// Choices past the room count on.
Tensor within_capacity(const Tensor& expert_NK,
                       const Tensor& token_N,
                       int64_t n_experts,
                       const std::vector<int64_t>& lengths,
                       const std::vector<int64_t>& room);

/// float32 [N, width] with draw(stream of the token's segment, index in it), in training.
Tensor drawn_by_token(const Context& context,
                      const std::string& site,
                      int64_t n_tokens,
                      int64_t width,
                      const std::function<double(const RandomKey&, uint64_t)>& draw);

/// The same of standard Gumbel numbers: the largest of logits + these is a draw from their softmax.
Tensor gumbel_by_token(const Context& context,
                       const std::string& site,
                       int64_t n_tokens,
                       int64_t width);

/// What routers with a learned gate share.
class LearnedRouter : public Router {
 protected:
  LearnedRouter(const LearnedRouterConfig& config, const Builder& builder)
      : losses_(config.losses),
        jitter_(config.jitter),
        name_(builder.prefix()),
        n_experts_(builder.scope().n_experts),
        gate_(builder, "gate") {}

  /// In float32, or double: of the token, times jitter in training.
  Tensor logits(const Tensor& x_ND, Context& context) const;
  /// Adds the losses and statistics of choices [N, K], made by z_NE, with probabilities p_NE.
  /// `level`: part of a loss's name where a router has several.
  void report(const Tensor& z_NE,
              const Tensor& p_NE,
              const Tensor& expert_NK,
              Context& context,
              const std::string& level = "") const;
  const std::string& name() const { return name_; }
  int64_t n_experts() const { return n_experts_; }
  const Linear& gate() const { return gate_; }

  RouterLosses losses_;
  double jitter_;

 private:
  /// Of the choices of an update so far, these among them; of these alone outside one.
  Tensor fractions_so_far(const Tensor& expert_NK,
                          int64_t n_experts,
                          const Context& context,
                          const std::string& level) const;

  std::string name_;
  int64_t n_experts_;
  Linear gate_;
};

/// map(x) in float32 whatever the type of a training run's other products is: rounded ones would
/// choose otherwise.
Tensor exact_logits(const Linear& map, const Tensor& x, const Context& context);

/// How many of the choices are each expert's, float64 [E].
Tensor loads(const Tensor& expert_NK, int64_t n_experts);

/// Counts choices for add_statistic: NAME.load [E], NAME.tokens and, of several choices a token,
/// NAME.together [E, E], how many tokens have chosen both (0 on the diagonal).
void count_choices(const Context& context,
                   const std::string& name,
                   const Tensor& expert_NK,
                   int64_t n_experts);

}  // namespace tessera::nn
