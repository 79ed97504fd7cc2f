#include "tessera/nn/position/fire.h"

#include <cmath>

#include "tessera/nn/position/relative.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"

namespace tessera::nn {
namespace {

class Fire final : public Position {
 public:
  Fire(const FireConfig& config, const Builder& builder)
      : config_(config),
        c_(builder.weight("c")),
        m_(builder.weight("m")),
        up_(builder, "up"),
        down_(builder, "down") {}

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    ops::ScoreTerm term;
    const Tensor up = up_.weight->tensor(context.products);
    term.inputs = {c_->tensor(), m_->tensor(), up, up_.bias->tensor(),
                   down_.weight->tensor(context.products)};
    // the hidden layer's, which all heads share
    term.numbers = (up.size(0) + site.n_heads - 1) / site.n_heads;
    term.bias = [threshold = config_.threshold](const ops::ScoreBlock& block,
                                                const std::vector<Tensor>& inputs) {
      const auto type = block.q_BHTD.scalar_type();
      std::vector<Tensor> wide;
      for (const Tensor& input : inputs) wide.push_back(input.to(type));
      const Tensor x_TS = ops::kernel_serves(ops::Op::fire, block.q_BHTD)
                              ? numbers(block, wide[0], wide[1], threshold)
                              : plain(block, wide[0], wide[1], threshold);
      // per element a product, a sum and the positive part: the bits of each are its own
      const std::vector<int64_t> sizes{x_TS.size(0), x_TS.size(1), wide[3].size(0)};
      const Tensor hidden_TSF = at::relu(ops::spread(x_TS.unsqueeze(-1), sizes) *
                                             ops::spread(wide[2].squeeze(-1), sizes) +
                                         ops::spread(wide[3], sizes))
                                    .contiguous();
      return ops::row_products(hidden_TSF, wide[4]).permute({2, 0, 1}).unsqueeze(0);
    };
    return term;
  }

 private:
  static Tensor plain(const ops::ScoreBlock& block,
                      const Tensor& c,
                      const Tensor& m,
                      double threshold) {
    const Tensor query_T1 = query_positions(block).to(c.scalar_type()).unsqueeze(1);
    const Tensor distance_TS = distances(block).neg().clamp_min(0).to(c.scalar_type());
    const Tensor length_T1 = at::maximum(query_T1, ops::spread(m.abs() * threshold, query_T1));
    const Tensor above = at::log1p(ops::spread(c.abs(), distance_TS) * distance_TS);
    const Tensor below =
        at::log1p(ops::spread(c.abs(), length_T1) * length_T1) + FireConfig::kSmall;
    return above / ops::spread(below, above);
  }

  static Tensor numbers(const ops::ScoreBlock& block,
                        const Tensor& c,
                        const Tensor& m,
                        double threshold) {
    const int64_t t = block.q_BHTD.size(2), s = block.k_BHSD.size(2);
    const double rate = std::abs(c.item<double>());
    const double least = std::abs(m.item<double>()) * threshold;
    Tensor x_TS = at::zeros({t, s}, block.q_BHTD.options());
    auto* out = x_TS.data_ptr<float>();
    for (int64_t row = 0; row < t; ++row) {
      const int64_t i = block.first_query + row * block.query_step;
      const double whole =
          std::log1p(rate * std::max(static_cast<double>(i), least)) + FireConfig::kSmall;
      for (int64_t column = 0; column < s; ++column, ++out) {
        const int64_t j = block.first_key + column * block.key_step;
        if (j < i) *out = static_cast<float>(std::log1p(rate * static_cast<double>(i - j)) / whole);
      }
    }
    return x_TS;
  }

  FireConfig config_;
  WeightPtr c_, m_;
  Linear up_, down_;
};

}  // namespace

std::unique_ptr<Position> build(const FireConfig& config, const Builder& builder) {
  return std::make_unique<Fire>(config, builder);
}

}  // namespace tessera::nn
