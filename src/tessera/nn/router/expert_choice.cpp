#include "tessera/nn/router/expert_choice.h"

#include <cmath>

#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

class ExpertChoiceRouter final : public Router {
 public:
  ExpertChoiceRouter(const ExpertChoiceConfig& config, const Builder& builder)
      : config_(config), gate_(builder, "gate"), name_(builder.prefix()) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor p_NE = ops::softmax(exact_logits(gate_, x_ND.to(ops::wide(x_ND)), context));
    const Tensor expert_NK = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return of_tokens(p_NE, lengths_of(*context.batch));
    });
    count_choices(context, name_, expert_NK, p_NE.size(1));
    return {expert_NK, p_NE.gather(1, expert_NK.clamp_min(0).to(p_NE.device()))};
  }

 private:
  /// For every token the experts that chose it, in ascending order, then -1.
  Tensor of_tokens(const Tensor& p_NE, const std::vector<int64_t>& lengths) const {
    const int64_t n = p_NE.size(0), e = p_NE.size(1);
    std::vector<std::vector<int64_t>> of(static_cast<size_t>(n));
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      const auto room = std::min(
          length,
          static_cast<int64_t>(std::ceil(config_.capacity_factor * static_cast<double>(length) /
                                         static_cast<double>(e))));
      const Tensor token_EC = largest(p_NE.narrow(0, begin, length).t(), room);
      const auto* token = token_EC.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < e * room; ++i)
        of[static_cast<size_t>(begin + token[i])].push_back(i / room);
      begin += length;
    }
    require(begin == n, "expert_choice", "documents of {} tokens; {} are routed", begin, n);
    size_t most = 1;
    for (const auto& experts : of) most = std::max(most, experts.size());
    Tensor out = at::full({n, static_cast<int64_t>(most)}, -1, at::kLong);
    auto* to = out.data_ptr<int64_t>();
    for (size_t t = 0; t < of.size(); ++t) std::copy(of[t].begin(), of[t].end(), to + t * most);
    return out;
  }

  ExpertChoiceConfig config_;
  Linear gate_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Router> build(const ExpertChoiceConfig& config, const Builder& builder) {
  return std::make_unique<ExpertChoiceRouter>(config, builder);
}

}  // namespace tessera::nn
