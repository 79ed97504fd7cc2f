// A convolution over the tokens of every document, in groups of channels: its weights, the inputs
// that it keeps, its three paths.
//   y_t = bias + sum_k W_k x_(t + k - left)
// An encoder sees both sides (left = kernel / 2), a decoder the past alone (left = kernel - 1).
// Outside of a document stand zeros.
#pragma once

#include "tessera/nn/parts.h"

namespace tessera::nn {

class GroupedConv {
 public:
  /// Weights as declare_grouped_conv has declared them (grouped_conv_decl.h).
  GroupedConv(const Builder& builder, int64_t groups);
  /// y_ND; rows hold the inputs that the taps reach back to in their first tensor, where
  /// grouped_conv_state declares one.
  Tensor operator()(const Tensor& x_ND, const Context& context, const StateRows* rows) const;

 private:
  Tensor plain(const Tensor& padded) const;
  Tensor by_taps(const Tensor& padded) const;
  Tensor by_rows(const Tensor& padded) const;

  WeightPtr weight_, bias_;
  int64_t groups_, kernel_;
};

}  // namespace tessera::nn
