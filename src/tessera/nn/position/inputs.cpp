// Axial and convolutional positions: what is added to the embeddings.
#include "tessera/nn/mixer/segments.h"
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
    return x_ND + at::cat({ops::rows(*row_, at_row), ops::rows(*column_, at_column)}, 1)
                      .to(x_ND.scalar_type());
  }

 private:
  AxialConfig config_;
  WeightPtr row_, column_;
};

class Convolutional final : public Position {
 public:
  Convolutional(const ConvolutionalConfig& config, const Builder& builder)
      : config_(config), weight_(builder.weight("weight")), bias_(builder.weight("bias")) {}

  Tensor embed(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t left = context.causal ? config_.kernel - 1 : config_.kernel / 2;
    std::vector<Tensor> out;
    const BySegment part(*context.batch);
    for (size_t i = 0; i < context.batch->segments.size(); ++i) {
      const Segment& s = context.batch->segments[i];
      std::vector<Tensor> parts;  // what came before, and the call's own
      if (s.start > 0 && config_.kernel > 1) {
        require(rows != nullptr, "convolutional", "a document that starts at position {}", s.start);
        parts = (*rows)[i]->tokens(0).spans(std::max<int64_t>(s.start - left, 0), s.start);
      }
      parts.push_back(part(x_ND, i));
      if (rows != nullptr && config_.kernel > 1) {
        TokenBuffer& inputs = (*rows)[i]->tokens(0);
        parts.back() = inputs.stored(parts.back());
        inputs.append(parts.back());
      }
      const int64_t before = std::min(s.start, left);
      // zeros on both sides, so that there is one window of `kernel` rows per token
      const Tensor padded = at::constant_pad_nd(at::cat(parts).to(x_ND.scalar_type()),
                                                {0, 0, left - before, config_.kernel - 1 - left});
      out.push_back(ops::use_kernels(x_ND) ? by_rows(padded) : plain(padded));
    }
    if (out.empty()) return x_ND;
    const Tensor sums = at::cat(out) + bias_->tensor().to(x_ND.scalar_type());
    return x_ND + ops::activate(sums, ops::Activation::gelu);
  }

 private:
  Tensor plain(const Tensor& padded) const {
    const auto type = ops::widen_products(padded) ? at::kFloat : padded.scalar_type();
    const std::vector<int64_t> one{1}, none{0};
    const Tensor y_1DT = at::conv1d(padded.to(type).t().unsqueeze(0), weight_->tensor().to(type),
                                    {}, one, none, one, config_.groups);
    return y_1DT.squeeze(0).t().to(padded.scalar_type());
  }

  /// As products of windows and weights, batch-invariant, a few tokens at a time.
  Tensor by_rows(const Tensor& padded) const {
    constexpr int64_t kTokens = 64;
    const int64_t g = config_.groups, width = padded.size(1), k = config_.kernel;
    const Tensor weight_GOI =
        weight_->tensor().to(at::kFloat).reshape({g, width / g, width / g * k});
    const Tensor windows_TDK = padded.unfold(0, k, 1);
    const int64_t t = windows_TDK.size(0);
    std::vector<Tensor> out;
    for (int64_t begin = 0; begin < t; begin += kTokens) {
      const int64_t n = std::min(kTokens, t - begin);
      const Tensor windows_GTI =
          windows_TDK.narrow(0, begin, n).reshape({n, g, width / g * k}).transpose(0, 1);
      out.push_back(ops::row_products(windows_GTI, weight_GOI).transpose(0, 1).reshape({n, width}));
    }
    return at::cat(out);
  }

  ConvolutionalConfig config_;
  WeightPtr weight_, bias_;
};

}  // namespace

std::unique_ptr<Position> build(const AxialConfig& config, const Builder& builder) {
  return std::make_unique<Axial>(config, builder);
}
std::unique_ptr<Position> build(const ConvolutionalConfig& config, const Builder& builder) {
  return std::make_unique<Convolutional>(config, builder);
}

}  // namespace tessera::nn
