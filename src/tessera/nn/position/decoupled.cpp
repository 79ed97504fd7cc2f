#include "tessera/nn/position/decoupled.h"

#include "tessera/nn/position/relative.h"

namespace tessera::nn {
namespace {

class DietAbsolute final : public Position {
 public:
  explicit DietAbsolute(const Builder& home)
      : q_(home.weight("q.weight")), k_(home.weight("k.weight")) {}

  ops::ScoreTerm score_term(ScoreSite&, Context&) const override {
    return {.bias =
                [](const ops::ScoreBlock& block, const std::vector<Tensor>& inputs) {
                  // tables [P, H, R], the rows of this block
                  const auto rows = [&](const Tensor& table, const Tensor& positions) {
                    return table.index_select(0, positions)
                        .transpose(0, 1)
                        .to(block.q_BHTD.scalar_type());
                  };
                  return ops::row_products(rows(inputs[0], query_positions(block)),
                                           rows(inputs[1], key_positions(block)))
                      .unsqueeze(0);
                },
            .inputs = {q_->tensor(), k_->tensor()}};
  }

 private:
  WeightPtr q_, k_;
};

class DietRelative final : public Position {
 public:
  DietRelative(const DecoupledConfig& config, const Builder& home)
      : past_(config.max_distance), bias_(home.weight("weight")) {}

  ops::ScoreTerm score_term(ScoreSite&, Context&) const override {
    return {.bias_HR = bias_->tensor(), .zero = past_};
  }

 private:
  int64_t past_;
  WeightPtr bias_;
};

}  // namespace

std::unique_ptr<Position> build(const DecoupledConfig& config, const Builder& builder) {
  switch (config.variant) {
    case DecoupledVariant::untied:
    case DecoupledVariant::disentangled:
    case DecoupledVariant::decoupled_rope:
      return build_position(config.alias(builder.scope()), builder);
    case DecoupledVariant::diet_abs:
      return std::make_unique<DietAbsolute>(home(builder, config.share));
    case DecoupledVariant::diet_rel:
      return std::make_unique<DietRelative>(config, home(builder, config.share));
  }
  fail(ErrorKind::internal, "decoupled", "unknown variant {}", static_cast<int>(config.variant));
}

}  // namespace tessera::nn
