// Properties of routers known without computing, and the losses that keep experts in use.
//
// N tokens, E experts, p_i(x) the router's probabilities (sigmoid scores divided by their sum),
// c_ji how many tokens have expert i as their j-th choice, k choices a token. Conventions differ,
// so each has its name; the first and third are 1 for balanced experts, the second is k:
//   switch           E sum_i c_0i/N mean_x p_i          Fedus et al. 2021, arXiv:2101.03961, eq. 4
//   hf_topk          E sum_j sum_i c_ji/N mean_x p_i, all layers' tokens together: what
//                    transformers computes for Mixtral and Qwen2-MoE
//   per_choice_mean  E/(k N) sum_i (sum_j c_ji) mean_x p_i             Megatron, DeepSeek-V2
//   sequence         the same of every document separately, weighted by its tokens
//                    DeepSeek-AI 2024, arXiv:2412.19437, eq. 17
// The z-loss is mean_x (ln sum_i e^{z_i})^2. Zoph et al. 2022, arXiv:2202.08906, eq. 5.
#pragma once

#include <algorithm>

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class BalanceLoss { none, switch_, hf_topk, per_choice_mean, sequence };

struct RouterLosses {
  BalanceLoss balance = BalanceLoss::none;
  double balance_weight = 0.01;
  double z_weight = 0;
  static constexpr auto fields() {
    using C = RouterLosses;
    return std::tuple{
        spec::field("balance", &C::balance, "convention of the balance loss"),
        spec::field("balance_weight", &C::balance_weight, "its factor", {.min = 0}),
        spec::field("z_weight", &C::z_weight, "factor of the z-loss; 0 = none", {.min = 0})};
  }
};

struct RouterConfig : spec::Config {
  /// Experts that compute a token, of scope.n_experts: on average, or at most where that is open.
  virtual double used(const spec::Scope& scope) const = 0;
  /// Whether a token's choice turns on that token's input alone, so that a call may be cut between
  /// any two tokens.
  virtual bool by_token() const { return true; }
  /// Whether it learns from the losses of its tokens instead of by gradients (policy_gradient.h).
  virtual bool by_reward() const { return false; }
  /// Whether it learns, and nothing in its config keeps its experts in use.
  virtual bool wants_balance() const { return false; }
  /// Whether it chooses experts for tokens, rather than mixing tokens for experts.
  virtual bool chooses() const { return true; }

 protected:
  static void require_at_most(std::string_view name,
                              int64_t value,
                              int64_t limit,
                              const spec::Scope& scope) {
    if (value > limit)
      fail(ErrorKind::spec, scope.path, "{} = {} of {} experts; expected at most {}", name, value,
           limit, limit);
  }
};

/// Routers that learn, with what keeps them in balance.
struct LearnedRouterConfig : RouterConfig {
  RouterLosses losses;
  double jitter = 0;

  bool by_token() const override { return jitter == 0 && losses.balance != BalanceLoss::sequence; }
  bool wants_balance() const override { return losses.balance == BalanceLoss::none; }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("gate", scope.n_experts, scope.input_width(), /*bias=*/false);
  }

 protected:
  template <class C>
  static constexpr auto common_fields() {
    return std::tuple{
        spec::field<C>("losses", static_cast<RouterLosses C::*>(&C::losses),
                       "what is added to the loss in training"),
        spec::field<C>("jitter", static_cast<double C::*>(&C::jitter),
                       "in training the router's input is multiplied by numbers of [1 - jitter, 1 "
                       "+ jitter)",
                       {.min = 0})};
  }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::BalanceLoss> {
  using B = nn::BalanceLoss;
  static constexpr std::array names{
      std::pair{B::none, "none"}, std::pair{B::switch_, "switch"}, std::pair{B::hf_topk, "hf_topk"},
      std::pair{B::per_choice_mean, "per_choice_mean"}, std::pair{B::sequence, "sequence"}};
};
