#include "tessera/nn/router/random.h"

#include "tessera/nn/checkpointing.h"
#include "tessera/nn/router/routing.h"

namespace tessera::nn {
namespace {

class ChanceRouter final : public Router {
 public:
  ChanceRouter(const RandomRouterConfig& config, const Builder& builder)
      : config_(config), n_experts_(builder.scope().n_experts), name_(builder.prefix()) {}

  Routing route(const Tensor& x_ND, Context& context) const override {
    const Tensor expert_NK =
        chosen(context, [&] { return largest(scores(x_ND.size(0), context), config_.k); });
    count_choices(context, name_, expert_NK, n_experts_);
    return {expert_NK, at::full(expert_NK.sizes(), 1.0 / static_cast<double>(config_.k),
                                x_ND.options().dtype(ops::wide(x_ND)))};
  }

 private:
  Tensor scores(int64_t n, const Context& context) const {
    if (context.training)
      return drawn_by_token(context, name_, n, n_experts_,
                            [](const RandomKey& stream, uint64_t i) { return stream.uniform(i); });
    const Batch& batch = *context.batch;
    require(batch.n_tokens() == n, name_, "{} tokens of a call of {}", n, batch.n_tokens());
    const Tensor ids = batch.ids_N.to(at::kCPU, at::kLong).contiguous(),
                 positions = batch.positions_N.to(at::kCPU, at::kLong).contiguous();
    const RandomKey key = RandomKey(static_cast<uint64_t>(config_.seed)).fold(name_);
    Tensor out = at::empty({n, n_experts_}, at::kFloat);
    auto* to = out.data_ptr<float>();
    for (int64_t t = 0; t < n; ++t) {
      const RandomKey own =
          key.fold(static_cast<uint64_t>(ids.const_data_ptr<int64_t>()[t]))
              .fold(static_cast<uint64_t>(positions.const_data_ptr<int64_t>()[t]));
      for (int64_t e = 0; e < n_experts_; ++e)
        to[t * n_experts_ + e] = own.uniform(static_cast<uint64_t>(e));
    }
    return out;
  }

  RandomRouterConfig config_;
  int64_t n_experts_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Router> build(const RandomRouterConfig& config, const Builder& builder) {
  return std::make_unique<ChanceRouter>(config, builder);
}

}  // namespace tessera::nn
