// Softmax attention: the definition, the fused training path, the chunked form whose memory is
// linear in the keys, and the batch-invariant inference kernel. attention_form.h chooses; callers
// do not.
//
//   s_ij = scale q_i . k_j;   s <- c tanh(s / c);   s <- s + bias_ij;   hidden keys leave
//   p_ij = m_ij exp(s_ij) / (sum_j m_ij exp(s_ij) + exp(sink));   o_i = sum_j p_ij v_j (+ term)
//
// m_ij is the pattern's multiplicity. A query that sees no key gives 0.
// Dao et al. 2022, arXiv:2205.14135; Rabe, Staats 2021, arXiv:2112.05682 (chunks).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tessera/kernels/attention/visibility.h"
#include "tessera/kernels/weights/gemm.h"
#include "tessera/ops/attention/attention_merge.h"
#include "tessera/ops/random.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Queries and keys of one block of scores, heads before tokens; keys one per query head.
struct ScoreBlock {
  const Tensor& q_BHTD;
  const Tensor& k_BHSD;
  int64_t first_query = 0, first_key = 0;  // positions
  double scale = 1;
  int64_t query_step = 1, key_step = 1;  // from one position to the next
};

/// What a position scheme adds to the scores, in either of two forms.
struct ScoreTerm {
  /// By distance alone: bias_HR[h][clamp(zero + key - query, 0, R - 1)]; one row serves all heads.
  /// On any device.
  Tensor bias_HR = {};
  int64_t zero = 0;

  /// From queries, keys and positions: [B or 1, H or 1, T, S], added after scale and cap. `inputs`
  /// are all tensors the functions read that gradients shall reach; they are handed back as the
  /// last argument. Where Form::kernel serves q, a row's bits must not depend on the other rows.
  std::function<Tensor(const ScoreBlock&, const std::vector<Tensor>& inputs)> bias = nullptr;
  /// From the weights [B, H, T, S]: what they add to the output, [B, H, T, Dv]. Where it is given,
  /// the weights are needed as a tensor.
  std::function<Tensor(
      const Tensor& weights_BHTS, const ScoreBlock&, const std::vector<Tensor>& inputs)>
      values = nullptr;
  std::vector<Tensor> inputs = {};
  /// Whether `bias` reads every key from the key of a score to its query, keys that no query sees
  /// among them: a block of keys then has no gaps and reaches its queries.
  bool keys_between = false;
  /// Numbers that `bias` holds for one score while it computes it, about.
  int64_t numbers = 1;

  explicit operator bool() const { return bias_HR.defined() || bias || values; }
};

/// What the scores go through. A window counts keys with the query's own; 0 = all.
struct ScoreOptions {
  double scale = 1;
  double softcap = 0;
  bool causal = true;
  int64_t window = 0;  // causal: query - window < key <= query; else |query - key| <= window / 2
  Dropout dropout =
      {};  // of the weights [B, H, T, S], S the keys of the call; none outside training
  /// When set it replaces causal and window.
  std::shared_ptr<const kernels::Visibility> visibility = nullptr;
  ScoreTerm term = {};
  Tensor sinks_H = {};  // a logit that joins each head's denominator; undefined = none
  /// When defined, of the shape of q: what keys at positions below far_end meet instead of q.
  Tensor far_q = {};
  int64_t far_end = 0;
  /// Type of queries, keys, values and weights in products on a device, of numbers in float32; on a
  /// CPU they are float32.
  kernels::ProductType products = kernels::ProductType::float32;
};

/// Keys and values at consecutive positions from `first`, perhaps as a state stores them
/// (kv_rows.h), both alike.
struct KeyValues {
  Tensor k_SGD, v_SGD;
  int64_t first = 0;
  /// int64 [1] on the device: the position of the one query and of the last key that it sees, where
  /// the tensors hold keys of any later positions too, from position 0 on, and `start` is an upper
  /// bound (recorded_attention.h). Undefined: `start` is its position.
  Tensor place = {};
};

/// q_THD, queries at positions start .. start + T - 1, against the keys of `kv`, in ascending order
/// of position; gaps between them must be hidden. Out: [T, H, Dv]. Query head h reads kv head
/// floor(h * G / H). A query that sees no key gives 0.
Tensor attention(const Tensor& q_THD,
                 const std::vector<KeyValues>& kv,
                 int64_t start,
                 const ScoreOptions& options);

/// Whether sequences under these options are computed by kernels alone, whatever else is computed
/// them.
bool may_go_side_by_side(const Tensor& q, const ScoreOptions& options);

/// One of several sequences that are decoded together.
struct AttentionCall {
  Tensor q_THD;
  std::vector<KeyValues> kv;
  int64_t start = 0;
  ScoreOptions options = {};
};
/// The same for all of them, their rows one after another, [N, H, Dv]: the kernel takes them in one
/// parallel region where their terms allow it.
Tensor attention(const std::vector<AttentionCall>& calls);

/// The same for B sequences of equal length without a past, q_BTHD, k and v_BTGD.
Tensor attention_equal(const Tensor& q_BTHD,
                       const Tensor& k_BTGD,
                       const Tensor& v_BTGD,
                       const ScoreOptions& options);

/// The batch-invariant kernel: float32 on a CPU, no gradient.
Tensor attention_kernel(const Tensor& q_THD,
                        const std::vector<KeyValues>& kv,
                        int64_t start,
                        const ScoreOptions& options);
/// The same with the weights of a few queries at a time as a tensor, for a term of the values.
Tensor attention_kernel_of_weights(const Tensor& q_THD,
                                   const std::vector<KeyValues>& kv,
                                   int64_t start,
                                   const ScoreOptions& options);

/// The definition: softmax over visible keys in float32 or double. q_BHTD at positions start ..,
/// k and v_BGSD at positions first ... Keeps all T x S scores. What a pattern shows is asked of its
/// predicate (Visibility::multiplicity) alone, pair by pair.
Tensor attention_plain(const Tensor& q_BHTD,
                       const Tensor& k_BGSD,
                       const Tensor& v_BGSD,
                       int64_t start,
                       int64_t first,
                       const ScoreOptions& options);

/// The same of some of a sequence's keys, with the log of each row's sum of exponentials, [B, H,
/// T]: sinks included, -inf where no key is seen.
PartialAttention attention_part(const Tensor& q_BHTD,
                                const Tensor& k_BGSD,
                                const Tensor& v_BGSD,
                                int64_t start,
                                int64_t first,
                                const ScoreOptions& options);

/// The same where keys lie at the positions of `held`, ascending and disjoint.
Tensor attention_plain(const Tensor& q_BHTD,
                       const Tensor& k_BGSD,
                       const Tensor& v_BGSD,
                       int64_t start,
                       const std::vector<kernels::KeyRange>& held,
                       const ScoreOptions& options);

/// The formula on a block of queries, keys counted as the pattern's ranges and rows give them.
Tensor attention_of_block(const Tensor& q_BHTD,
                          const Tensor& k_BGSD,
                          const Tensor& v_BGSD,
                          int64_t start,
                          const std::vector<kernels::KeyRange>& held,
                          const ScoreOptions& options);

/// The definition on blocks of queries, each with the keys that it can see, recomputed for the
/// gradient: memory is that of one block's scores.
Tensor attention_chunked(const Tensor& q_BHTD,
                         const Tensor& k_BGSD,
                         const Tensor& v_BGSD,
                         int64_t start,
                         const std::vector<kernels::KeyRange>& held,
                         const ScoreOptions& options,
                         int64_t chunk);

/// What a term adds to the scores of a block, by table and function together: [B or 1, H or 1, T,
/// S] in float32 or double; undefined where it adds nothing. Where Form::kernel serves q a row's
/// bits are its own.
Tensor added_by_term(const ScoreTerm& term, const ScoreBlock& block);

/// Dense multiplicities [T, S], or [H, T, S] where heads differ: query positions start .., key
/// positions first ... A pattern is asked for its ranges, and for rows of counts within them.
Tensor visible_keys(int64_t start,
                    int64_t t,
                    int64_t first,
                    int64_t s,
                    const ScoreOptions& options,
                    int64_t heads,
                    at::Device device);

/// x [.., T, D] times w [.., S, D]: sum_d x_td w_sd. Where Form::kernel serves x, an element's bits
/// depend on its two rows alone; what an inference term is made of.
Tensor row_products(const Tensor& x, const Tensor& w);

}  // namespace tessera::ops
