#include "tessera/nn/router/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/threads.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/checkpointing.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/weights/product.h"

namespace tessera::nn {
namespace {

/// hf_topk of the tokens of all layers so far, whose difference to that of the layers before is
/// this layer's: the sum over layers is the loss of all their tokens together.
Tensor hf_topk_of_layers(const Tensor& f_KE, const Tensor& p_NE, LayerValues& values) {
  const int64_t e = f_KE.size(1);
  const auto n = static_cast<double>(p_NE.size(0));
  const std::string name = fmt::format("router.hf_topk.{}.{}", e, f_KE.size(0));
  const auto loss = [&](const Tensor& counts, const Tensor& p, double tokens) {
    return (counts * p).sum() * (static_cast<double>(e) / (tokens * tokens));
  };
  const Tensor *counts = values.find(name + ".counts"), *p = values.find(name + ".p"),
               *tokens = values.find(name + ".tokens");
  const double before = tokens == nullptr ? 0 : tokens->item<double>();
  const Tensor all_counts = counts == nullptr ? f_KE * n : *counts + f_KE * n,
               p_E = ops::ordered_sum(p_NE, {0}), all_p = p == nullptr ? p_E : *p + p_E;
  Tensor own = loss(all_counts, all_p, before + n);
  if (before > 0) own = own - loss(*counts, *p, before);
  values.put(name + ".counts", all_counts);
  values.put(name + ".p", all_p);
  values.put(name + ".tokens", at::full({}, before + n, at::kDouble));
  return own;
}

}  // namespace

Tensor choice_fractions(const Tensor& expert_NK, int64_t n_experts) {
  std::vector<Tensor> rows;
  for (int64_t j = 0; j < expert_NK.size(1); ++j)
    rows.push_back(loads(expert_NK.narrow(1, j, 1), n_experts) /
                   static_cast<double>(std::max<int64_t>(1, expert_NK.size(0))));
  return at::stack(rows);
}

void count_choices(const Context& context,
                   const std::string& name,
                   const Tensor& expert_NK,
                   int64_t n_experts) {
  if (!context.add_statistic) return;
  context.add_statistic(name + ".load", loads(expert_NK, n_experts));
  context.add_statistic(name + ".tokens",
                        at::full({}, static_cast<double>(expert_NK.size(0)), at::kDouble));
  const int64_t k = expert_NK.size(1);
  if (k < 2) return;
  Tensor together = at::zeros({n_experts, n_experts}, at::kDouble);
  const Tensor chosen = expert_NK.contiguous();
  const auto* expert = chosen.const_data_ptr<int64_t>();
  auto* count = together.data_ptr<double>();
  for (int64_t n = 0; n < chosen.size(0); ++n, expert += k)
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = 0; j < k; ++j)
        if (i != j && expert[i] >= 0 && expert[j] >= 0)
          count[expert[i] * n_experts + expert[j]] += 1;
  context.add_statistic(name + ".together", together);
}

Tensor loads(const Tensor& expert_NK, int64_t n_experts) {
  const Tensor chosen = expert_NK.contiguous();
  Tensor counts = at::zeros({n_experts}, at::kDouble);
  const auto* expert = chosen.const_data_ptr<int64_t>();
  auto* count = counts.data_ptr<double>();
  for (int64_t i = 0; i < chosen.numel(); ++i)
    if (expert[i] >= 0) count[expert[i]] += 1;
  return counts;
}

Tensor largest(const Tensor& scores_NE, int64_t k) {
  const int64_t n = scores_NE.size(0), e = scores_NE.size(1);
  Tensor out = at::empty({n, k}, at::kLong);
  if (scores_NE.is_meta()) {  // no scores, to plan memory (ops/planned_memory.h): an even load
    for (int64_t i = 0; i < n * k; ++i) out.data_ptr<int64_t>()[i] = i % e;
    return out;
  }
  const Tensor scores = scores_NE.detach().to(at::kCPU, at::kDouble).contiguous();
  const auto* score = scores.const_data_ptr<double>();
  auto* to = out.data_ptr<int64_t>();
  parallel_for(n, 256, [&](int64_t begin, int64_t end) {
    std::vector<bool> taken(static_cast<size_t>(e));
    for (int64_t i = begin; i < end; ++i) {
      std::fill(taken.begin(), taken.end(), false);
      for (int64_t j = 0; j < k; ++j) {
        int64_t best = -1;
        for (int64_t c = 0; c < e; ++c)
          if (!taken[static_cast<size_t>(c)] &&
              (best < 0 || score[i * e + c] > score[i * e + best]))
            best = c;
        taken[static_cast<size_t>(best)] = true;
        to[i * k + j] = best;
      }
    }
  });
  return out;
}

Tensor router_scores(const Tensor& z_NE, RouterScore score) {
  switch (score) {
    case RouterScore::softmax:
    case RouterScore::softmax_of_chosen:
      return ops::softmax(z_NE);
    case RouterScore::sigmoid:
    case RouterScore::sigmoid_of_chosen:
      return ops::activate(z_NE, ops::Activation::sigmoid);
    case RouterScore::sqrt_softplus:
      return ops::softplus(z_NE).sqrt();
  }
  fail(ErrorKind::internal, "router", "no scores of number {}", static_cast<int>(score));
}

Tensor normed_weights(const Tensor& w_NK, double q) {
  if (q == 0) return w_NK;
  const Tensor size =
      q == 1 ? w_NK.sum(-1, /*keepdim=*/true) : w_NK.norm(at::Scalar(q), {-1}, /*keepdim=*/true);
  return w_NK / (size + 1e-20);
}

Tensor balance_loss(BalanceLoss kind, const Tensor& p_NE, const Tensor& f_KE) {
  const auto e = static_cast<double>(p_NE.size(1)), k = static_cast<double>(f_KE.size(0));
  const Tensor f = f_KE.to(p_NE.options()), mean_E = ops::ordered_mean(p_NE, {0});
  switch (kind) {
    case BalanceLoss::none:
      return at::zeros({}, p_NE.options());
    case BalanceLoss::switch_:
      return (f[0] * mean_E).sum() * e;
    case BalanceLoss::hf_topk:
      return (f * mean_E).sum() * e;
    case BalanceLoss::per_choice_mean:
      return (f.sum(0) * mean_E).sum() * (e / k);
    case BalanceLoss::sequence:
      break;
  }
  fail(ErrorKind::internal, "router", "no balance loss of fractions alone");
}

Tensor balance_loss(BalanceLoss kind,
                    const Tensor& p_NE,
                    const Tensor& expert_NK,
                    const std::vector<int64_t>& lengths) {
  const auto fractions = [&](const Tensor& chosen) {
    const at::NoGradGuard no_gradients;
    return choice_fractions(chosen, p_NE.size(1));
  };
  if (kind != BalanceLoss::sequence) return balance_loss(kind, p_NE, fractions(expert_NK));
  Tensor sum = at::zeros({}, p_NE.options());
  int64_t begin = 0;
  for (const int64_t n : lengths) {
    sum = sum + static_cast<double>(n) * balance_loss(BalanceLoss::per_choice_mean,
                                                      p_NE.narrow(0, begin, n),
                                                      fractions(expert_NK.narrow(0, begin, n)));
    begin += n;
  }
  require(begin == p_NE.size(0), "router", "documents of {} tokens; {} are routed", begin,
          p_NE.size(0));
  return sum / static_cast<double>(std::max<int64_t>(1, begin));
}

Tensor router_z_loss(const Tensor& z_NE) {
  return ops::ordered_mean(at::logsumexp(z_NE, {1}).square());
}

Tensor cv_squared(const Tensor& values_E, bool unbiased) {
  return values_E.var(unbiased) / (values_E.mean().square() + 1e-10);
}

Tensor chance_to_be_chosen(const Tensor& clean_NE,
                           const Tensor& deviation_NE,
                           const Tensor& noisy_NE,
                           int64_t k) {
  const Tensor order_NK = largest(noisy_NE, k + 1).to(noisy_NE.device());
  const Tensor ranked_NK = noisy_NE.gather(1, order_NK);
  // without one that is chosen, the k-th of the others is the one after
  const Tensor inside_N1 = ranked_NK.narrow(1, k, 1), outside_N1 = ranked_NK.narrow(1, k - 1, 1);
  const Tensor is_chosen = at::zeros(noisy_NE.sizes(), noisy_NE.options().dtype(at::kBool))
                               .scatter(1, order_NK.narrow(1, 0, k), true);
  const Tensor bound_NE = at::where(is_chosen, inside_N1, outside_N1);
  return at::special_ndtr((clean_NE - bound_NE) / deviation_NE);
}

Tensor within_capacity(const Tensor& expert_NK,
                       const Tensor& token_N,
                       int64_t n_experts,
                       const std::vector<int64_t>& lengths,
                       const std::vector<int64_t>& room) {
  const Tensor chosen = expert_NK.contiguous(), tokens = token_N.contiguous();
  const int64_t k = chosen.size(1);
  Tensor kept = at::zeros(chosen.sizes(), at::kBool);
  const auto *expert = chosen.const_data_ptr<int64_t>(), *order = tokens.const_data_ptr<int64_t>();
  auto* keep = kept.data_ptr<bool>();
  int64_t begin = 0;
  for (size_t g = 0; g < lengths.size(); begin += lengths[g++]) {
    std::vector<int64_t> count(static_cast<size_t>(n_experts), 0);
    for (int64_t j = 0; j < k; ++j)
      for (int64_t t = begin; t < begin + lengths[g]; ++t) {
        const int64_t at = order[t] * k + j;
        if (expert[at] >= 0) keep[at] = count[static_cast<size_t>(expert[at])]++ < room[g];
      }
  }
  return kept;
}

Tensor drawn_by_token(const Context& context,
                      const std::string& site,
                      int64_t n_tokens,
                      int64_t width,
                      const std::function<double(const RandomKey&, uint64_t)>& draw) {
  require(context.batch->n_tokens() == n_tokens, site, "{} tokens of a call of {}", n_tokens,
          context.batch->n_tokens());
  Tensor out = at::empty({n_tokens, width}, at::kFloat);
  auto* to = out.data_ptr<float>();
  const RandomKey key = context.key.fold(site);
  for (const Segment& s : context.batch->segments) {
    const RandomKey stream = s.stream(key);
    parallel_for(s.length * width, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        to[s.begin * width + i] = static_cast<float>(draw(stream, static_cast<uint64_t>(i)));
    });
  }
  return out;
}

Tensor gumbel_by_token(const Context& context,
                       const std::string& site,
                       int64_t n_tokens,
                       int64_t width) {
  return drawn_by_token(context, site, n_tokens, width, [](const RandomKey& stream, uint64_t i) {
    return -std::log(-std::log(0.5 * 0x1p-24 + stream.uniform(i)));
  });
}

Tensor LearnedRouter::logits(const Tensor& x_ND, Context& context) const {
  Tensor x = x_ND.to(ops::wide(x_ND));
  if (context.training && jitter_ > 0)
    x = x * drawn_by_token(context, name_ + ".jitter", x.size(0), x.size(1),
                           [this](const RandomKey& stream, uint64_t i) {
                             return 1 + jitter_ * (2.0 * stream.uniform(i) - 1);
                           })
                .to(x.options());
  return exact_logits(gate_, x, context);
}

Tensor exact_logits(const Linear& map, const Tensor& x, const Context& context) {
  return map(x, context.products.exact());
}

Tensor LearnedRouter::fractions_so_far(const Tensor& expert_NK,
                                       int64_t n_experts,
                                       const Context& context,
                                       const std::string& level) const {
  const at::NoGradGuard no_gradients;
  const Tensor own = choice_fractions(expert_NK, n_experts);
  if (context.update == nullptr) return own;
  const auto n = static_cast<double>(expert_NK.size(0));
  // layers may share a router, and each has a loss of its own
  const std::string place = fmt::format("{}{} {}", name_, level, context.layer);
  Tensor &choices = (*context.update)[place + ".choices"],
         &tokens = (*context.update)[place + ".tokens"];
  if (!choices.defined()) {
    choices = own * n;
    tokens = at::full({}, n, at::kDouble);
  } else {
    // of routers by need a call may have more choices a token than those before it
    const int64_t most = std::max(choices.size(0), own.size(0));
    const auto padded = [most](const Tensor& f_KE) {
      return at::constant_pad_nd(f_KE, {0, 0, 0, most - f_KE.size(0)});
    };
    choices = padded(choices) + padded(own * n);
    tokens = tokens + n;
  }
  return choices / tokens.clamp_min(1);
}

void LearnedRouter::report(const Tensor& z_NE,
                           const Tensor& p_NE,
                           const Tensor& expert_NK,
                           Context& context,
                           const std::string& level) const {
  const auto n = static_cast<double>(p_NE.size(0));
  if (context.add_loss && losses_.balance != BalanceLoss::none && losses_.balance_weight > 0) {
    const auto fractions = [&] {
      return chosen(context,
                    [&] { return fractions_so_far(expert_NK, p_NE.size(1), context, level); });
    };
    const Tensor loss =
        losses_.balance == BalanceLoss::sequence
            ? balance_loss(losses_.balance, p_NE, expert_NK, lengths_of(*context.batch))
        : losses_.balance == BalanceLoss::hf_topk
            ? hf_topk_of_layers(fractions().to(p_NE.options()), p_NE, context.values)
            : balance_loss(losses_.balance, p_NE, fractions());
    context.add_loss("balance" + level, loss * (losses_.balance_weight * n));
  }
  if (context.add_loss && losses_.z_weight > 0)
    context.add_loss("router_z" + level, router_z_loss(z_NE) * (losses_.z_weight * n));
  if (!context.add_statistic || p_NE.is_meta()) return;
  const at::NoGradGuard no_gradients;
  count_choices(context, name_ + level, expert_NK, p_NE.size(1));
  context.add_statistic(name_ + level + ".entropy",
                        ops::ordered_sum(at::special_entr(p_NE)).to(at::kCPU, at::kDouble));
}

}  // namespace tessera::nn
