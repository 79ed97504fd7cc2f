// A spoilt text given, the text as it was asked for: Lewis et al. 2020, arXiv:1910.13461, sec. 2.2.
// In this order:
//   permute   of S sentences ceil(p S) trade places
//   infill    spans become one mask each. Their lengths are Poisson numbers until they sum to
//             ceil(rate n), the last one cut; of the n' tokens left and k masks every order is as
//             likely. A span of no token is a mask put in.
//   erase     of n' tokens round(rate n') go, without a trace
//   rotate    with some probability the text begins at any of its tokens, and ends before it
// Spans never touch the same token, so that the rate holds: fairseq's may collide, and hide less.
#pragma once

#include "tessera/train/objective/denoising/noise.h"

namespace tessera::train {

/// The sentences of a text in another order.
std::vector<int64_t> in_order(std::span<const int64_t> ids,
                              const std::vector<std::pair<int64_t, int64_t>>& sentences,
                              std::span<const int64_t> order);
/// Begin and end of every sentence; the last may lack its end. `ends`: ids, ascending.
std::vector<std::pair<int64_t, int64_t>> sentences_of(std::span<const int64_t> ids,
                                                      std::span<const int64_t> ends);

/// Spans of `lengths` behind one mask each, which stand in `slots` (ascending) of what comes out.
std::vector<int64_t> infilled(std::span<const int64_t> ids,
                              std::span<const int64_t> lengths,
                              std::span<const int64_t> slots,
                              int64_t mask);

class Denoising final : public Noise {
 public:
  struct Options {
    double permute = 1, infill = 0.3, mean_span = 3, erase = 0, rotate = 0;
    int64_t mask = 0;
    std::optional<int64_t> eos = {};          // behind what is given and what is asked for
    std::vector<int64_t> sentence_ends = {};  // ascending
  };
  Denoising(NoiseRoom room, Options options);

  int64_t raw_length() const override { return raw_length_; }
  std::optional<DenoisingExample> apply(const NoiseText& text, const RandomKey& key) const override;

 private:
  Options options_;
  int64_t raw_length_ = 0;
};

}  // namespace tessera::train
