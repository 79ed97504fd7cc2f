#include "tessera/nn/mixer/hyena.h"

#include <cmath>

#include "tessera/nn/mixer/causal_conv.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/lti.h"

namespace tessera::nn {
namespace {

class Hyena final : public Mixer {
 public:
  Hyena(const HyenaConfig& config, const Builder& builder)
      : config_(config),
        in_(builder, "in"),
        out_(builder, "out"),
        conv_(builder, "conv", kernels::Activation::identity),
        frequency_(builder.weight("filter.frequency")),
        bias_(builder.weight("bias")) {
    layers_.emplace_back(builder, "filter.in");
    for (int64_t i = 0; i < config.filter_layers; ++i)
      layers_.emplace_back(builder, fmt::format("filter.hidden.{}", i));
    last_ = Linear(builder, "filter.out");
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const Batch& batch = *context.batch;
    for (const Segment& s : batch.segments)
      if (s.length > config_.max_length)
        fail(ErrorKind::input, "hyena",
             "a document has {} tokens; this layer's filters cover {} (max_length); shorten the "
             "input",
             s.length, config_.max_length);
    const int64_t m = config_.order;
    auto parts = conv_(in_(x_ND), batch, nullptr, 0).chunk(m + 1, -1);  // x_0 .. x_{M-1}, v
    // at inference all filters, whatever the documents: their bits must not depend on neighbours
    const Tensor k_LOD =
        filters(x_ND, at::GradMode::is_enabled() ? batch.longest() : config_.max_length);
    Tensor v_ND = parts.back();
    for (int64_t i = m - 1; i > 0; --i) {
      const Tensor z_ND = v_ND * parts[static_cast<size_t>(i)];
      const Tensor skip_D = bias_->tensor().select(0, m - 1 - i).to(ops::wide(x_ND));
      const Tensor far_ND = convolved(z_ND, k_LOD.select(1, m - 1 - i), batch);
      v_ND = (far_ND + skip_D * z_ND).to(x_ND.scalar_type());
    }
    return out_(v_ND * parts[0]);
  }

 private:
  /// The windowed filters of the first `length` positions, [L, M - 1, D], in double: each sine
  /// layer multiplies rounding errors by about its frequency.
  Tensor filters(const Tensor& x, int64_t length) const {
    const auto options = x.options().dtype(at::kDouble);
    const auto l = static_cast<double>(config_.max_length);
    const Tensor t = at::arange(length, options).unsqueeze(1);
    const Tensor f =
        at::linspace(1e-4, static_cast<double>(config_.bands) - 1, config_.bands, options);
    const Tensor angle = f * (2 * M_PI / l) * t;
    const Tensor frequency = frequency_->tensor().to(at::kDouble);
    Tensor h = at::cat({t / (l - 1), angle.cos(), -angle.sin()}, 1);
    for (const Linear& layer : layers_) h = at::sin(frequency * layer(h));
    const Tensor decay = at::linspace(std::log(1e-2) / 1.5, std::log(1e-2) / 0.3,
                                      (config_.order - 1) * x.size(1), options);
    const Tensor k = last_(h) * (t / (l - 1) * decay).exp();
    return k.reshape({length, x.size(1), config_.order - 1}).transpose(1, 2);
  }

  static Tensor convolved(const Tensor& z_ND, const Tensor& k_LD, const Batch& batch) {
    if (at::GradMode::is_enabled()) return ops::fft_conv(z_ND, k_LD, lengths_of(batch));
    // each document alone and at an aligned address: its bits must not depend on its neighbours
    const BySegment part(batch);
    return over_segments(batch, [&](size_t i, const Segment& s) {
      return ops::fft_conv(part(z_ND, i).clone(), k_LD, {s.length});
    });
  }

  HyenaConfig config_;
  Linear in_, out_, last_;
  CausalConv conv_;
  std::vector<Linear> layers_;
  WeightPtr frequency_, bias_;
};

}  // namespace

std::unique_ptr<Mixer> build(const HyenaConfig& config, const Builder& builder) {
  return std::make_unique<Hyena>(config, builder);
}

}  // namespace tessera::nn
