#include "tessera/nn/mixer/convolution/hyena.h"

#include <any>
#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/convolution/long_conv.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/lti_scan.h"

namespace tessera::nn {
namespace {

class Hyena final : public Mixer {
 public:
  Hyena(const HyenaConfig& config, const Builder& builder)
      : config_(config),
        name_(fmt::format("hyena {} {}", builder.scope().layer, builder.prefix())),
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

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Batch& batch = *context.batch;
    if (batch.longest() > config_.max_length)
      fail(ErrorKind::input, "hyena",
           "a document has {} tokens; this layer's filters cover {} (max_length); shorten the "
           "input",
           batch.longest(), config_.max_length);
    const int64_t m = config_.order;
    auto parts = conv_(in_(x_ND, context), batch, rows, 0).chunk(m + 1, -1);  // x_0 .. x_{M-1}, v
    const Tensor k_LOD = filters(x_ND, context);
    Tensor v_ND = parts.back();
    for (int64_t i = m - 1; i > 0; --i) {
      const int64_t order = m - 1 - i;
      const Tensor z_ND = v_ND * parts[static_cast<size_t>(i)];
      const Tensor skip_D = bias_->tensor().select(0, order).to(ops::wide(x_ND));
      const Tensor far_ND =
          convolved(z_ND, k_LOD.select(1, order), batch, rows, static_cast<size_t>(1 + order));
      v_ND = (far_ND + ops::spread(skip_D, z_ND) * z_ND).to(x_ND.scalar_type());
    }
    return out_(v_ND * parts[0], context);
  }

 private:
  /// The filters of a call, [L, M - 1, D] in x's wide type. At inference by blocks of positions,
  /// so that no bit depends on how long the documents are; with a state each block once.
  Tensor filters(const Tensor& x_ND, Context& context) const {
    const int64_t length = context.batch->longest();
    if (at::GradMode::is_enabled()) return filters(x_ND, 0, length, context);
    Tensor held;
    std::any* cell = context.lasting == nullptr ? nullptr : &(*context.lasting)[name_];
    if (cell != nullptr && cell->has_value()) held = std::any_cast<const Tensor&>(*cell);
    std::vector<Tensor> blocks;
    if (held.defined()) blocks.push_back(held);
    for (int64_t first = held.defined() ? held.size(0) : 0; first < length; first += kBlock)
      blocks.push_back(filters(x_ND, first, std::min(first + kBlock, config_.max_length), context));
    if (blocks.size() == 1) held = blocks[0];
    if (blocks.size() > 1) held = at::cat(blocks);
    if (cell != nullptr) *cell = held;
    return held;
  }

  /// The windowed filters of positions first .. end - 1, computed in double: each sine layer
  /// multiplies rounding errors by about its frequency.
  Tensor filters(const Tensor& x, int64_t first, int64_t end, const Context& context) const {
    const auto options = x.options().dtype(at::kDouble);
    const auto l = static_cast<double>(config_.max_length);
    const Tensor t = at::arange(first, end, options).unsqueeze(1);
    const Tensor f =
        at::linspace(1e-4, static_cast<double>(config_.bands) - 1, config_.bands, options);
    const Tensor angle = f * (2 * M_PI / l) * t;
    const Tensor frequency = frequency_->tensor().to(at::kDouble);
    Tensor h = at::cat({t / (l - 1), angle.cos(), -angle.sin()}, 1);
    for (const Linear& layer : layers_) {
      const Tensor z = layer(h, context);
      h = at::sin(ops::spread(frequency, z) * z);
    }
    const Tensor decay = at::linspace(std::log(1e-2) / 1.5, std::log(1e-2) / 0.3,
                                      (config_.order - 1) * x.size(1), options);
    const Tensor k = last_(h, context) * ((t / (l - 1) * decay).exp() + config_.shift);
    return k.reshape({end - first, x.size(1), config_.order - 1})
        .transpose(1, 2)
        .to(ops::wide(x))
        .contiguous();
  }

  /// The long convolution of every document, from the past inputs where there is a state.
  static Tensor convolved(const Tensor& z_ND,
                          const Tensor& k_LD,
                          const Batch& batch,
                          const StateRows* rows,
                          size_t slot) {
    if (rows == nullptr && at::GradMode::is_enabled())
      return ops::fft_conv(z_ND, k_LD, lengths_of(batch));
    const BySegment part(batch);
    const bool apart = ops::documents_apart(z_ND);
    return over_segments(batch, apart, pairs_of(batch), [&](size_t i, const Segment& s) {
      if (rows == nullptr) return ops::long_conv({part(z_ND, i)}, k_LD, s.length);
      TokenBuffer& past = (*rows)[i]->tokens(slot);
      past.append(part(z_ND, i));
      return ops::long_conv(past.spans(0, s.start + s.length), k_LD, s.length);
    });
  }

  static constexpr int64_t kBlock = 256;  // positions whose filters are made at once

  HyenaConfig config_;
  std::string name_;  // of this use: those of shared parameters may have adapters of their own
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
