#include "tessera/nn/depth/mixture_of_depths.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/ranking.h"
#include "tessera/nn/depth/chosen_tokens.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class MixtureOfDepths final : public Depth {
 public:
  MixtureOfDepths(const MixtureOfDepthsConfig& config, const Builder& builder)
      : config_(config), name_(builder.prefix()), router_(builder, "router") {
    if (config.predictor != DepthPredictor::mlp) return;
    up_ = Linear(builder, "predictor.up");
    down_ = Linear(builder, "predictor.down");
  }

  Tensor forward(const Tensor& x_ND, const DepthLayer& layer, Context& context) const override {
    if (context.split.ranks > 1)
      fail(ErrorKind::usage, "mixture_of_depths",
           "tokens spread over {} ranks cannot be chosen among; train on one rank",
           context.split.ranks);
    const Tensor r_N = exact_logits(router_, x_ND, context).squeeze(-1);
    const bool by_rank = context.training || !context.causal;
    const Tensor chosen_N = chosen(context, [&] {
      if (by_rank) return largest(r_N, *context.batch);
      const bool own = config_.predictor == DepthPredictor::router;
      return ((own ? r_N.detach() : predicted(x_ND, context)) > 0).cpu();
    });
    const Tensor bytes = chosen_N.to(at::kByte).contiguous();
    const auto* first = bytes.const_data_ptr<uint8_t>();
    const ChosenTokens some =
        ChosenTokens::of(*context.batch, {first, first + bytes.numel()}, layer, context);
    if (context.training && context.causal) learn(x_ND, chosen_N, context);
    if (context.add_statistic)
      context.add_statistic(name_ + ".share", ops::ordered_mean(chosen_N.to(at::kFloat)));
    if (some.tokens.empty()) return x_ND;

    const Tensor tokens = at::tensor(some.tokens, at::kLong).to(x_ND.device());
    const Tensor x_MD = x_ND.index_select(0, tokens);
    Context inner = some.context(context);
    inner.products.drop = input_drop(context, some.batch);
    const Tensor f_MD = layer.run(x_MD, inner) - x_MD;
    return x_ND.index_copy(0, tokens, x_MD + r_N.index_select(0, tokens).unsqueeze(-1) * f_MD);
  }

 private:
  /// Logits of being chosen, which teach the weights of the predictor alone.
  Tensor predicted(const Tensor& x_ND, const Context& context) const {
    const Tensor x = x_ND.detach();
    if (config_.predictor == DepthPredictor::router)
      return exact_logits(router_, x, context).squeeze(-1);
    return down_(ops::activate(up_(x, context), ops::Activation::relu), context).squeeze(-1);
  }

  /// Of every document the tokens with the largest r; of equal ones the first.
  Tensor largest(const Tensor& r_N, const Batch& batch) const {
    const Tensor r = r_N.detach().to(at::kCPU, at::kDouble).contiguous();
    const auto* value = r.const_data_ptr<double>();
    const Tensor out = at::zeros({r.numel()}, at::kBool);
    auto* chosen = out.data_ptr<bool>();
    for (const Segment& s : batch.segments) {
      if (s.start != 0)
        fail(ErrorKind::usage, "mixture_of_depths",
             "training over segments gives {} the end of a document, and tokens are chosen among "
             "all of it; train on whole ones",
             name_);
      std::vector<int64_t> order(static_cast<size_t>(s.length));
      std::iota(order.begin(), order.end(), s.begin);
      const auto k = std::clamp<int64_t>(
          static_cast<int64_t>(config_.capacity * static_cast<double>(s.length)), 1, s.length);
      std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int64_t a, int64_t b) {
        return ranks_before(value[a], a, value[b], b);
      });
      for (int64_t i = 0; i < k; ++i) chosen[order[static_cast<size_t>(i)]] = true;
    }
    return out;
  }

  void learn(const Tensor& x_ND, const Tensor& chosen_N, Context& context) const {
    const Tensor logits = predicted(x_ND, context);
    const Tensor targets = chosen_N.to(logits.options());
    if (context.add_loss)
      // binary cross-entropy
      context.add_loss(name_,
                       config_.loss * ops::ordered_sum(ops::softplus(logits) - logits * targets));
    if (context.add_statistic)
      context.add_statistic(name_ + ".predicted",
                            ops::ordered_mean(((logits > 0) == (targets > 0)).to(at::kFloat)));
  }

  MixtureOfDepthsConfig config_;
  std::string name_;
  Linear router_, up_, down_;
};

}  // namespace

std::unique_ptr<Depth> build(const MixtureOfDepthsConfig& config, const Builder& builder) {
  return std::make_unique<MixtureOfDepths>(config, builder);
}

}  // namespace tessera::nn
