#include "tessera/nn/router/soft.h"

#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/router/routing.h"
#include "tessera/ops/basic/l2_norm.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/weights/product.h"

namespace tessera::nn {
namespace {

class SoftMixtures final : public Router {
 public:
  SoftMixtures(const SoftRouterConfig& config, const Builder& builder)
      : config_(config),
        n_experts_(builder.scope().n_experts),
        slots_(builder, "slots"),
        scale_(builder.optional("scale")) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor x = x_ND.to(ops::wide(x_ND));
    const Tensor z_NS = logits(x, context);
    const BySegment pieces(*context.batch);
    const auto documents = static_cast<int64_t>(context.batch->segments.size());
    const int64_t d = x.size(1);
    std::vector<Tensor> inputs, back;
    for (size_t i = 0; i < static_cast<size_t>(documents); ++i) {
      const Tensor z_TS = pieces(z_NS, i);
      inputs.push_back(ops::product(ops::softmax(z_TS.t()), pieces(x, i)));
      back.push_back(ops::softmax(z_TS));
    }
    // by document to by expert, and back
    const int64_t each = config_.slots;
    Routing out;
    Routing::Slots& slots = out.slots.emplace();
    slots.x_SD = at::stack(inputs)
                     .reshape({documents, n_experts_, each, d})
                     .transpose(0, 1)
                     .reshape({-1, d})
                     .to(x_ND.scalar_type());
    for (int64_t e = 0; e <= n_experts_; ++e) slots.groups.offsets.push_back(e * documents * each);
    slots.combine = [back, documents, each, experts = n_experts_](const Tensor& y_SD) {
      const Tensor y = y_SD.to(back[0].scalar_type())
                           .reshape({experts, documents, each, -1})
                           .transpose(0, 1)
                           .reshape({documents, experts * each, -1});
      std::vector<Tensor> rows;
      for (size_t i = 0; i < back.size(); ++i)
        rows.push_back(ops::product(back[i], y.select(0, static_cast<int64_t>(i))));
      return at::cat(rows).to(y_SD.scalar_type());
    };
    return out;
  }

 private:
  Tensor logits(const Tensor& x, const Context& context) const {
    if (!scale_) return exact_logits(slots_, x, context);
    const ops::ProductSettings exact = context.products.exact();
    const Tensor phi = ops::l2_norm(slots_.weight->tensor(exact).to(x.options()), kEps);
    const Tensor z =
        ops::linear(ops::l2_norm(x, kEps), ops::Weight::dense("slots", phi), nullptr, exact);
    return z * ops::spread(scale_->tensor().to(x.options()), z);
  }

  static constexpr double kEps = 1e-12;

  SoftRouterConfig config_;
  int64_t n_experts_;
  Linear slots_;
  WeightPtr scale_;
};

}  // namespace

std::unique_ptr<Router> build(const SoftRouterConfig& config, const Builder& builder) {
  return std::make_unique<SoftMixtures>(config, builder);
}

}  // namespace tessera::nn
