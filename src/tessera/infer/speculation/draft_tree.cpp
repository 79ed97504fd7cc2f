#include "tessera/infer/speculation/draft_tree.h"

#include <algorithm>
#include <functional>

#include "tessera/infer/sampling/logprobs.h"

namespace tessera::infer {

int64_t DraftTree::child(int64_t node, int64_t id) const {
  const int64_t deep = node < 0 ? 0 : depth(node) + 1;
  for (int64_t i = node + 1; i < size() && depth(i) >= deep; ++i)
    if (depth(i) == deep && ids[static_cast<size_t>(i)] == id) return i;
  return -1;
}

std::vector<DraftToken> draft_tokens_at(std::span<const float> logits,
                                        int64_t width,
                                        int64_t first) {
  const PositionLogprobs logprobs = logprobs_of(logits, first, width);
  double best = logprobs.chosen.log_p;
  for (const TokenLogprob& chance : logprobs.top) best = std::max(best, chance.log_p);
  std::vector<DraftToken> out = {{first, best}};
  for (const TokenLogprob& chance : logprobs.top)
    if (chance.id != first && static_cast<int64_t>(out.size()) < width)
      out.push_back({chance.id, chance.log_p});
  return out;
}

namespace {

/// What is guessed as chains of parents (one more than a node, 0 = the row), in any order, parents
/// first.
struct Loose {
  size_t parent;
  int64_t id, depth;
};

/// In pre-order, children as they come.
DraftTree in_order(const std::vector<Loose>& nodes) {
  DraftTree tree;
  const std::function<void(size_t)> write = [&](size_t parent) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].parent != parent) continue;
      tree.ids.push_back(nodes[i].id);
      tree.depths.push_back(nodes[i].depth);
      write(i + 1);
    }
  };
  write(0);
  bool straight = true;
  for (int64_t i = 0; i < tree.size(); ++i) straight = straight && tree.depth(i) == i;
  if (straight) tree.depths.clear();
  return tree;
}

}  // namespace

DraftTree joined(const std::vector<std::vector<int64_t>>& ways) {
  std::vector<Loose> nodes;
  for (const std::vector<int64_t>& way : ways) {
    size_t parent = 0;
    for (size_t depth = 0; depth < way.size(); ++depth) {
      const auto same = [&](const Loose& n) { return n.parent == parent && n.id == way[depth]; };
      auto found = std::find_if(nodes.begin(), nodes.end(), same);
      if (found == nodes.end())
        found = nodes.insert(nodes.end(), {parent, way[depth], static_cast<int64_t>(depth)});
      parent = static_cast<size_t>(found - nodes.begin()) + 1;
    }
  }
  return in_order(nodes);
}

DraftTree grow(const std::vector<std::vector<DraftToken>>& places, int64_t most, bool any) {
  struct Node {
    size_t parent, place, rank;  // parent: one more than its index, 0 = the row
    double log_p;                // of the way to it
  };
  std::vector<Node> taken, open;
  const auto opens = [&](size_t parent, size_t place, double log_p) {
    if (place == places.size()) return;
    for (size_t rank = 0; rank < places[place].size(); ++rank)
      open.push_back({parent, place, rank, log_p + places[place][rank].log_p});
  };
  opens(0, 0, 0);
  while (!open.empty() && static_cast<int64_t>(taken.size()) < most) {
    // the most likely way; of equals the one that was opened first
    const auto best = std::max_element(
        open.begin(), open.end(), [](const Node& a, const Node& b) { return a.log_p < b.log_p; });
    const Node node = *best;
    open.erase(best);
    taken.push_back(node);
    if (any || node.rank == 0) opens(taken.size(), node.place + 1, node.log_p);
  }
  std::vector<Loose> nodes;
  for (const Node& n : taken)
    nodes.push_back({n.parent, places[n.place][n.rank].id, static_cast<int64_t>(n.place)});
  return in_order(nodes);
}

}  // namespace tessera::infer
