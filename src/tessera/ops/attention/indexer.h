// What indexers compute (nn/select): scores of keys, the keys or blocks of keys of greatest score,
// and the loss by which they learn the weights of the attention that reads them.
//   I_ts = sum_h w_th max(0, scale q_th . k_s)
//   S_t  = the top_k keys s <= t of greatest I_ts; of equal ones the earlier win
//   loss_t = KL(p_t || softmax_s I_ts), s in S_t, p_t the weights of full attention, summed
//            over heads, there and divided by their sum
#pragma once

#include <vector>

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// q_THD, k_SD, w_TH -> I_TS of all pairs in float32, or double for double, with gradients.
Tensor index_scores(const Tensor& q_THD, const Tensor& k_SD, const Tensor& w_TH, double scale);

/// Queries at positions start, start + 1, .. and all keys up to the last of them, in parts that
/// follow one another.
struct IndexedQueries {
  Tensor q_THD, w_TH;
  std::vector<Tensor> k_SD;
  double scale = 1;
  int64_t start = 0;
};

/// The keys of every query, int32 [T, top_k] on the CPU: the query at position p has min(top_k, p +
/// 1) of them, ascending, then zeros. No gradient. Where Form::kernel serves q, the keys of a query
/// do not depend on the others. A score that is no number counts as least.
Tensor top_keys(const IndexedQueries& of, int64_t top_k);

/// Those of one query from n scores, on this thread: min(n, top_k) keys of `out`.
void top_of_scores(const float* scores, int64_t n, int64_t top_k, int32_t* out);

/// Heads that choose blocks of keys apart, at positions start, start + 1, .., and all keys up to
/// the last of them, in parts that follow one another.
struct BlockQueries {
  Tensor q_TGD;
  std::vector<Tensor> k_SD;
  int64_t start = 0;
};

/// Of every query and head the blocks of `size` keys whose best key has the greatest q . k; the own
/// block and the `local` - 1 before it come first. int32 [T, G, top_k] on the CPU: the query at
/// position p has min(top_k, p / size + 1) of them, ascending, then zeros. Otherwise as top_keys.
Tensor top_blocks(const BlockQueries& of, int64_t top_k, int64_t size, int64_t local);

/// Keys that stand for blocks of `size` keys each, in parts that follow one another: of every query
/// of `of` the complete blocks of greatest I_tb, then the block after the last complete one.
/// int32 [T, top_k + 1] on the CPU: the query at position p has min(top_k, (p + 1) / size) + 1 of
/// them, ascending, then zeros; the last one may begin after the query. Otherwise as top_keys.
Tensor top_pooled(const IndexedQueries& of, int64_t top_k, int64_t size);

/// The attention whose weights an indexer learns: of one whole document.
struct IndexTarget {
  Tensor q_THK, k_SGK;
  ScoreOptions how;  // scale, cap and sinks count
};

/// loss_t [T] of a whole document, with gradients to q, k and w. key_TK: as of top_keys; undefined
/// = every query has all keys up to its own. Memory is that of the scores of a few queries.
Tensor index_loss(const Tensor& q_THD,
                  const Tensor& k_SD,
                  const Tensor& w_TH,
                  double scale,
                  const Tensor& key_TK,
                  const IndexTarget& target);

/// The same of heads that choose apart, summed over them: each learns the weights of its share of
/// the target's heads, by softmax_s scale q . k. block_TGK: as of top_blocks.
Tensor block_index_loss(const Tensor& q_TGD,
                        const Tensor& k_SD,
                        double scale,
                        const Tensor& block_TGK,
                        int64_t size,
                        const IndexTarget& target);

/// index_loss of keys that stand for blocks of `size` keys each, over the complete blocks that
/// queries have: p_t of a block is the sum over its keys. block_TK: as of top_pooled; undefined =
/// every query has all complete blocks. 0 where there is none.
Tensor pooled_index_loss(const Tensor& q_THD,
                         const Tensor& k_BD,
                         double scale,
                         const Tensor& block_TK,
                         int64_t size,
                         const IndexTarget& target);

}  // namespace tessera::ops
