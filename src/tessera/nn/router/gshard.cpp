#include "tessera/nn/router/gshard.h"

#include <limits>

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/capacity_room.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {
namespace {

constexpr double kOut = -std::numeric_limits<double>::infinity();

class GshardRouter final : public BoundedRouter {
 public:
  GshardRouter(const GshardConfig& config, const Builder& builder)
      : BoundedRouter(config, builder), config_(config) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor z_NE = logits(x_ND, context), p_NE = ops::softmax(z_NE);
    const Tensor two_N2 = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return choices(z_NE, context);
    });
    const Tensor g_N2 = p_NE.gather(1, two_N2.to(p_NE.device()));
    report(z_NE, p_NE, two_N2, context);
    const Tensor kept_N2 = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return with_room(by_chance(two_N2, g_N2, context), {}, context);
    });
    const Tensor left_N2 =
        config_.normalise == Normalise::after ? g_N2 * (kept_N2 >= 0).to(g_N2.options()) : g_N2;
    return {kept_N2, g_N2 / (left_N2.sum(1, /*keepdim=*/true) + kLeast)};
  }

 private:
  Tensor choices(const Tensor& z_NE, const Context& context) const {
    if (!context.training || config_.second != SecondExpert::sampling) return largest(z_NE, 2);
    const Tensor first_N1 = largest(z_NE, 1);
    const Tensor gumbel = gumbel_by_token(context, name() + ".gumbel", z_NE.size(0), z_NE.size(1));
    const Tensor rest_NE =
        (z_NE + gumbel.to(z_NE.options())).scatter(1, first_N1.to(z_NE.device()), kOut);
    return at::cat({first_N1, largest(rest_NE, 1)}, 1);
  }

  /// Without the second choices that chance leaves out.
  Tensor by_chance(const Tensor& two_N2, const Tensor& g_N2, const Context& context) const {
    if (!context.training || config_.second != SecondExpert::random) return two_N2;
    const Tensor drawn_N1 =
        drawn_by_token(context, name() + ".second", two_N2.size(0), 1,
                       [](const RandomKey& stream, uint64_t i) { return stream.uniform(i); });
    const Tensor used_N1 = 2 * g_N2.narrow(1, 1, 1).to(at::kCPU) > drawn_N1;
    return at::cat({two_N2.narrow(1, 0, 1), at::where(used_N1, two_N2.narrow(1, 1, 1), -1)}, 1);
  }

  // of a token that lost both
  static constexpr double kLeast = 1e-20;

  GshardConfig config_;
};

}  // namespace

std::unique_ptr<Router> build(const GshardConfig& config, const Builder& builder) {
  return std::make_unique<GshardRouter>(config, builder);
}

}  // namespace tessera::nn
