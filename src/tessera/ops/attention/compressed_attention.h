// What compressed attention (nn/mixer/attention/compressed_attention.h) computes next to its
// softmax: the entries that a query reads, and the loss by which its indexer learns. An entry
// is made of `every` tokens: the query at position p meets the first (p + 1) / every of them.
//   I_te = sum_h w_th max(0, scale q_th . k_e)
//   loss_t = KL(p_t || softmax_e I_te) over the entries that t reads, p_t the weights that the
//            attention over window, entries and sinks gives them, summed over heads, divided by
//            their sum; 0 where t reads none
#pragma once

#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Queries of an indexer at positions start, start + 1, .., and the keys of all entries that they
/// meet, in parts that follow one another.
struct EntryQueries {
  Tensor q_THD, w_TH;
  std::vector<Tensor> k_ED;
  double scale = 1;
  int64_t start = 0, every = 1;
};

/// The entries of every query of greatest score, int32 [T, top_k] on the CPU: of a query that meets
/// e of them min(top_k, e), ascending, then zeros. Of equal scores the earlier win; one that is no
/// number counts as least. No gradient. Where Form::kernel serves q, the entries of a query do not
/// depend on the others.
Tensor top_entries(const EntryQueries& of, int64_t top_k);

/// The attention whose weights an indexer of entries learns: of one whole document.
struct EntryTarget {
  Tensor q_THK, k_SK, entry_EK;
  double scale = 1;
  int64_t window = 1;
  Tensor sinks_H = {};  // may be undefined
};

/// loss_t [T] of a whole document (start 0, keys in one part), with gradients to q, k and w of the
/// indexer. entry_TK: as of top_entries; undefined = every query reads all that it meets. Memory is
/// that of the scores of a few queries.
Tensor entry_index_loss(const EntryQueries& of, const Tensor& entry_TK, const EntryTarget& target);

}  // namespace tessera::ops
