// Windows of a text whose documents are transformed by a noise. Torch-free.
#pragma once

#include "tessera/train/data/dataset.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/objective/denoising/noise_recipe.h"

namespace tessera::train {

/// Samples of a text with the noises of a recipe. A training sample draws its noise, by weight, and
/// the noise's random numbers from the seed and its number, which continues over epochs. A
/// validation sample always has the same noise and corruption, for every seed.
class NoiseSource final : public Dataset {
 public:
  struct Options {
    std::optional<int64_t> start;  // first token of a decoder after an encoder
    int64_t length = 0;            // max. tokens of a stack
    int64_t seed = 0;
    LengthSchedule ramp = {};
  };
  /// Throws Error(input) for data without a document of 2 tokens.
  NoiseSource(TokenData data,
              std::vector<double> weights,
              std::vector<std::unique_ptr<Noise>> noises,
              Options options);

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override;
  int64_t valid_samples() const override { return static_cast<int64_t>(valid_.size()); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override;
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return data_.key; }

 private:
  size_t draw(const RandomKey& key) const;
  /// The documents of a window, or their parts in it, without separators.
  struct DocumentPart {
    std::vector<int64_t> ids;
    bool ends = false;
  };
  std::vector<DocumentPart> parts(const TokenSplit& split, const Window& window) const;
  /// True if a document of the window can have a target.
  bool has_text(const TokenSplit& split, const Window& window) const;
  /// The examples of a window, by the key of its sample; `documents`: key of documents that are
  /// transformed as a whole.
  struct Keys {
    RandomKey sample, documents;
  };
  void add(std::vector<NoisedPiece>& to,
           const TokenSplit& split,
           const Window& window,
           size_t noise,
           int64_t row,
           const Keys& keys) const;

  TokenData data_;
  std::vector<double> weights_;
  std::vector<std::unique_ptr<Noise>> noises_;
  Options options_;
  RandomKey key_;
  std::vector<SampleOrder> orders_;  // for each noise, of windows of its length
  std::vector<Window> valid_;
};

}  // namespace tessera::train
