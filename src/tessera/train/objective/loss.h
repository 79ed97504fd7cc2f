// Cross-entropy over chunks of tokens: logits exist for one chunk at a time, and the gradient of a
// chunk replaces its logits in place.
//   l_i = ln sum_c exp(z_ic) - z_it;   with smoothing e: (1 - e) l_i + e mean_c (lse_i - z_ic)
//   dl_i/dz = softmax(z_i) (1 + 2 w lse_i) - (1 - e) onehot(t) - e / C   with z-loss weight w
// Label smoothing gives every class e / C: Szegedy et al. 2016, arXiv:1512.00567, sec. 7. Given to
// the other C - 1 classes alone (Tensor2Tensor; Vaswani et al. 2017, sec. 5.4), it is that of e C /
// (C - 1). z-loss w lse^2: Chowdhery et al. 2022, arXiv:2204.02311, sec. 5. float32, or double for
// double. L2Wrap, RWKV-4's pull of the largest logit towards 0, adds u max_c z_ic to its gradient
// alone and to no loss: Peng et al. 2023, arXiv:2305.13048, and BlinkDL/RWKV-LM.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/loop/deferred_number.h"
#include "tessera/train/objective/label_smoothing.h"

namespace tessera::train {

struct LossOptions {
  double scale = 1;  // of the gradients: 1 / targets of the whole update
  double z_loss = 0;
  double l2_wrap = 0;  // u
  LabelSmoothing smoothing = {};
  Tensor weight_N = {};   // if defined: additional factor of each row's gradient
  bool gradients = true;  // of head_loss(): otherwise the sums only
  ops::ProductType products = ops::ProductType::float32;  // of the head
  Tensor* nll_N = nullptr;  // if set: receives l_i of every row, 0 without a target, double
  /// If set: an additional gradient for a chunk of logits, which must not be written to (undefined
  /// = none). `rows_N`: the rows of the hidden states in the chunk.
  std::function<Tensor(const Tensor& logits_NC, const Tensor& rows_N, const Tensor& targets_N)>
      added_gradient = nullptr;
};

/// Sums over rows, in double.
struct TokenLosses {
  DeferredNumber nll;       // of l_i without smoothing
  DeferredNumber smoothed;  // of l_i with smoothing; equal without
  DeferredNumber z;         // of w lse^2
  TokenLosses& operator+=(const TokenLosses& other);
  /// True if they are known to be infinite or NaN, without reading them.
  bool known_bad() const;
};

/// Sum in double, without its gradient: on a CPU in order and read, on another device not read yet.
DeferredNumber deferred_sum(const Tensor& values);

/// Losses of the rows whose target is not negative, without the additional gradient. logits_NC is
/// overwritten with scale * weight * (d(sum l + z-loss)/d logits + L2Wrap), 0 in rows without a
/// target. Targets int64 below C. Of equal largest logits, L2Wrap affects one.
TokenLosses cross_entropy_(Tensor& logits_NC, const Tensor& targets_N, const LossOptions& options);

/// Loss of the head: the sums, whose gradients are added to the head's parameters, and the
/// gradients for `hidden_ND`, times `scale`, as those of `root` [M, D], its rows with targets
/// (undefined: none).
struct HeadLoss {
  TokenLosses sums;
  Tensor root, gradient;
  /// A scalar with those gradients; undefined if there are none.
  Tensor share() const { return root.defined() ? (root * gradient).sum() : Tensor(); }
};
HeadLoss head_loss(const model::Model& model,
                   const Tensor& hidden_ND,
                   const Tensor& targets_N,
                   const LossOptions& options);

/// Backward pass from `head`, and from `added`, additional losses of parts (undefined = none), to
/// all parameters before it.
void backward_from(const HeadLoss& head, const Tensor& added);

/// head_loss() and, unless it is known_bad(), backward_from(): adds the gradients, times `scale`,
/// to the parameters. `added` is not in the result.
TokenLosses loss_and_backward(const model::Model& model,
                              const Tensor& hidden_ND,
                              const Tensor& targets_N,
                              const LossOptions& options,
                              const Tensor& added = {});

/// Tokens per chunk for C logits each.
int64_t loss_chunk(int64_t vocab);

}  // namespace tessera::train
