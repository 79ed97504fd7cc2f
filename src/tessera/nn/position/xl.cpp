#include "tessera/nn/position/xl.h"

#include "tessera/nn/position/relative.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {
namespace {

class Xl final : public Position {
 public:
  Xl(const XlConfig& config, const Builder& builder)
      : config_(config),
        // uses of a shared weight have adapters of their own
        name_(fmt::format("xl {} {}", builder.scope().layer, builder.prefix())),
        relative_(builder.weight("relative.weight")),
        u_(home(builder, config.share).weight("u")),
        w_(home(builder, config.share).weight("w")) {}

  ops::ScoreTerm score_term(ScoreSite& site, Context& context) const override {
    const auto range = DistanceRange::of(site, context, config_.clamp);
    const Tensor keys_HRD =
        keys(range, context).reshape({range.rows(), site.n_heads, site.head_dim}).transpose(0, 1);
    ops::ScoreTerm term;
    term.inputs = {keys_HRD, u_->tensor(), w_->tensor()};
    term.bias = [range](const ops::ScoreBlock& block, const std::vector<Tensor>& inputs) {
      const auto type = block.q_BHTD.scalar_type();
      const Tensor u_H1D = inputs[1].to(type).unsqueeze(1), w_H1D = inputs[2].to(type).unsqueeze(1);
      const Tensor index_TS = indices(block, [&](int64_t distance) {
        const int64_t met = std::clamp(distance, -range.past, range.future);
        return met <= 0 ? -met : range.past + met;
      });
      const Tensor by_place =
          ops::products_at(block.q_BHTD + ops::spread(w_H1D, block.q_BHTD), inputs[0], index_TS);
      const Tensor by_key = ops::row_products(u_H1D.contiguous(), block.k_BHSD);
      return (by_place + ops::spread(by_key, by_place)) * block.scale;
    };
    return term;
  }

 private:
  // distances that are projected at once with a state
  static constexpr int64_t kBlock = 256;

  /// W_r R of distances 0 .. past, then of -1 .. -future: [rows, H * D].
  Tensor keys(const DistanceRange& range, Context& context) const {
    if (context.lasting == nullptr || at::GradMode::is_enabled() || range.future > 0) {
      const Tensor past = sinusoids(0, range.past + 1, context);
      return ops::linear(
          range.future == 0 ? past : at::cat({past, sinusoids(-range.future, 0, context).flip(0)}),
          *relative_, nullptr, context.products);
    }
    // tensors that were handed out stay as they are: copies of a state share them
    std::any& cell = (*context.lasting)[name_];
    const auto* held = std::any_cast<Tensor>(&cell);
    const int64_t have = held == nullptr ? 0 : held->size(0);
    if (have <= range.past) {
      const int64_t end = (range.past / kBlock + 1) * kBlock;
      const Tensor fresh =
          ops::linear(sinusoids(have, end, context), *relative_, nullptr, context.products);
      cell = have == 0 ? fresh : at::cat({*held, fresh});
    }
    return std::any_cast<const Tensor&>(cell).narrow(0, 0, range.past + 1);
  }

  /// R of query minus key from `first` to `end`, [rows, d_model]; all layers of a call read the
  /// same.
  Tensor sinusoids(int64_t first, int64_t end, Context& context) const {
    const Tensor like = relative_->tensor(context.products);
    const int64_t width = like.size(1);
    return context.once<Tensor>(fmt::format("xl {} {} {} {} {}", config_.theta,
                                            static_cast<int>(config_.layout), width, first, end),
                                [&] {
                                  SinusoidalPositionConfig wave;
                                  wave.theta = config_.theta;
                                  wave.layout = config_.layout;
                                  Tensor rows = at::empty({end - first, width}, at::kDouble);
                                  for (int64_t r = first; r < end; ++r)
                                    wave.vector(r, width,
                                                rows.data_ptr<double>() + (r - first) * width);
                                  return rows.to(like.device(), ops::wide(like));
                                });
  }

  XlConfig config_;
  std::string name_;
  WeightPtr relative_, u_, w_;
};

}  // namespace

std::unique_ptr<Position> build(const XlConfig& config, const Builder& builder) {
  return std::make_unique<Xl>(config, builder);
}

}  // namespace tessera::nn
