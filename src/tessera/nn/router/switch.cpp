#include "tessera/nn/router/switch.h"

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/capacity_room.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

class SwitchRouter final : public BoundedRouter {
 public:
  SwitchRouter(const SwitchConfig& config, const Builder& builder)
      : BoundedRouter(config, builder), config_(config) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor z_NE = logits(x_ND, context), p_NE = ops::softmax(z_NE);
    const Tensor best_N1 = chosen(context, [&] { return largest(p_NE, 1); });
    const Tensor p_N1 = p_NE.gather(1, best_N1.to(p_NE.device()));
    report(z_NE, p_NE, best_N1, context);
    const Tensor kept_N1 = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return with_room(best_N1,
                       config_.order == FillOrder::by_probability ? p_N1.squeeze(1) : Tensor(),
                       context);
    });
    return {kept_N1, p_N1};
  }

 private:
  SwitchConfig config_;
};

}  // namespace

std::unique_ptr<Router> build(const SwitchConfig& config, const Builder& builder) {
  return std::make_unique<SwitchRouter>(config, builder);
}

}  // namespace tessera::nn
