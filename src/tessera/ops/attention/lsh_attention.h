// Attention to keys of like direction: tokens are sorted by the hash of their shared query-key
// vector and attend inside chunks of the sorted list. Kitaev, Kaiser, Levskaya 2020,
// arXiv:2001.04451; the order of masks and the circular neighbourhood follow the released code.
#pragma once

#include <vector>

#include "tessera/base/rng.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct Lsh {
  int64_t chunk = 64;  // c, tokens of a chunk of the sorted list
  int64_t before = 1;  // neighbouring chunks that are seen, around the ends of the list
  int64_t after = 0;
  bool causal = true;
  /// One per factor n_f of the bucket count, [R, H, D, n_f / 2]: bucket = argmax [x R; -x R], and
  /// the factors' buckets as digits.
  std::vector<Tensor> rotations = {};
  int64_t pad_to = 0;  // the list of a round is filled up to a multiple of this; 0 = of the chunk
  Tensor buckets_RHT = {};  // where the hash is known already; may be undefined
  /// Added to the scores: bias_HR[h][clamp(zero + key - query, 0, R - 1)]; undefined = nothing.
  Tensor bias_HR = {};
  int64_t zero = 0;
  bool same_bucket_only =
      false;            // hides keys in reach that another bucket, or round, has put there
  bool dedupe = false;  // a key that is in reach n times counts once

  int64_t rounds() const { return rotations.at(0).size(0); }
  /// Places that a round's list has for a document of t tokens.
  int64_t padded(int64_t t) const {
    const int64_t unit = pad_to > 0 ? pad_to : chunk;
    return (t + unit - 1) / unit * unit;
  }
};

/// The bucket count of a document as the released code chooses it: a power of two near 2 T / c, in
/// two factors when it is large for `max_length` positions.
std::vector<int64_t> lsh_bucket_factors(int64_t length, int64_t chunk, int64_t max_length);

/// Rotations from a stream, in double.
std::vector<Tensor> lsh_rotations(const RandomKey& key,
                                  const std::vector<int64_t>& factors,
                                  int64_t rounds,
                                  int64_t heads,
                                  int64_t d);

/// Rotations as torch.randn draws them, of [H, D, R, sum of n_f / 2] in float32, right after
/// torch.manual_seed(seed): those of released models.
std::vector<Tensor> lsh_torch_rotations(
    uint64_t seed, const std::vector<int64_t>& factors, int64_t rounds, int64_t heads, int64_t d);

/// qk_THD -> [R, H, T] int64; no gradient.
Tensor lsh_buckets(const Tensor& qk_THD, const Lsh& how);

/// One document, qk_THD and v_THV -> [T, H, V]. Queries are qk, keys their unit vectors. A token
/// sees itself only where it sees nothing else. Rounds are weighted by their sums of exponentials,
/// which `lse_THR`, where given, receives. A document of at most one chunk is attended as a whole.
/// Batch-invariant kernels where Form::kernel serves qk, else with gradients, memory linear in T.
Tensor lsh_attention(const Tensor& qk_THD,
                     const Tensor& v_THV,
                     const Lsh& how,
                     Tensor* lse_THR = nullptr);

}  // namespace tessera::ops
