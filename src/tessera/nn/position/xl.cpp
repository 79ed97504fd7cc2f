#include "tessera/nn/position/xl.h"

#include "tessera/nn/position/relative.h"

namespace tessera::nn {
namespace {

class Xl final : public Position {
 public:
  Xl(const XlConfig& config, const Builder& builder)
      : config_(config),
        relative_(builder.weight("relative.weight")),
        u_(home(builder, config.share).weight("u")),
        w_(home(builder, config.share).weight("w")) {}

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    const auto range = DistanceRange::of(site, context, config_.clamp);
    // W_r R for every distance, farthest past first
    const Tensor keys_RO = ops::linear(sinusoids(range, context), *relative_);
    const Tensor keys_HRD =
        keys_RO.reshape({range.rows(), site.n_heads, site.head_dim}).transpose(0, 1);
    ops::ScoreTerm term;
    term.inputs = {keys_HRD, u_->tensor(), w_->tensor()};
    term.bias = [range](const ops::ScoreBlock& block, const std::vector<Tensor>& inputs) {
      const auto type = block.q_BHTD.scalar_type();
      const Tensor u_H1D = inputs[1].to(type).unsqueeze(1), w_H1D = inputs[2].to(type).unsqueeze(1);
      const Tensor index_TS = indices(block, [&](int64_t distance) {
        return std::clamp(distance, -range.past, range.future) + range.past;
      });
      return (ops::products_at(block.q_BHTD + w_H1D, inputs[0], index_TS) +
              ops::row_products(u_H1D.contiguous(), block.k_BHSD)) *
             block.scale;
    };
    return term;
  }

 private:
  /// R of query minus key, [rows, d_model]; all layers of a call read the same.
  Tensor sinusoids(const DistanceRange& range, Context& context) const {
    const Tensor like = relative_->tensor();
    const int64_t width = like.size(1);
    return context.once<Tensor>(
        fmt::format("xl {} {} {} {} {}", config_.theta, static_cast<int>(config_.layout), width,
                    range.past, range.future),
        [&] {
          SinusoidalPositionConfig wave;
          wave.theta = config_.theta;
          wave.layout = config_.layout;
          Tensor rows = at::empty({range.rows(), width}, at::kDouble);
          for (int64_t r = 0; r < range.rows(); ++r)
            wave.vector(range.past - r, width, rows.data_ptr<double>() + r * width);
          return rows.to(like.device(), ops::wide(like));
        });
  }

  XlConfig config_;
  WeightPtr relative_, u_, w_;
};

}  // namespace

std::unique_ptr<Position> build(const XlConfig& config, const Builder& builder) {
  return std::make_unique<Xl>(config, builder);
}

}  // namespace tessera::nn
