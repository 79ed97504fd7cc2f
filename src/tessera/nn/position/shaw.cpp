#include "tessera/nn/position/shaw.h"

#include "tessera/nn/position/relative.h"

namespace tessera::nn {
namespace {

class Shaw final : public Position {
 public:
  Shaw(const ShawConfig& config, const Builder& builder)
      : config_(config), keys_(builder.weight("key.weight")) {
    if (config.values) values_ = builder.weight("value.weight");
  }

  ops::ScoreTerm score_term(ScoreSite&, Context&) const override {
    ops::ScoreTerm term;
    term.inputs = {keys_->tensor()};
    const auto row = [config = config_](int64_t distance) { return config.row(distance); };
    term.bias = [row, both = config_.terms == ShawTerms::query_and_key](
                    const ops::ScoreBlock& block, const std::vector<Tensor>& inputs) {
      const Tensor index_TS = indices(block, row);
      Tensor sum = ops::products_at(block.q_BHTD, inputs[0], index_TS);
      if (both)
        sum = sum + ops::products_at(block.k_BHSD, inputs[0], index_TS.t()).transpose(-1, -2);
      return sum * block.scale;
    };
    if (!values_) return term;
    term.inputs.push_back(values_->tensor());
    term.values = [row](const Tensor& weights_BHTS, const ops::ScoreBlock& block,
                        const std::vector<Tensor>& inputs) {
      const Tensor table_RD = inputs[1].to(weights_BHTS.scalar_type());
      // the weight of each distance, then one product with the table
      auto sizes = weights_BHTS.sizes().vec();
      const Tensor index = indices(block, row).expand(sizes);
      sizes.back() = table_RD.size(0);
      const Tensor weights_BHTR =
          at::zeros(sizes, weights_BHTS.options()).scatter_add(-1, index, weights_BHTS);
      return ops::row_products(weights_BHTR, table_RD.t());
    };
    return term;
  }

 private:
  ShawConfig config_;
  WeightPtr keys_, values_;
};

}  // namespace

std::unique_ptr<Position> build(const ShawConfig& config, const Builder& builder) {
  return std::make_unique<Shaw>(config, builder);
}

}  // namespace tessera::nn
