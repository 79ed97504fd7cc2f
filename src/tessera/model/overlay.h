// Adapters beside the weights of a loaded model: W + (alpha / rank) B A (LoRA: Hu et al. 2021,
// arXiv:2106.09685). The model's own weights stay as they are stored; the architecture's spec knows
// nothing of them.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::model {

/// A product of low rank beside one matrix [O, I]: A [r, I], B [O, r]. Beside those of E experts,
/// [E, O, I], each has its own: A [E, r, I], B [E, O, r].
struct Overlay {
  std::string weight;  // full name, "layers.3.mixer.q.weight"
  WeightPtr a, b;
  double scale = 1;    // on B A
  double dropout = 0;  // in training, of what A reads; each sample draws its own (nn/dropout.h)
};

/// Which matrices get an adapter, and of what size.
struct OverlayTarget {
  /// The end of the names without ".weight", by whole words: "q", "mixer.q", "layers.3.mixer.q"; ""
  /// stands for every matrix of the layers.
  std::string name;
  int64_t rank = 8;
  double alpha = 16;   // scale = alpha / rank
  double dropout = 0;  // 0 to below 1
  /// scale = alpha / sqrt(rank), which keeps what high ranks learn of the size that low ones have
  /// (Kalajdzievski 2023, arXiv:2312.03732).
  bool by_root = false;
};

/// Fresh adapters, trainable: A is uniform in +-1 / sqrt(I), as linear layers start, B is zero, so
/// that the model begins as it is without. The first target that names a matrix counts. Throws
/// Error(usage) where a target names none, or a rank is not in 1 to min(O, I) or a dropout in [0,
/// 1).
std::vector<Overlay> fresh_overlays(const ModelSpec& spec,
                                    const std::vector<OverlayTarget>& targets,
                                    uint64_t seed);

/// The model with the overlays on its weights, which both share. Throws Error(usage) for a weight
/// that it has not or that has one already, and for shapes that do not fit; in training, where a
/// matrix with dropout beside it reads something else than the tokens of the call (distances,
/// slices of tokens, memories).
Model with_overlays(const Model& model, const std::vector<Overlay>& overlays);

/// What an overlay adds, as one float32 matrix on the weight: W + scale B A.
Tensor merged(const Weights& weights, const Overlay& overlay);

}  // namespace tessera::model
