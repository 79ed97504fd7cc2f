// Draft tokens after a row: a chain, or a tree whose branches are verified in one call of the model
// (tree attention).
//
// Nodes are in pre-order, so their depths define the tree: the parent of a node is the last node
// before it that is one less deep. In the call, a node has the position that it would have in the
// text. It attends to the row and to its ancestors, but not to other branches
// (nn/draft_branches.h). So its logits are, bit for bit, those of decoding its branch token by
// token.
//
// Verification is exact for greedy and sampled text. At every node the target model chooses the
// next token as in plain decoding: x = f(logits, seed, position), with the position's own random
// number u and the sampler f, which draws x from the target distribution p (after all penalties and
// filters). Decoding continues with x in any case. If x is among the node's children, it is
// accepted and its logits have been computed already. No draft token influences x, and u is used
// for its position only: so P(x | text) = p(x), positions are independent given the text, and the
// text is that of plain decoding with the same seed.
//
// Schemes that test the children one after another (SpecInfer, Miao et al. 2023, arXiv:2305.09781,
// alg. 2: accept child c with probability min(1, p(c) / q(c)), otherwise continue with the residual
// (p - q)+) accept no more from a fixed set of children c_1 .. c_w: there q is a point mass, the
// first is accepted with probability p(c_1), the residual is p without c_1, and so on. In total
// that is p(c_1) + .. + p(c_w), which is also the probability that x is one of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::infer {

struct DraftTree {
  std::vector<int64_t> ids;
  /// Depth of each node: 0 = follows the row. Empty: a chain with depths 0, 1, 2, ...
  std::vector<int64_t> depths = {};

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  bool empty() const { return ids.empty(); }
  bool chain() const { return depths.empty(); }
  int64_t depth(int64_t node) const { return chain() ? node : depths[static_cast<size_t>(node)]; }
  /// The child of `node` (-1 = the row) with this id; -1 if there is none.
  int64_t child(int64_t node, int64_t id) const;
};

/// A candidate for a position, with the draft model's log-probability.
struct DraftToken {
  int64_t id = 0;
  double log_p = 0;
};

/// The `width` most likely tokens of logits [C] with their ln p. `first` is always in front, with
/// at least the highest ln p.
std::vector<DraftToken> draft_tokens_at(std::span<const float> logits,
                                        int64_t width,
                                        int64_t first);

/// The tree of at most `most` nodes with the largest sum of path probabilities, from the candidates
/// of each position, best first. `any`: candidates do not depend on the tokens before them, so all
/// have children (parallel heads, Cai et al. 2024, arXiv:2401.10774, sec. 2.3). Otherwise they
/// follow the first candidates before them, and only first candidates have children. Li et al.
/// 2024, arXiv:2406.16858, sec. 4.2 (EAGLE-2).
DraftTree grow(const std::vector<std::vector<DraftToken>>& places, int64_t most, bool any);

/// The tree with these branches; common prefixes are merged.
DraftTree joined(const std::vector<std::vector<int64_t>>& ways);

}  // namespace tessera::infer
