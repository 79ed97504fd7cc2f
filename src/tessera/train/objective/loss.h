// Next-token cross-entropy over chunks of tokens: logits exist for one chunk at a time, and the
// gradient of a chunk takes the place of its logits.
//   l_i = ln sum_c exp(z_ic) - z_it;   with smoothing e: (1 - e) l_i + e mean_c (lse_i - z_ic)
//   dl_i/dz = softmax(z_i) (1 + 2 w lse_i) - (1 - e) onehot(t) - e / C   with z-loss weight w
// Label smoothing gives every class e / C: Szegedy et al. 2016, arXiv:1512.00567, sec. 7. Given to
// the other C - 1 classes alone (Tensor2Tensor; Vaswani et al. 2017, sec. 5.4), it is that of e C /
// (C - 1). z-loss w lse^2: Chowdhery et al. 2022, arXiv:2204.02311, sec. 5. float32, or double for
// double. L2Wrap, RWKV-4's pull of the largest logit towards 0, adds u max_c z_ic to its gradient
// alone and to no loss: Peng et al. 2023, arXiv:2305.13048, and BlinkDL/RWKV-LM.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/objective/label_smoothing.h"

namespace tessera::train {

struct LossOptions {
  double scale = 1;  // of the gradients: 1 / targets of the whole update
  double z_loss = 0;
  double l2_wrap = 0;  // u
  LabelSmoothing smoothing = {};
  Tensor weight_N = {};     // where defined: of each row's gradient, besides
  bool gradients = true;    // of head_loss(): else the sums alone
  Tensor* nll_N = nullptr;  // where set: takes l_i of every row, 0 without a target, double
  /// Where set: of a chunk of logits, which may not be written to, what their gradient gains
  /// (undefined = nothing). `rows_N`: which rows of the hidden states they are of.
  std::function<Tensor(const Tensor& logits_NC, const Tensor& rows_N, const Tensor& targets_N)>
      beside = nullptr;
};

/// Sums over rows, as doubles.
struct TokenLosses {
  double nll = 0;       // of l_i without smoothing
  double smoothed = 0;  // of l_i with it; the same where there is none
  double z = 0;         // of w lse^2
  TokenLosses& operator+=(const TokenLosses& other);
};

/// Over the rows whose target is not negative, without what stands beside. logits_NC is overwritten
/// by scale * weight * (d(sum l + z-loss)/d logits + L2Wrap), 0 in rows without a target. Targets
/// int64 below C. Of equal largest logits one is pulled.
TokenLosses cross_entropy_(Tensor& logits_NC, const Tensor& targets_N, const LossOptions& options);

/// The head alone: the sums, whose gradients reach the head's parameters, and those that
/// reach `hidden_ND`, `scale` times: of `root` [M, D], its rows with targets (undefined: none do).
struct HeadLoss {
  TokenLosses sums;
  Tensor root, gradient;
  /// A number whose gradients are those; undefined where none reach it.
  Tensor share() const { return root.defined() ? (root * gradient).sum() : Tensor(); }
};
HeadLoss head_loss(const model::Model& model,
                   const Tensor& hidden_ND,
                   const Tensor& targets_N,
                   const LossOptions& options);

/// The sums, and the gradients of everything behind it, `scale` times, added to the parameters;
/// so are those of `added`, what parts add to the whole (undefined = none), which is not in the
/// result. A loss that is not finite is returned before any gradient passes the hidden states.
/// The gradients of everything behind `head`, and of `added`, which parts add to the whole
/// (undefined = none).
void backward_behind(const HeadLoss& head, const Tensor& added);

TokenLosses loss_and_backward(const model::Model& model,
                              const Tensor& hidden_ND,
                              const Tensor& targets_N,
                              const LossOptions& options,
                              const Tensor& added = {});

/// Tokens per chunk for C logits each.
int64_t loss_chunk(int64_t vocab);

}  // namespace tessera::train
