#include "tessera/nn/embed/token.h"

#include "tessera/nn/dropout.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/over_rows.h"

namespace tessera::nn {
namespace {

class TokenEmbed final : public Embed {
 public:
  TokenEmbed(const TokenEmbedConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        token_(builder.weight("token.weight")),
        type_(builder.optional("type.weight")),
        task_(builder.optional("task.weight")),
        position_(build_position(
            config.position,
            builder.under("position", config.child_scope(builder.scope(), "position")))) {
    if (config.norm)
      norm_ = build_norm(config.norm,
                         builder.under("norm", config.child_scope(builder.scope(), "norm")));
    if (config.project != EmbedProjection::none) project_ = Linear(builder, "project");
  }

  Tensor forward(Context& context, const StateRows* rows) const override {
    const Batch& batch = *context.batch;
    Tensor x_ND = ops::rows(*token_, batch.ids_N, context.products);
    if (config_.project == EmbedProjection::token)
      x_ND = project_(with_neighbours(x_ND, batch), context);
    if (config_.scale != 1) x_ND = x_ND * config_.scale;
    if (config_.mask_id) x_ND = x_ND * factors(batch).to(x_ND.device(), x_ND.scalar_type());
    x_ND = ops::prefixed(x_ND, *token_, batch.positions_N);
    if (norm_ && config_.norm_of == EmbedNormOf::token)
      x_ND = norm_->forward(x_ND, context.products);
    if (type_)
      x_ND = x_ND + ops::rows(*type_,
                              batch.types_N.defined() ? batch.types_N : at::zeros_like(batch.ids_N),
                              context.products);
    x_ND = position_->embed(x_ND, context, rows);
    if (task_)
      x_ND = x_ND +
             ops::over_rows(ops::rows(*task_, at::full({1}, config_.task, batch.ids_N.options()),
                                      context.products)
                                .squeeze(0),
                            x_ND);
    if (norm_ && config_.norm_of == EmbedNormOf::sum) x_ND = norm_->forward(x_ND, context.products);
    if (config_.project == EmbedProjection::sum) x_ND = project_(x_ND, context);
    return dropout(x_ND, config_.dropout, name_, context);
  }

 private:
  /// The vectors of the tokens around each, the following ones first: [N, ngram * width].
  Tensor with_neighbours(const Tensor& x_NW, const Batch& batch) const {
    if (config_.ngram == 1) return x_NW;
    const BySegment part(batch);
    return over_segments(batch, [&](size_t i, const Segment& s) {
      const int64_t half = config_.ngram / 2;
      const Tensor padded = at::constant_pad_nd(part(x_NW, i), {0, 0, half, half});
      std::vector<Tensor> sides;
      for (int64_t at = 2 * half; at >= 0; --at) sides.push_back(padded.narrow(0, at, s.length));
      return at::cat(sides, 1);
    });
  }
  /// Of every token, [N, 1]: 0 of the mask token, of others what its share of the document asks for.
  Tensor factors(const Batch& batch) const {
    const Tensor masked_N = batch.ids_N.eq(*config_.mask_id);
    const Tensor kept_N = masked_N.logical_not().to(at::kFloat);
    Tensor factor_N = at::zeros_like(kept_N);
    for (const Segment& segment : batch.segments) {
      const Tensor kept = kept_N.narrow(0, segment.begin, segment.length);
      const double share = kept.sum().item<double>() / static_cast<double>(segment.length);
      if (share > 0)
        factor_N.narrow(0, segment.begin, segment.length)
            .copy_(kept * ((1 - config_.mask_share) / share));
    }
    return factor_N.unsqueeze(1);
  }

  TokenEmbedConfig config_;
  std::string name_;
  WeightPtr token_, type_, task_;
  std::unique_ptr<Position> position_;
  std::unique_ptr<Norm> norm_;
  Linear project_;
};

}  // namespace

std::unique_ptr<Embed> build(const TokenEmbedConfig& config, const Builder& builder) {
  return std::make_unique<TokenEmbed>(config, builder);
}

}  // namespace tessera::nn
