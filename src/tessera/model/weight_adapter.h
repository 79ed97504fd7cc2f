// Adapters on the weights of a loaded model (parameter-efficient fine-tuning). The base weights
// stay as stored; the spec does not contain the adapters. (model::AdapterSpec is a low-rank adapter
// inside a spec.)
//   LoRA     W + (alpha / rank) B A                        Hu et al. 2021, arXiv:2106.09685
//   DoRA     m (W + s B A) / |W + s B A|, by rows          Liu et al. 2024, arXiv:2402.09353
//   (IA)^3   diag(out) W diag(in)                          Liu et al. 2022, arXiv:2205.05638
//   prefix   keys and values before those of a document    Li, Liang 2021, arXiv:2101.00190
//   prompt   vectors before those of its tokens            Lester et al. 2021, arXiv:2104.08691
// The last two are virtual tokens (Model::virtual_tokens), which take a document's first positions.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::model {

/// The adapter of one weight; unused parts are null. Matrices of E experts, [E, O, I], have one per
/// expert.
struct WeightAdapter {
  std::string weight;                  // full name, "layers.3.mixer.q.weight"
  WeightPtr a = nullptr, b = nullptr;  // a product of low rank: A [r, I], B [O, r]
  double scale = 1;                    // factor of B A
  double dropout = 0;  // in training, of A's input; each sample has its own mask (nn/dropout.h)
  /// True if the scale is alpha / sqrt(rank), which PEFT files record.
  bool rslora = false;
  WeightPtr magnitude = nullptr;  // [O]: norms of the rows of W + scale B A
  WeightPtr out = nullptr,
            in = nullptr;      // factors on its output (bias included), on its input
  WeightPtr prefix = nullptr;  // [M, C] virtual tokens, of the embedding or of keys and values
  WeightPtr whole = nullptr;   // replaces the weight
};

/// The parts of an adapter by the suffix of their tensor names; a whole weight has the name of its
/// weight.
struct OverlayPart {
  const char* name;
  WeightPtr WeightAdapter::*part;
};
inline constexpr std::array kOverlayParts = {OverlayPart{"lora_a", &WeightAdapter::a},
                                             OverlayPart{"lora_b", &WeightAdapter::b},
                                             OverlayPart{"magnitude", &WeightAdapter::magnitude},
                                             OverlayPart{"out", &WeightAdapter::out},
                                             OverlayPart{"in", &WeightAdapter::in},
                                             OverlayPart{"prefix", &WeightAdapter::prefix}};

/// Sizes of some matrices of a target.
struct OverlaySize {
  std::string name;  // as OverlayTarget::name
  int64_t rank = 8;
  double alpha = 16;
};

/// Which matrices get an adapter, and of what size.
struct OverlayTarget {
  /// A suffix of names without ".weight", in whole words: "q", "mixer.q", "layers.3.mixer.q"; "" =
  /// every matrix of the layers.
  std::string name;
  int64_t rank = 8;
  double alpha = 16;   // scale = alpha / rank
  double dropout = 0;  // 0 to below 1
  /// scale = alpha / sqrt(rank), which keeps the learning of high ranks as large as that of low
  /// ones (Kalajdzievski 2023, arXiv:2312.03732).
  bool rslora = false;
  std::vector<std::string> exclude = {};  // names as above without adapter
  std::vector<int64_t> layers = {};       // only these; empty = all
  std::vector<OverlaySize> sizes = {};    // the first that matches a matrix is used
};

/// New trainable low-rank adapters: A is uniform in +-1 / sqrt(I), as linear layers are
/// initialized, B is zero, so the model's function does not change at first. The first target that
/// matches a matrix is used. Throws Error(usage) if a target or a size matches none, a rank is not
/// in 1 to min(O, I), or a dropout not in [0, 1).
std::vector<WeightAdapter> fresh_overlays(const ModelSpec& spec,
                                          const std::vector<OverlayTarget>& targets,
                                          uint64_t seed);

/// Initializes DoRA: sets magnitudes to the row norms of the weights.
void add_magnitudes(std::vector<WeightAdapter>& overlays, const Weights& weights);

/// Factors of ones, of (IA)^3: on the input of matrices in `inputs`, on the output of the other
/// targets. Sizes have no effect. Throws as fresh_overlays() does.
std::vector<WeightAdapter> fresh_factors(const ModelSpec& spec,
                                         const std::vector<OverlayTarget>& targets,
                                         const std::vector<std::string>& inputs);

/// Keys and values of `tokens` virtual tokens in every layer, normal with standard deviation 0.02.
/// Throws Error(usage) for a spec that does not support them.
std::vector<WeightAdapter> fresh_prefix(const ModelSpec& spec, int64_t tokens, uint64_t seed);

/// Embeddings of virtual tokens, initialized with those of the tokens `ids`.
WeightAdapter prompt_of(const Model& model, const std::vector<int64_t>& ids);

/// Float32 copies of these weights, to be trained instead of the model's own.
std::vector<WeightAdapter> whole_weights(const Model& model, const std::vector<std::string>& names);

/// The model with the adapters on its weights, which both models share. Low-rank updates of one
/// weight add up, also over several calls; factors multiply. Throws Error(usage) for an unknown
/// weight, for a weight with an adapter of another type, and for shapes that do not fit; in
/// training, for a matrix with dropout in its adapter that reads something else than the tokens of
/// the call (distances, slices of tokens, memories).
Model with_adapters(const Model& model, const std::vector<WeightAdapter>& overlays);

/// The merged weights by name, biases of factors included; several adapters of one weight in order.
/// Throws Error(usage) for virtual tokens, which no weight can represent.
std::map<std::string, Tensor> merged(const Weights& weights,
                                     const std::vector<WeightAdapter>& overlays);
/// The inverse of merged(), up to rounding. Throws Error(usage) for magnitudes and whole weights,
/// whose originals are unknown, and for factors of zero.
std::map<std::string, Tensor> unmerged(const Weights& weights,
                                       const std::vector<WeightAdapter>& overlays);

}  // namespace tessera::model
