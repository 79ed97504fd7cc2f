// FAVOR+: softmax attention estimated by positive random features, in linear time. Choromanski et
// al. 2020, arXiv:2009.14794.
//   phi(x)_r = M^-1/2 (exp(w_r . y - |y|^2 / 2 - c) + eps),  y = x D^-1/4
// c is the row's largest w_r . y for a query, and for keys the largest of all visible ones: with
// eps = 0 it cancels, and it keeps the exponentials at most 1.
#pragma once

#include <utility>

#include "tessera/base/rng.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/weights/product_settings.h"

namespace tessera::ops {

enum class FavorKernel {
  softmax,             // phi above
  softmax_hyperbolic,  // with w and -w: 2 M features
  trigonometric,       // exp(|y|^2 / 2) [sin(w_r . y), cos(w_r . y)]: 2 M features of both signs;
                       // a key's exponent is at most 60
  relu,                // max(w_r . x, 0) + eps: no estimate of softmax, a kernel of its own
};

struct Favor {
  Tensor q_BTHD, k_BTHD, v_BTHV;
  Tensor w_MD;
  FavorKernel kernel = FavorKernel::softmax;
  double eps = 0;
  ProductType products = ProductType::float32;  // of scores, where gradients are recorded
};

/// What the keys so far left: sums of exp(..) [v, 1] per feature, of [v, 1], and the largest score.
/// A count of 0 in values' last channel means none.
struct FavorState {
  Tensor sums_BHMU, values_BHU, maximum_BH;  // U = V + 1
};

/// Directions w_r: standard normal rows, or rows orthogonal in blocks of D with the norms of such
/// rows (or sqrt(D) each). In double.
/// hadamard: of norm sqrt(D), D a power of two; a block is sqrt(D) H D_1 H D_2 H D_3 with H = H_D /
/// sqrt(D) and diagonals of random signs.
enum class FavorRows { gaussian, orthogonal, orthogonal_sqrt_dim, hadamard };
Tensor favor_directions(const RandomKey& key, int64_t m, int64_t d, FavorRows rows);

/// phi of queries x_BTHD (one maximum per row): [B, T, H, M], or 2 M.
Tensor favor_query_features(const Tensor& x_BTHD, const Favor& how);

/// Every query sees all keys: the definition, in linear time. [B, T, H, V].
Tensor favor_bidirectional(const Favor& in);

/// Causal, quadratic inside chunks of `chunk` tokens; continues from `state` where its tensors are
/// defined. Row i uses the largest score of keys 0 .. i. Returns the output and the final state.
std::pair<Tensor, FavorState> favor_chunked(const Favor& in,
                                            int64_t chunk,
                                            const FavorState& state = {});

/// The batch-invariant kernel for B = 1, both directions; a causal call updates `state` in place
/// (zeros at first).
Tensor favor_scan(const Favor& in, bool causal, const FavorState& state);

}  // namespace tessera::ops
