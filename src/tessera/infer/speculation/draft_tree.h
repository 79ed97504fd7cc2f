// Guesses for what follows a row: a chain, or a tree whose branches are all verified in one call of
// the model.
//
// Nodes stand in pre-order, a parent before its children, so that how deep each lies says all: the
// parent of a node is the last one before it that lies one less deep. In the call a node stands at
// the position that it would have in the text, sees what the row holds and its ancestors, and
// nothing of other branches (nn/draft_branches.h), so that its logits are, bit for bit, those of
// decoding its branch token by token.
//
// What is said is exact, greedy or sampled. At every node the model chooses what follows it as if
// nobody had guessed: x = f(logits, seed, place), with the place's own random number u, and f the
// sampler, which draws x from the model's distribution p (after all penalties and filters). The
// text goes on with x whatever was guessed; where x is among the node's children its subtree is
// entered, and x's own logits are there already. Nothing that was guessed enters x, and u is used
// for its place alone: so P(x | text) = p(x), places are independent given the text, and the text
// is that of plain generation for the same seed.
//
// No scheme that decides on the children one after another (SpecInfer, Miao et al. 2023,
// arXiv:2305.09781, alg. 2: accept child c with probability min(1, p(c) / q(c)), else go on with
// the residual (p - q)+) takes more from a fixed set of children c_1 .. c_w: there q is a point
// mass, the first is accepted with probability p(c_1), the residual is p without c_1, and so on: in
// all with p(c_1) + .. + p(c_w), which is also the chance that x is one of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::infer {

struct DraftTree {
  std::vector<int64_t> ids;
  /// How deep each lies: 0 = follows the row. Empty: a chain, 0, 1, 2, ...
  std::vector<int64_t> depths = {};

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  bool empty() const { return ids.empty(); }
  bool chain() const { return depths.empty(); }
  int64_t depth(int64_t node) const { return chain() ? node : depths[static_cast<size_t>(node)]; }
  /// The child of `node` (-1 = the row) with this id; -1 where there is none.
  int64_t child(int64_t node, int64_t id) const;
};

/// What may stand at a place, by who guesses.
struct DraftToken {
  int64_t id = 0;
  double log_p = 0;
};

/// The `width` most likely tokens of logits with their ln p, `first` in front of them whatever it
/// is: at least as likely as they are.
std::vector<DraftToken> draft_tokens_at(std::span<const float> logits,
                                        int64_t width,
                                        int64_t first);

/// The tree of at most `most` nodes with the largest sum of probabilities, out of the candidates of
/// each place, the best first. `any`: they are what follows whatever stood before (parallel heads,
/// Cai et al. 2024, arXiv:2401.10774, sec. 2.3); else what follows the first candidates before
/// them, so that only these have children. Li et al. 2024, arXiv:2406.16858, sec. 4.2 (EAGLE-2).
DraftTree grow(const std::vector<std::vector<DraftToken>>& places, int64_t most, bool any);

/// The tree whose branches are these, what they begin with in common once.
DraftTree joined(const std::vector<std::vector<int64_t>>& ways);

}  // namespace tessera::infer
