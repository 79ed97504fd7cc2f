// Fill in the middle: reorders a text so that a decoder learns to complete between a prefix and a
// suffix. Bavarian et al. 2022, arXiv:2207.14255, sec. 3. A text is cut at two positions into p, m
// and s, any of which may be empty:
//   psm:  <prefix> p <suffix> s <middle> m <eos>
//   spm:  <prefix> <suffix> s <middle> p m <eos>
#pragma once

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/objective/denoising/noise.h"

namespace tessera::train {

struct MiddleTokens {
  int64_t prefix = 0, suffix = 0, middle = 0, eos = 0;
};

/// The input ends where the middle begins.
DenoisingExample fill_in_middle(const MiddleTokens& tokens,
                                std::span<const int64_t> prefix,
                                std::span<const int64_t> middle,
                                std::span<const int64_t> suffix,
                                bool spm);

class FillInMiddle final : public Noise {
 public:
  struct Options {
    double rate = 0.5;      // share of texts that are reordered
    double spm_rate = 0.5;  // of those
    MiddleTokens tokens = {};
    bool middle_alone = false;  // only the middle and its end are targets
    /// Cuts between characters, with the parts tokenized separately: prompts may end anywhere.
    /// Null: cuts between tokens.
    std::optional<text::Tokenizer> characters;
    /// Reorders documents instead of windows, so that a window may show any section of the result
    /// (document-level, ibid. sec. 3.1). Four tokens of a document, its separator included, are
    /// replaced by the four markers.
    bool documents = false;
  };
  /// Throws Error(spec) if the tokenizer's parts do not concatenate to the text.
  FillInMiddle(NoiseRoom room, Options options);

  int64_t raw_length() const override { return raw_length_; }
  std::optional<DenoisingExample> apply(const NoiseText& text, const RandomKey& key) const override;
  bool transforms_documents() const override { return options_.documents; }
  std::vector<int64_t> transformed(const NoiseDocument& document,
                                   int64_t from,
                                   int64_t to,
                                   const RandomKey& key) const override;

 private:
  struct Parts {
    std::vector<int64_t> prefix, middle, suffix;
  };
  Parts cut(std::span<const int64_t> ids, const RandomKey& key) const;

  NoiseRoom room_;
  Options options_;
  int64_t raw_length_ = 0;
};

}  // namespace tessera::train
