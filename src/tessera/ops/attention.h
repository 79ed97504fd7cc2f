// Softmax attention of one sequence: the plain differentiable form, and the inference kernel.
#pragma once

#include <functional>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// What the scores go through. A window counts keys with the query's own; 0 = all.
struct ScoreOptions {
  double scale = 1;
  double softcap = 0;
  bool causal = true;
  int64_t window = 0;  // causal: query - window < key <= query; else |query - key| <= window / 2
  double dropout = 0;  // on the weights; 0 outside training
};

/// Keys and values at consecutive positions from `first`.
struct KeyValues {
  Tensor k_SGD, v_SGD;
  int64_t first = 0;
};

/// q_THD, queries at positions start .. start + T - 1, against the keys of `kv` (in ascending order
/// of position). Out: [T, H, D]. Query head h reads kv head floor(h * G / H). A query that sees no
/// key gives 0. Takes the batch-invariant kernel where use_kernels(q), else the plain form.
Tensor attention(const Tensor& q_THD,
                 const std::vector<KeyValues>& kv,
                 int64_t start,
                 const ScoreOptions& options,
                 const std::function<Tensor(const Tensor&)>& drop = {});

/// The same for B sequences of equal length without a past, q_BTHD, k and v_BTGD: one fused call in
/// training.
Tensor attention_equal(const Tensor& q_BTHD,
                       const Tensor& k_BTGD,
                       const Tensor& v_BTGD,
                       const ScoreOptions& options,
                       const std::function<Tensor(const Tensor&)>& drop = {});

/// The batch-invariant kernel: float32 on a CPU, no gradient.
Tensor attention_kernel(const Tensor& q_THD,
                        const std::vector<KeyValues>& kv,
                        int64_t start,
                        const ScoreOptions& options);

/// The definition: softmax over visible keys in float32 or double. q_BHTD, k and v_BGSD, `visible`
/// [T, S] bool.
Tensor attention_plain(const Tensor& q_BHTD,
                       const Tensor& k_BGSD,
                       const Tensor& v_BGSD,
                       const Tensor& visible,
                       const ScoreOptions& options,
                       const std::function<Tensor(const Tensor&)>& drop = {});

/// Dense mask [T, S]: query positions start .., key positions first ...
Tensor visible_keys(int64_t start,
                    int64_t t,
                    int64_t first,
                    int64_t s,
                    const ScoreOptions& options,
                    at::Device device);

}  // namespace tessera::ops
