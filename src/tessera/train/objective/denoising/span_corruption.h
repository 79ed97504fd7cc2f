// Spans of a text hidden behind sentinels, and asked for: Raffel et al. 2020, arXiv:1910.10683,
// sec. 3.1.4. Of n tokens round(rate n) are hidden in round(that / mean_span) spans, both rounded
// as there, half to even in float32; text and noise are each cut at random into so many parts of
// one token or more, which alternate, the text's first: the last token is always hidden.
//   given:  text_0 <s0> text_1 <s1> ... <eos>      asked:  <s0> noise_0 <s1> noise_1 ... <eos>
// UL2's denoisers are settings of it, each with a mode token before what is given: Tay et al. 2022,
// arXiv:2205.05131, sec. 3.1.
#pragma once

#include "tessera/train/objective/denoising/noise.h"

namespace tessera::train {

struct SpanCounts {
  int64_t noise = 0, spans = 0;
  static SpanCounts of(int64_t tokens, double rate, double mean_span);
};

/// Lengths of k parts of n, each 1 or more: the places behind which they are cut are k - 1 of n
/// - 1.
std::vector<int64_t> random_parts(int64_t n, int64_t k, const RandomKey& key);

class SpanCorruption final : public Noise {
 public:
  struct Options {
    double rate = 0.15, mean_span = 3;
    std::vector<int64_t> sentinels;
    int64_t eos = 0;
    std::optional<int64_t> mode;
  };
  /// Throws Error(spec) where a text of raw_length() has more spans than there are sentinels.
  SpanCorruption(NoiseRoom room, Options options);

  /// Tokens of the longest text that fits.
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
