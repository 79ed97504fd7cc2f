#include "tessera/nn/mixer/linear/performer.h"

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/form.h"
#include "tessera/ops/linear/performer.h"

namespace tessera::nn {
namespace {

ops::FavorKernel kernel_of(RandomFeatures features) {
  switch (features) {
    case RandomFeatures::softmax:
      return ops::FavorKernel::softmax;
    case RandomFeatures::softmax_hyperbolic:
      return ops::FavorKernel::softmax_hyperbolic;
    case RandomFeatures::trigonometric:
      return ops::FavorKernel::trigonometric;
    case RandomFeatures::relu:
    case RandomFeatures::relu_deterministic:
      break;
  }
  return ops::FavorKernel::relu;
}

class Performer final : public Mixer {
 public:
  Performer(const PerformerConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        o_(builder, "o"),
        position_(build_position(config.position, builder.under("position"))),
        w_MD_(config.deterministic() ? at::eye(config.head_dim, at::kDouble) : draw(seed())) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, d = config_.head_dim;
    // what is exponentiated stays in float32: 16-bit scores would be wrong by percents
    const Tensor x = x_ND.to(ops::wide(x_ND));
    const Tensor q = position_->rotate(q_(x, context).reshape({n, h, d}), Side::query, context),
                 k = position_->rotate(k_(x, context).reshape({n, h, d}), Side::key, context),
                 v = v_(x_ND, context).reshape({n, h, d});
    if (rows != nullptr && context.training && config_.redraw_every > 0)
      fail(
          ErrorKind::spec, name_,
          "redraw_every = {} with a state that training carries on: its sums are of the directions "
          "before; set it to 0, or train with windows \"isolated\"",
          config_.redraw_every);
    const Tensor w =
        context.on_device(name_ + ".directions", directions(context)).to(ops::wide(x_ND));
    const auto favor = [&](const auto& rows_of) {
      return ops::Favor{
          rows_of(q),      rows_of(k),           rows_of(v), w, kernel_of(config_.features),
          config_.added(), context.products.type};
    };

    const Batch& batch = *context.batch;
    Tensor y_NHD;
    if (const int64_t t = batch.equal_length();
        rows == nullptr && t > 0 && !ops::documents_apart(x_ND)) {
      y_NHD = plain(favor([&](const Tensor& x) {
                      return x.reshape({n / t, t, h, d});
                    }),
                    context.causal);
    } else {
      const BySegment part(batch);
      y_NHD = over_segments(batch, [&](size_t i, const Segment& s) {
        const ops::Favor in = favor([&](const Tensor& x) { return part(x, i).unsqueeze(0); });
        RowState* row = rows != nullptr ? (*rows)[i] : nullptr;
        const Tensor y = ops::kernel_serves(ops::Op::favor, x_ND) ? scan(in, context.causal, row)
                         : row != nullptr                         ? continued(in, *row)
                                                                  : plain(in, context.causal);
        return y.reshape({s.length, h, d});
      });
    }
    return o_(y_NHD.reshape({n, h * d}).to(x_ND.scalar_type()), context);
  }

 private:
  RandomKey seed() const { return RandomKey(static_cast<uint64_t>(config_.seed)); }

  /// Those of the call: of the layer for good, or of some steps of training.
  Tensor directions(const Context& context) const {
    const int64_t draws = context.draws(config_.redraw_every);
    return draws == 0 ? w_MD_ : draw(seed().fold(static_cast<uint64_t>(draws)));
  }

  Tensor draw(const RandomKey& key) const {
    const auto rows = config_.rows == FeatureRows::gaussian   ? ops::FavorRows::gaussian
                      : config_.rows == FeatureRows::hadamard ? ops::FavorRows::hadamard
                      : config_.rows == FeatureRows::orthogonal
                          ? ops::FavorRows::orthogonal
                          : ops::FavorRows::orthogonal_sqrt_dim;
    return ops::favor_directions(key.fold(name_ + ".directions"), config_.n_features,
                                 config_.head_dim, rows);
  }

  Tensor plain(const ops::Favor& in, bool causal) const {
    return causal ? ops::favor_chunked(in, config_.chunk).first : ops::favor_bidirectional(in);
  }

  Tensor continued(const ops::Favor& in, RowState& row) const {
    auto [y, after] = ops::favor_chunked(
        in, config_.chunk,
        {row.fixed(0).unsqueeze(0), row.fixed(1).unsqueeze(0), row.fixed(2).unsqueeze(0)});
    row.fixed(0) = after.sums_BHMU.squeeze(0);
    row.fixed(1) = after.values_BHU.squeeze(0);
    row.fixed(2) = after.maximum_BH.squeeze(0);
    return y;
  }

  /// The kernel, token after token, from the row's state or from nothing.
  Tensor scan(const ops::Favor& in, bool causal, RowState* row) const {
    const auto held = [&](size_t i, std::vector<int64_t> shape) {
      shape.insert(shape.begin(), 1);
      return row != nullptr ? row->fixed_in_place(i).unsqueeze(0) : at::zeros(shape);
    };
    const int64_t h = config_.n_heads, u = config_.head_dim + 1;
    return ops::favor_scan(in, causal,
                           {held(0, {h, config_.phi_width(), u}), held(1, {h, u}), held(2, {h})});
  }

  PerformerConfig config_;
  std::string name_;
  Linear q_, k_, v_, o_;
  std::unique_ptr<Position> position_;
  Tensor w_MD_;
};

}  // namespace

std::unique_ptr<Mixer> build(const PerformerConfig& config, const Builder& builder) {
  return std::make_unique<Performer>(config, builder);
}

}  // namespace tessera::nn
