#include "tessera/nn/position/deberta.h"

#include <cmath>

#include "tessera/nn/position/relative.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {
namespace {

class Deberta final : public Position {
 public:
  Deberta(const DebertaConfig& config, const Builder& builder) : config_(config) {
    const Builder table = home(builder, config.share);
    name_ = "deberta " + table.prefix();
    table_ = table.weight("weight");
    if (config.norm)
      norm_ =
          build_norm(config.norm, table.under("norm", config.child_scope(builder.scope(), "norm")));
    if (config.projections == DebertaProjections::mixer) return;
    if (config.c2p) key_ = Linear(builder, "key");
    if (config.p2c) query_ = Linear(builder, "query");
  }

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    site.scale /= std::sqrt(1.0 + (config_.c2p ? 1 : 0) + (config_.p2c ? 1 : 0));
    const Tensor rows = context.values.once(name_, [&] { return table(context); });
    const bool own = config_.projections == DebertaProjections::own;
    ops::ScoreTerm term;
    if (config_.c2p)
      term.inputs.push_back(per_head(own ? key_(rows, context) : site.project_k(rows), site));
    if (config_.p2c)
      term.inputs.push_back(per_head(own ? query_(rows, context) : site.project_q(rows), site));
    term.bias = [config = config_](const ops::ScoreBlock& block,
                                   const std::vector<Tensor>& inputs) {
      const Tensor index_TS =
          indices(block, [&](int64_t distance) { return config.row(-distance); });
      Tensor sum;
      if (config.c2p) sum = ops::products_at(block.q_BHTD, inputs.front(), index_TS);
      if (config.p2c) {
        const Tensor asked =
            ops::products_at(block.k_BHSD, inputs.back(), index_TS.t()).transpose(-1, -2);
        sum = config.c2p ? sum + asked : asked;
      }
      return sum * block.scale;
    };
    return term;
  }

 private:
  Tensor table(const Context& context) const {
    const Tensor rows = table_->tensor();
    return norm_ ? norm_->forward(rows, context.products) : rows;
  }
  /// [R, H * D] or [R, G, D] -> [H, R, D]
  static Tensor per_head(const Tensor& projected, const ScoreSite& site) {
    const Tensor apart = projected.reshape({projected.size(0), -1, site.head_dim}).transpose(0, 1);
    return ops::repeat_each(apart, site.n_heads / apart.size(0), 0);
  }

  DebertaConfig config_;
  std::string name_;
  WeightPtr table_;
  std::unique_ptr<Norm> norm_;
  Linear key_, query_;
};

}  // namespace

std::unique_ptr<Position> build(const DebertaConfig& config, const Builder& builder) {
  return std::make_unique<Deberta>(config, builder);
}

}  // namespace tessera::nn
