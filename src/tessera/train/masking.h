// Corruption of a text whose own tokens are then asked for: masked language modelling (Devlin et
// al. 2019, arXiv:1810.04805, sec. 3.1). A pure function of tokens and draws. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/train/recipe.h"

namespace tessera::train {

/// Uniform numbers in [0, 1): one for the count, and three for every token.
struct MaskDraws {
  double count = 0;
  std::vector<double> select, change, replace;
  static MaskDraws of(const RandomKey& key, int64_t tokens);
};

struct Masking {
  MaskedRecipe how;
  int64_t mask_id = 0;
  std::vector<int64_t> ordinary;  // ids that are no special tokens, ascending: what is selected,
                                  // and what replaces

  /// Selects tokens and changes them in `ids`; their own ids are what `targets` then asks for, -1
  /// elsewhere. Exactly floor(rate * c + draw) of c ordinary tokens, at least 1 where there is one,
  /// those of the least draws; or each by its own draw.
  void apply(std::span<int64_t> ids, std::span<int64_t> targets, const MaskDraws& draws) const;
};

}  // namespace tessera::train
