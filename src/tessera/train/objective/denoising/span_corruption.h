// Span corruption (T5): spans of a text are replaced by sentinels and predicted. Raffel et al.
// 2020, arXiv:1910.10683, sec. 3.1.4. Of n tokens round(rate n) are masked in round(that /
// mean_span) spans, both rounded as in T5, half to even in float32. Text and noise are each split
// at random into that many parts of at least one token, which alternate, text first: the last token
// is always masked.
//   input:  text_0 <s0> text_1 <s1> ... <eos>      target:  <s0> noise_0 <s1> noise_1 ... <eos>
// UL2's denoisers are settings of it, each with a mode token before the input: Tay et al. 2022,
// arXiv:2205.05131, sec. 3.1.
#pragma once

#include "tessera/train/objective/denoising/noise.h"

namespace tessera::train {

struct SpanCounts {
  int64_t noise = 0, spans = 0;
  static SpanCounts of(int64_t tokens, double rate, double mean_span);
};

/// Lengths of k parts of n, each at least 1: the cuts are k - 1 of n - 1 positions.
std::vector<int64_t> random_parts(int64_t n, int64_t k, const RandomKey& key);

class SpanCorruption final : public Noise {
 public:
  struct Options {
    double rate = 0.15, mean_span = 3;
    std::vector<int64_t> sentinels;
    int64_t eos = 0;
    std::optional<int64_t> mode;
  };
  /// Throws Error(spec) if a text of raw_length() has more spans than there are sentinels.
  SpanCorruption(NoiseRoom room, Options options);

  /// Length of the longest text that fits, tokens.
  static int64_t longest(NoiseRoom room, double rate, double mean_span, bool has_mode);

  int64_t raw_length() const override { return raw_length_; }
  std::optional<DenoisingExample> apply(const NoiseText& text, const RandomKey& key) const override;
  /// With parts of these lengths.
  DenoisingExample with_parts(std::span<const int64_t> ids,
                              std::span<const int64_t> text,
                              std::span<const int64_t> noise) const;

 private:
  Options options_;
  int64_t raw_length_ = 0;
};

}  // namespace tessera::train
