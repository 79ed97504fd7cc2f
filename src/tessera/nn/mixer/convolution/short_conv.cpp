#include "tessera/nn/mixer/convolution/short_conv.h"

#include "tessera/nn/mixer/convolution/causal_conv.h"

namespace tessera::nn {
namespace {

class ShortConv final : public Mixer {
 public:
  explicit ShortConv(const Builder& builder)
      : in_(builder, "in"),
        out_(builder, "out"),
        conv_(builder, "conv", kernels::Activation::identity) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto parts = in_(x_ND, context).chunk(3, -1);  // b, c, x
    return out_(parts[1] * conv_(parts[0] * parts[2], *context.batch, rows, 0), context);
  }

 private:
  Linear in_, out_;
  CausalConv conv_;
};

}  // namespace

std::unique_ptr<Mixer> build(const ShortConvConfig&, const Builder& builder) {
  return std::make_unique<ShortConv>(builder);
}

}  // namespace tessera::nn
