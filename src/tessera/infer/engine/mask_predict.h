// Texts of a model whose decoder sees them whole (model::ModelSpec::mask): the encoder says how
// long a text may be, and all its tokens are predicted at once, T times. Between two times those
// that were least likely are masked again, n_t = floor(N (T - t) / T) of N before time t + 1; the
// others keep what they are and how likely they were. Of texts of the likeliest lengths that with
// the highest mean ln p is taken; of equal ones that of the likelier length.
// Ghazvininejad, Levy, Liu, Zettlemoyer 2019, arXiv:1904.09324, sec. 3. Golden: mask_predict.
//
// The mask itself is never predicted, and has no share of the likelihood.
#pragma once

#include <span>
#include <vector>

#include "tessera/infer/engine/request.h"

namespace tessera::infer {

/// One text of a known length.
class MaskedText {
 public:
  /// All of it is masked.
  MaskedText(int64_t length, int64_t mask);
  /// What the model reads.
  std::vector<int64_t> read() const;
  /// What was predicted of each token last.
  const std::vector<int64_t>& tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  /// Of every masked token takes the likeliest id, of equal ones the lowest. `logits`: of all
  /// tokens, one after another. Throws Error(input) where none is finite.
  void fill(std::span<const float> logits);
  /// Masks the n least likely tokens, of equal ones the first.
  void mask(int64_t n);
  /// Of what was predicted.
  double mean_log_p() const;

 private:
  int64_t mask_;
  std::vector<int64_t> tokens_;
  std::vector<double> log_p_;
  std::vector<bool> masked_;
};

/// Tokens of `length` that are masked once they have been predicted `done` times of `iterations`.
int64_t masked_again(int64_t length, int64_t done, int64_t iterations);

/// The lengths of the highest logits, `most` of them where there are so many, from `least` to
/// `longest` tokens: class i is i + 1. Highest first, of equal ones the shorter.
std::vector<int64_t> likely_lengths(std::span<const float> logits,
                                    int64_t most,
                                    int64_t least,
                                    int64_t longest);

/// Throws Error(usage) for what such a model cannot be asked, and for MaskPredictOptions where a
/// model writes from left to right.
void check_mask_predict(const model::ModelSpec& spec, const Request& request);

}  // namespace tessera::infer
