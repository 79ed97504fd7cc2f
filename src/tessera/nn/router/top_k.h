// The k experts with the largest scores, for every token separately: nothing is dropped.
//   z = logit_scale W x (+ b) in float32, z <- c tanh(z / c) where softcap is c > 0
//   softmax, sigmoid, sqrt_softplus: s = softmax(z), sigmoid(z), sqrt(softplus(z))
//     chosen: the k largest of s (of s + balance where there is a balancing bias), lowest index
//     first among equals;  w = s of the chosen / (q-norm of these + 1e-20) where norm is q > 0
//   softmax_of_chosen: the k largest of z, w = softmax over these k
//   sigmoid_of_chosen: the k largest of z (of z + balance), w = sigmoid(z) of these
//   with expert_scale the weight of expert e is w g_e, g learned (Gemma 4)
// With n_groups the experts are in groups of equals, of which the keep_groups best offer
// candidates: by their best expert, or by the sum of their two best. The others are never chosen,
// or with outside_groups zero have the score 0 (A.X-K2).
//
// Mixtral: Jiang et al. 2024, arXiv:2401.04088; DeepSeek-V2 (groups, group_score max):
// arXiv:2405.04434; DeepSeek-V3 (sigmoid, balance, group_score sum_of_two): arXiv:2412.19437;
// gpt-oss and Granite: softmax_of_chosen; Kolibri: sigmoid_of_chosen; DeepSeek-V4: sqrt_softplus;
// DBRX: norm; Laguna: softcap.
// The balancing bias learns from counts, not from gradients: after every update b_i grows by
// bias_rate * sign(mean of counts - count_i). Wang et al. 2024, arXiv:2408.15664, alg. 1.
#pragma once

#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

enum class RouterScore { softmax, softmax_of_chosen, sigmoid, sigmoid_of_chosen, sqrt_softplus };
enum class GroupScore { max, sum_of_two };
enum class OutsideGroups { never, zero };

struct TopKConfig final : LearnedRouterConfig {
  int64_t k = 2;
  RouterScore score = RouterScore::softmax;
  double norm = 1;
  bool bias = false;
  double logit_scale = 1;
  bool expert_scale = false;
  bool balance = false;
  double balance_rate = 1e-3;
  int64_t n_groups = 1;
  int64_t keep_groups = 1;
  GroupScore group_score = GroupScore::max;
  OutsideGroups outside_groups = OutsideGroups::never;
  double softcap = 0;

  static constexpr auto fields() {
    using C = TopKConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("k", &C::k, "experts of a token", {.min = 1}),
            spec::field("score", &C::score, "what of the logits is chosen by and weighs"),
            spec::field("norm", &C::norm,
                        "q of the q-norm that the chosen weights are divided by (1: their sum); 0 "
                        "= they stay as they are, which k = 1 needs to learn",
                        {.min = 0}),
            spec::field("bias", &C::bias, "b"),
            spec::field("logit_scale", &C::logit_scale, "factor on W x (Gemma 4: d_model^-1/2)"),
            spec::field("expert_scale", &C::expert_scale,
                        "whether each expert has a learned factor on its weights"),
            spec::field(
                "balance", &C::balance,
                "a bias on the choice, not on the weights, that follows the experts' loads"),
            spec::field("balance_rate", &C::balance_rate,
                        "step of the balancing bias after every update", {.min = 0}),
            spec::field("n_groups", &C::n_groups, "groups of experts; 1 = all are candidates",
                        {.min = 1}),
            spec::field("keep_groups", &C::keep_groups, "groups whose experts are candidates",
                        {.min = 1}),
            spec::field("group_score", &C::group_score, "what a group is chosen by"),
            spec::field("outside_groups", &C::outside_groups,
                        "when experts of other groups are chosen: never, or as if their score with "
                        "the balancing bias were 0"),
            spec::field("softcap", &C::softcap, "c in c * tanh(z / c) on the logits; 0 = none",
                        {.min = 0})},
        common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "The k best experts of every token; nothing is dropped.",
            .paper =
                "Jiang et al.: Mixtral of Experts, arXiv:2401.04088; DeepSeek-AI: DeepSeek-V3 "
                "Technical Report, arXiv:2412.19437",
            .year = 2024,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  double used(const spec::Scope&) const override { return static_cast<double>(k); }
  bool wants_balance() const override { return !balance && LearnedRouterConfig::wants_balance(); }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RouterScore> {
  using S = nn::RouterScore;
  static constexpr std::array names{
      std::pair{S::softmax, "softmax"}, std::pair{S::softmax_of_chosen, "softmax_of_chosen"},
      std::pair{S::sigmoid, "sigmoid"}, std::pair{S::sigmoid_of_chosen, "sigmoid_of_chosen"},
      std::pair{S::sqrt_softplus, "sqrt_softplus"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::GroupScore> {
  using G = nn::GroupScore;
  static constexpr std::array names{std::pair{G::max, "max"},
                                    std::pair{G::sum_of_two, "sum_of_two"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::OutsideGroups> {
  using O = nn::OutsideGroups;
  static constexpr std::array names{std::pair{O::never, "never"}, std::pair{O::zero, "zero"}};
};
