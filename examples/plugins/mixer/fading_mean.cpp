#include "fading_mean.h"

#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/plugin.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/channel_scan.h"

namespace fading_mean_plugin {

using namespace tessera;  // spec, ops
using namespace tessera::nn;

void FadingMeanConfig::check(const spec::Scope& scope) const {
  require_causal(scope, "fading_mean");
}

void FadingMeanConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("i", width, scope.d_model, false);
  list.linear("g", width, scope.d_model, false);
  // a = sigmoid(lambda): from 0.5, the last two tokens, to 0.998, the last 500
  list.add({"lambda", {width}, spec::Init::uniform(0, 6), spec::ParamKind::structural});
  list.linear("o", scope.d_model, width, false, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> FadingMeanConfig::state(const spec::Scope&) const {
  return {{"h", spec::StateDecl::Kind::fixed, {width}}};
}

double FadingMeanConfig::extra_flops(const spec::Scope&, int64_t) const {
  return 6.0 * static_cast<double>(width);
}

namespace {

class FadingMean final : public nn::Mixer {
 public:
  FadingMean(const FadingMeanConfig& config, const Builder& builder)
      : config_(config),
        i_(builder, "i"),
        g_(builder, "g"),
        o_(builder, "o"),
        lambda_(builder.weight("lambda")) {}

  /// x_ND: the tokens of all documents of the batch; rows: their states, null in training.
  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    // the recurrence runs in float32, or in double where the model does
    const Tensor u_NW = i_(x_ND, context).to(ops::wide(x_ND));
    const Tensor lambda_NW =
        ops::expanded(lambda_->tensor().to(u_NW.scalar_type()), u_NW.sizes()).contiguous();
    const Tensor keep_NW = ops::activate(lambda_NW, ops::Activation::sigmoid);
    const Tensor write_NW = ops::activate(-lambda_NW, ops::Activation::sigmoid);
    const Tensor h_NW =
        scan(keep_NW, write_NW * u_NW, *context.batch, rows, ops::documents_apart(x_ND));
    return o_(ops::gated(g_(x_ND, context), h_NW.to(x_ND.scalar_type()), ops::Activation::silu),
              context);
  }

 private:
  /// h_t = a_t h_{t-1} + b_t: whole documents, or the tokens that follow the states of their rows.
  /// `kernels`: without gradients, on float32.
  Tensor scan(const Tensor& a_NW,
              const Tensor& b_NW,
              const Batch& batch,
              const StateRows* rows,
              bool kernels) const {
    if (rows == nullptr && !kernels)
      return ops::channel_scan(a_NW, b_NW, lengths_of(batch), config_.chunk);
    const BySegment part(batch);
    return over_segments(batch, kernels, [&](size_t i, const Segment&) {
      const Tensor a = part(a_NW, i), b = part(b_NW, i);
      if (kernels) {
        Tensor state = rows != nullptr ? (*rows)[i]->fixed_in_place(kH)
                                       : at::zeros({config_.width}, a.options());
        return ops::channel_scan_kernel(a, b, state);
      }
      Tensor& state = (*rows)[i]->fixed(kH);
      const auto [h, last] = ops::channel_scan_from(a, b, config_.chunk, state.to(a.scalar_type()));
      state = last.to(state.scalar_type());
      return h;
    });
  }

  static constexpr size_t kH = 0;  // as declared in FadingMeanConfig::state
  FadingMeanConfig config_;
  Linear i_, g_, o_;
  WeightPtr lambda_;
};

}  // namespace

std::unique_ptr<Mixer> build(const FadingMeanConfig& config, const Builder& builder) {
  return std::make_unique<FadingMean>(config, builder);
}

TESSERA_PLUGIN {
  add<spec::Slot::mixer, FadingMeanConfig>("fading_mean");
}

}  // namespace fading_mean_plugin
