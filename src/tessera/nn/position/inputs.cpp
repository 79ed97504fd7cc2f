// Axial and convolutional positions: what is added to the embeddings.
#include "tessera/nn/mixer/convolution/grouped_conv.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/position/axial.h"
#include "tessera/nn/position/convolutional.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class Axial final : public Position {
 public:
  Axial(const AxialConfig& config, const Builder& builder)
      : config_(config),
        row_(builder.weight("row.weight")),
        column_(builder.weight("column.weight")) {}

  Tensor embed(const Tensor& x_ND, Context& context, const StateRows*) const override {
    const Tensor& positions = context.batch->positions_N;
    const Tensor at_row = at::div(positions, config_.columns, "floor"),
                 at_column = at::remainder(positions, config_.columns);
    return x_ND + at::cat({ops::rows(*row_, at_row, context.products),
                           ops::rows(*column_, at_column, context.products)},
                          1)
                      .to(x_ND.scalar_type());
  }

 private:
  AxialConfig config_;
  WeightPtr row_, column_;
};

class Convolutional final : public Position {
 public:
  Convolutional(const ConvolutionalConfig& config, const Builder& builder)
      : conv_(builder, config.groups) {}

  Tensor embed(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    return x_ND + ops::activate(conv_(x_ND, context, rows), ops::Activation::gelu);
  }

 private:
  GroupedConv conv_;
};

}  // namespace

std::unique_ptr<Position> build(const AxialConfig& config, const Builder& builder) {
  return std::make_unique<Axial>(config, builder);
}
std::unique_ptr<Position> build(const ConvolutionalConfig& config, const Builder& builder) {
  return std::make_unique<Convolutional>(config, builder);
}

}  // namespace tessera::nn
