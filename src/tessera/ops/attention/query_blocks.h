// A function of queries and keys by blocks of queries, each computed again for the gradient, so
// that memory is that of one block's scores. Rabe, Staats 2021, arXiv:2112.05682.
#pragma once

#include <functional>
#include <vector>

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// Positions within `held` that hold every key the queries of [begin, end) see under `options`:
/// ascending and disjoint, perhaps with keys between them that none sees. One range, at least up
/// to the last query, where the term reads all keys between.
std::vector<kernels::KeyRange> key_ranges(
    const ScoreOptions& options, int64_t heads, kernels::KeyRange held, int64_t begin, int64_t end);

struct QueryBlock {
  int64_t query = 0, queries = 0;            // rows of what is read by query
  std::vector<kernels::KeyRange> positions;  // of its keys; at least one
  std::vector<int64_t> rows;                 // of what is read by key: where each range begins
};

/// What a block reads of an input.
enum class BlockReads { all, queries, keys };

struct ByQueryBlocks {
  std::vector<QueryBlock> blocks;  // of all queries, in ascending order
  std::vector<BlockReads> reads;   // of each input
  /// From the inputs cut to what the block reads: the block's rows of the result. Randomness and
  /// gradients of captured tensors have no place here: it runs once more for the gradient.
  std::function<Tensor(const QueryBlock&, const std::vector<Tensor>& cuts)> run;
};

/// The blocks' results concatenated. Queries and keys are counted along dimension 2 of the
/// inputs and of the result, [B, H, T, D].
Tensor by_query_blocks(ByQueryBlocks how, const std::vector<Tensor>& inputs);

}  // namespace tessera::ops
