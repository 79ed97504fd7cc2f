#include "tessera/nn/mixer/transform/gmlp.h"

#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class Gmlp final : public Mixer {
 public:
  Gmlp(const GmlpConfig& config, const Builder& builder)
      : config_(config),
        in_(builder, "in"),
        out_(builder, "out"),
        tokens_(builder.weight("tokens.weight")),
        bias_(builder.weight("tokens.bias")) {
    if (!config.norm) return;
    spec::Scope scope = builder.scope();
    scope.width = config.d_hidden / 2;
    norm_ = build_norm(config.norm, builder.under("norm", scope));
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto halves = ops::activate(in_(x_ND, context), ops::Activation::gelu).chunk(2, -1);
    const Tensor v_NF = norm_ ? norm_->forward(halves[1], context.products) : halves[1];
    const BySegment part(*context.batch);
    const Tensor mixed_NF = over_segments(*context.batch, [&](size_t i, const Segment& s) {
      return mixed(part(v_NF, i), s.start, context, rows != nullptr ? (*rows)[i] : nullptr);
    });
    return out_(halves[0] * mixed_NF, context);
  }

 private:
  /// Rows start .. start + T of W_s v + b, for v_TF at those positions and the state's before them.
  /// As a product of v^T, whose rows are batch-invariant: positions that a token does not see only
  /// add zeros to its sum.
  Tensor mixed(const Tensor& v_TF, int64_t start, const Context& context, RowState* row) const {
    const int64_t t = v_TF.size(0), length = start + t;
    if (length > config_.max_length)
      fail(ErrorKind::input, "gmlp",
           "a document has {} tokens; this layer mixes at most {} (max_length); shorten the input",
           length, config_.max_length);
    Tensor seen_SF = v_TF;
    if (row != nullptr) {
      row->tokens(0).append(v_TF);
      const auto spans = row->tokens(0).spans(0, length);
      seen_SF = (spans.size() == 1 ? spans[0] : at::cat(spans)).to(v_TF.scalar_type());
    }
    Tensor w_TS = tokens_->tensor(context.products).narrow(0, start, t).narrow(1, 0, length);
    if (context.causal) w_TS = w_TS.tril(start);
    const Tensor y_FT =
        ops::linear(seen_SF.t(), ops::Weight::dense("tokens.weight", w_TS.contiguous()), nullptr,
                    context.products);
    const Tensor b_T = bias_->tensor().narrow(0, start, t).to(v_TF.scalar_type());
    return y_FT.t() + b_T.unsqueeze(1);
  }

  GmlpConfig config_;
  Linear in_, out_;
  std::unique_ptr<Norm> norm_;
  WeightPtr tokens_, bias_;
};

}  // namespace

std::unique_ptr<Mixer> build(const GmlpConfig& config, const Builder& builder) {
  return std::make_unique<Gmlp>(config, builder);
}

}  // namespace tessera::nn
