#include "tessera/nn/position/cope.h"

#include <algorithm>
#include <cmath>

#include "tessera/nn/position/relative.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::nn {
namespace {

/// By torch operations: p by a sum from the query backwards, then between two rows of z.
Tensor plain(const ops::ScoreBlock& block, const Tensor& table) {
  const Tensor &q = block.q_BHTD, &k = block.k_BHSD;
  const Tensor future_TS = distances(block).gt(0);
  const Tensor gates_BHTS = ops::elementwise(ops::Elementwise::sigmoid,
                                             ops::product(q, k.transpose(-1, -2)) * block.scale)
                                .masked_fill(future_TS, 0);
  const auto last = static_cast<double>(table.size(-2) - 1);
  const Tensor place = gates_BHTS.flip(-1).cumsum(-1).flip(-1).clamp_max(last);
  const Tensor z_BHTP = ops::product(q, table.to(q.scalar_type()).transpose(-1, -2));
  const Tensor low = place.detach().floor(), part = place - low;
  const auto row = [&](const Tensor& index) { return z_BHTP.gather(-1, index.to(at::kLong)); };
  return part * row(place.detach().ceil()) + (1 - part) * row(low);
}

/// One score after the other: each row separately.
Tensor numbers(const ops::ScoreBlock& block, const Tensor& table) {
  const Tensor products = ops::row_products(block.q_BHTD, block.k_BHSD).contiguous(),
               z = ops::row_products(block.q_BHTD, table.to(at::kFloat)).contiguous();
  const int64_t t = products.size(2), s = products.size(3), rows = z.size(3);
  Tensor bias = at::zeros_like(products);
  const double last = static_cast<double>(rows - 1);
  for (int64_t row = 0; row < products.numel() / s; ++row) {
    const float* product = products.const_data_ptr<float>() + row * s;
    const float* of_row = z.const_data_ptr<float>() + row * rows;
    float* out = bias.data_ptr<float>() + row * s;
    double place = 0;
    // no gate lies between a query and a later key, which a prefix lets it see
    const int64_t own =
        std::clamp<int64_t>(block.first_query + row % t - block.first_key, -1, s - 1);
    std::fill(out + own + 1, out + s, of_row[0]);
    for (int64_t j = own; j >= 0; --j) {
      if (place < last) place += 1 / (1 + std::exp(-block.scale * product[j]));
      place = std::min(place, last);
      const double low = std::floor(place), part = place - low;
      out[j] = static_cast<float>(part * of_row[static_cast<int64_t>(std::ceil(place))] +
                                  (1 - part) * of_row[static_cast<int64_t>(low)]);
    }
  }
  return bias;
}

class Cope final : public Position {
 public:
  Cope(const CopeConfig& config, const Builder& builder)
      : config_(config), table_(builder.weight("weight")) {}

  ops::ScoreTerm score_term(ScoreSite&, Context&) const override {
    return {.bias =
                [scaled = config_.scaled](const ops::ScoreBlock& block,
                                          const std::vector<Tensor>& inputs) {
                  const Tensor bias = ops::kernel_serves(ops::Op::cope, block.q_BHTD)
                                          ? numbers(block, inputs[0])
                                          : plain(block, inputs[0]);
                  return scaled ? bias * block.scale : bias;
                },
            .inputs = {table_->tensor()},
            .keys_between = true};
  }

 private:
  CopeConfig config_;
  WeightPtr table_;
};

}  // namespace

std::unique_ptr<Position> build(const CopeConfig& config, const Builder& builder) {
  return std::make_unique<Cope>(config, builder);
}

}  // namespace tessera::nn
