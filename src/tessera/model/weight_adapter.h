// Adapters beside the weights of a loaded model. The model's own weights stay as they are stored;
// the architecture's spec knows nothing of them.
//   LoRA     W + (alpha / rank) B A                        Hu et al. 2021, arXiv:2106.09685
//   DoRA     m (W + s B A) / |W + s B A|, by rows          Liu et al. 2024, arXiv:2402.09353
//   (IA)^3   diag(out) W diag(in)                          Liu et al. 2022, arXiv:2205.05638
//   prefix   keys and values before those of a document    Li, Liang 2021, arXiv:2101.00190
//   prompt   vectors before those of its tokens            Lester et al. 2021, arXiv:2104.08691
// The last two stand at virtual tokens (Model::virtual_tokens), which hold a document's first
// positions.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::model {

/// What stands beside one weight; parts that it has not are null. Beside matrices of E experts, [E,
/// O, I], each has its own.
struct WeightAdapter {
  std::string weight;                  // full name, "layers.3.mixer.q.weight"
  WeightPtr a = nullptr, b = nullptr;  // a product of low rank: A [r, I], B [O, r]
  double scale = 1;                    // on B A
  double dropout = 0;  // in training, of what A reads; each sample draws its own (nn/dropout.h)
  /// Whether the scale is alpha / sqrt(rank), which files of PEFT are to say.
  bool rslora = false;
  WeightPtr magnitude = nullptr;  // [O]: lengths of the rows of W + scale B A
  WeightPtr out = nullptr,
            in = nullptr;  // factors on what it gives, a bias beside it too, and reads
  WeightPtr prefix =
      nullptr;  // [M, C], beside the table of tokens, or keys and values: virtual ones
  WeightPtr whole = nullptr;  // what stands in place of the weight
};

/// The parts of an overlay by the words that end the names of their tensors; a whole one has the
/// name of its weight.
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

/// Sizes of some of the matrices that a target names.
struct OverlaySize {
  std::string name;  // as OverlayTarget::name
  int64_t rank = 8;
  double alpha = 16;
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
  bool rslora = false;
  std::vector<std::string> exclude = {};  // names as above that get none all the same
  std::vector<int64_t> layers = {};       // these alone; none = all
  std::vector<OverlaySize> sizes = {};    // of several that name a matrix the first counts
};

/// Fresh products, trainable: A is uniform in +-1 / sqrt(I), as linear layers start, B is zero, so
/// that the model begins as it is without. The first target that names a matrix counts. Throws
/// Error(usage) where a target or a size names none, or a rank is not in 1 to min(O, I) or a
/// dropout in [0, 1).
std::vector<WeightAdapter> fresh_overlays(const ModelSpec& spec,
                                          const std::vector<OverlayTarget>& targets,
                                          uint64_t seed);

/// Gives products the lengths that the rows of their weights have: what DoRA begins with.
void add_magnitudes(std::vector<WeightAdapter>& overlays, const Weights& weights);

/// Factors of ones, of (IA)^3: of the matrices that `inputs` name on what they read, of the other
/// targets on what they give. Sizes mean nothing. Throws as fresh_overlays() does.
std::vector<WeightAdapter> fresh_factors(const ModelSpec& spec,
                                         const std::vector<OverlayTarget>& targets,
                                         const std::vector<std::string>& inputs);

/// Keys and values of `tokens` virtual tokens in every layer, normal with a deviation of 0.02.
/// Throws Error(usage) for a spec that cannot have them.
std::vector<WeightAdapter> fresh_prefix(const ModelSpec& spec, int64_t tokens, uint64_t seed);

/// Vectors of virtual tokens: those of the tokens `ids`, as the embedding hands them on.
WeightAdapter prompt_of(const Model& model, const std::vector<int64_t>& ids);

/// The weights of these names in float32, to be trained in place of the model's own.
std::vector<WeightAdapter> whole_weights(const Model& model, const std::vector<std::string>& names);

/// The model with the overlays on its weights, which both share. Products beside one weight add up,
/// and so do those of several calls; factors multiply. Throws Error(usage) for a weight that it has
/// not or that has an adapter of another kind already, and for shapes that do not fit; in training,
/// where a matrix with dropout beside it reads something else than the tokens of the call
/// (distances, slices of tokens, memories).
Model with_adapters(const Model& model, const std::vector<WeightAdapter>& overlays);

/// What overlays make of the weights that they stand beside, by name, biases of factors among them;
/// several beside one weight in their order. Throws Error(usage) for virtual tokens, which no
/// weight can hold.
std::map<std::string, Tensor> merged(const Weights& weights,
                                     const std::vector<WeightAdapter>& overlays);
/// The way back, to rounding: the weights that merged() made these of. Throws Error(usage) for
/// lengths of rows and whole weights, which do not say what was there before, and for factors of
/// zero.
std::map<std::string, Tensor> unmerged(const Weights& weights,
                                       const std::vector<WeightAdapter>& overlays);

}  // namespace tessera::model
