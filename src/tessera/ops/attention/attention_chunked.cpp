#include "tessera/ops/attention/query_blocks.h"

namespace tessera::ops {
namespace {

using kernels::KeyRange;

/// Blocks of `chunk` queries at positions start .., of T in all, against keys at the positions of
/// `held`.
std::vector<QueryBlock> blocks_of(const ScoreOptions& options,
                                  int64_t heads,
                                  int64_t start,
                                  int64_t t,
                                  const std::vector<KeyRange>& held,
                                  int64_t chunk) {
  std::vector<QueryBlock> blocks;
  for (int64_t i = 0; i < t; i += chunk) {
    QueryBlock block{i, std::min(chunk, t - i), {}, {}};
    for (const KeyRange& seen : key_ranges(options, heads, {held.front().begin, held.back().end},
                                           start + i, start + i + block.queries)) {
      int64_t row = 0;
      for (const KeyRange& range : held) {
        const KeyRange both{std::max(seen.begin, range.begin), std::min(seen.end, range.end)};
        if (both.begin < both.end) {
          block.positions.push_back(both);
          block.rows.push_back(row + both.begin - range.begin);
        }
        row += range.end - range.begin;
      }
    }
    // a block that sees nothing still runs, on a key that is hidden from it
    if (block.rows.empty()) {
      block.positions.push_back({held.front().begin, held.front().begin + 1});
      block.rows.push_back(0);
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace

Tensor attention_chunked(const Tensor& q_BHTD,
                         const Tensor& k_BGSD,
                         const Tensor& v_BGSD,
                         int64_t start,
                         const std::vector<KeyRange>& held,
                         const ScoreOptions& options,
                         int64_t chunk) {
  std::vector<Tensor> inputs{q_BHTD, k_BGSD, v_BGSD};
  ByQueryBlocks how;
  how.reads = {BlockReads::queries, BlockReads::keys, BlockReads::keys};
  const auto add = [&](const Tensor& x, BlockReads reads) {
    if (!x.defined()) return;
    inputs.push_back(x);
    how.reads.push_back(reads);
  };
  add(options.sinks_H, BlockReads::all);
  add(options.term.bias_HR, BlockReads::all);
  add(options.far_q, BlockReads::queries);
  for (const Tensor& x : options.term.inputs) add(x, BlockReads::all);
  how.blocks = blocks_of(options, q_BHTD.size(1), start, q_BHTD.size(2), held, chunk);
  how.run = [options, start, t = q_BHTD.size(2), s = k_BGSD.size(2)](
                const QueryBlock& block, const std::vector<Tensor>& cuts) {
    ScoreOptions own = options;
    if (own.dropout) {
      own.dropout.part = {t, s, block.query, {}};
      for (size_t i = 0; i < block.rows.size(); ++i)
        own.dropout.part->columns.push_back(
            {block.rows[i], block.rows[i] + block.positions[i].end - block.positions[i].begin});
    }
    size_t at = 3;
    for (Tensor* x : {&own.sinks_H, &own.term.bias_HR, &own.far_q})
      if (x->defined()) *x = cuts[at++];
    own.term.inputs.assign(cuts.begin() + static_cast<std::ptrdiff_t>(at), cuts.end());
    return attention_of_block(cuts[0], cuts[1], cuts[2], start + block.query, block.positions, own);
  };
  return by_query_blocks(std::move(how), inputs);
}

}  // namespace tessera::ops
