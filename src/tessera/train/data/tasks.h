// Synthetic tasks that separate architectures: recall, memory and copying. Examples are generated:
// a pure function of the recipe's seed and a number. Only positions of an answer have targets.
// Torch-free.
//
// T = length, V = the spec's vocabulary, n = items.
//   mqar               multi-query associative recall (Arora et al. 2023, arXiv:2312.04927):
//                      k1 v1 ... kn vn, then T - 2n tokens with every key once more, early
//                      positions more likely; target there: its value. Keys of 1 .. V/2 - 1,
//                      values of V/2 .. V - 1, all distinct. T even, V > T >= 4n.
//   copying            n symbols of 1 .. V - 2, T - 2n blanks (0), n markers (V - 1); targets on
//                      the markers: the symbols in order
//   selective_copying  the same with the symbols scattered among the blanks (Gu, Dao 2023,
//                      arXiv:2312.00752)
//   induction_heads    random tokens of 0 .. V - 2; the token V - 1 at one position and at the end;
//                      target there: the token that followed it (the same paper)
//   needle             retrieval by depth (needle in a haystack): random tokens of 0 .. V - 2; the
//                      marker V - 1 and n value tokens at one depth, and the marker and the value
//                      again at the end; targets there: the value. T >= 2n + 1
// State tracking (Merrill et al. 2024, arXiv:2404.08819): a target at every position, the product
// of the tokens so far.
//   parity             bits; the parity of their sum
//   modular_sum        tokens of 0 .. n - 1; their sum modulo n
//   s3, s5             permutations of 3 or 5 elements, numbered in lexicographic order (6, 120);
//                      p_t = x_t after p_{t-1}, that is p_t(i) = x_t(p_{t-1}(i))
#pragma once

#include <optional>

#include "tessera/train/data/packing.h"
#include "tessera/train/recipe/data_recipe.h"

namespace tessera::train {

struct Example {
  std::vector<int64_t> ids;
  std::vector<int64_t> targets;  // -1: no target
};

/// One example of `length` tokens, drawn from `key`. `depth`: of a needle, the share of the filler
/// before it, 0 to 1; without it, random.
Example make_example(const TaskRecipe& task,
                     int64_t vocab,
                     int64_t length,
                     const RandomKey& key,
                     std::optional<double> depth = {});

/// Throws Error(spec) naming the key that does not fit the task; `path` is that of the length.
void check_task(const TaskRecipe& task, int64_t vocab, int64_t length, std::string_view path);

}  // namespace tessera::train
