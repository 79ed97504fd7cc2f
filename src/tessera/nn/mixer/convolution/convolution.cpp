#include "tessera/nn/mixer/convolution/convolution.h"

#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/mixer/convolution/grouped_conv.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class Convolution final : public Mixer {
 public:
  Convolution(const ConvolutionConfig& config, const Builder& builder)
      : act_(kernel_of(config.act)), conv_(builder, config.groups) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    return ops::activate(conv_(x_ND, context, rows), act_);
  }

 private:
  kernels::Activation act_;
  GroupedConv conv_;
};

}  // namespace

std::unique_ptr<Mixer> build(const ConvolutionConfig& config, const Builder& builder) {
  return std::make_unique<Convolution>(config, builder);
}

}  // namespace tessera::nn
