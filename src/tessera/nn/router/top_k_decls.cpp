#include "tessera/nn/router/top_k.h"

#include <numeric>

namespace tessera::nn {
namespace {

/// b_i += rate * sign(mean(counts) - counts_i)
void follow_loads(double rate, std::span<float> b, std::span<const double> counts) {
  const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) /
                      static_cast<double>(std::max<size_t>(1, counts.size()));
  for (size_t i = 0; i < b.size(); ++i)
    if (counts[i] != mean) b[i] += static_cast<float>(counts[i] < mean ? rate : -rate);
}

}  // namespace

void TopKConfig::check(const spec::Scope& scope) const {
  if (bias && logit_scale != 1)
    fail(ErrorKind::spec, scope.path, "logit_scale = {} with a bias; leave one of them out",
         logit_scale);
  require_at_most("k", k, scope.n_experts, scope);
  if (scope.n_experts % n_groups != 0)
    fail(ErrorKind::spec, scope.path, "n_groups = {} does not divide {} experts", n_groups,
         scope.n_experts);
  const int64_t each = scope.n_experts / n_groups;
  if (keep_groups > n_groups || keep_groups * each < k)
    fail(ErrorKind::spec, scope.path,
         "keep_groups = {} of {} groups of {} experts; expected at most {}, with at least k = {} "
         "experts",
         keep_groups, n_groups, each, n_groups, k);
  if (n_groups > 1 && group_score == GroupScore::sum_of_two && each < 2)
    fail(ErrorKind::spec, scope.path,
         "group_score = sum_of_two with groups of {} expert; expected two or more", each);
}

void TopKConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("gate", scope.n_experts, scope.input_width(), bias);
  spec::ParamDecl factors{"expert_scale",
                          {scope.n_experts},
                          spec::Init::constant(1),
                          spec::ParamKind::structural};
  factors.roles = {spec::Role::expert};
  list.add_if(expert_scale, factors);
  spec::ParamDecl follows{
      "balance", {scope.n_experts}, spec::Init::constant(0), spec::ParamKind::bias};
  follows.roles = {spec::Role::expert};
  follows.trainable = false;
  follows.decay = spec::Decay::no;
  follows.rule = {"load",
                  [rate = balance_rate](std::span<float> b, std::span<const double> counts) {
                    follow_loads(rate, b, counts);
                  }};
  list.add_if(balance, follows);
}

}  // namespace tessera::nn
