// Mask-Predict: non-autoregressive decoding for a model whose decoder sees the whole text
// (model::ModelSpec::mask). The encoder predicts the length, then all tokens are predicted in
// parallel T times. Between iterations the least likely tokens are masked again, n_t = floor(N (T -
// t) / T) of N before iteration t + 1; the other tokens keep their id and log-probability. Of the
// candidates with the most likely lengths, the one with the highest mean ln p is the result; ties
// go to the more likely length. Ghazvininejad, Levy, Liu, Zettlemoyer 2019, arXiv:1904.09324, sec.
// 3. Golden: mask_predict.
//
// The mask token itself is never predicted and has no probability.
#pragma once

#include <span>
#include <vector>

#include "tessera/infer/engine/request.h"

namespace tessera::infer {

/// One candidate text of a known length.
class MaskedText {
 public:
  /// Starts with all tokens masked.
  MaskedText(int64_t length, int64_t mask);
  /// The decoder input, masked tokens as `mask`.
  std::vector<int64_t> read() const;
  /// Last prediction of each token.
  const std::vector<int64_t>& tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  /// Sets every masked token to its most likely id; ties go to the lowest id. `logits`: [length,
  /// C], row by row. Throws Error(input) where no logit is finite.
  void fill(std::span<const float> logits);
  /// Masks the n least likely tokens; ties go to the first.
  void mask(int64_t n);
  /// Mean ln p of the predictions.
  double mean_log_p() const;

 private:
  int64_t mask_;
  std::vector<int64_t> tokens_;
  std::vector<double> log_p_;
  std::vector<bool> masked_;
};

/// Number of tokens masked after iteration `done` of `iterations`.
int64_t masked_again(int64_t length, int64_t done, int64_t iterations);

/// Up to `most` lengths with the highest logits, from `least` to `longest` tokens; class i is
/// length i + 1. Highest logit first; ties go to the shorter length.
std::vector<int64_t> likely_lengths(std::span<const float> logits,
                                    int64_t most,
                                    int64_t least,
                                    int64_t longest);

/// Throws Error(usage) for options that Mask-Predict does not support, and for MaskPredictOptions
/// with an autoregressive model.
void check_mask_predict(const model::ModelSpec& spec, const Request& request);

}  // namespace tessera::infer
