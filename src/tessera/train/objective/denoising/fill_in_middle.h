// A text told in another order, so that a decoder learns what stands between two places: Bavarian
// et al. 2022, arXiv:2207.14255, sec. 3. Of a text, cut at two places into p, m and s, any of which
// may be empty:
//   psm:  <prefix> p <suffix> s <middle> m <eos>        spm:  <prefix> <suffix> s <middle> p m
//   <eos>
#pragma once

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/objective/denoising/noise.h"

namespace tessera::train {

struct MiddleTokens {
  int64_t prefix = 0, suffix = 0, middle = 0, eos = 0;
};

/// What is given ends where the middle begins.
DenoisingExample fill_in_middle(const MiddleTokens& tokens,
                                std::span<const int64_t> prefix,
                                std::span<const int64_t> middle,
                                std::span<const int64_t> suffix,
                                bool spm);

class FillInMiddle final : public Noise {
 public:
  struct Options {
    double rate = 0.5;      // of the texts; the rest stay as they are
    double spm_rate = 0.5;  // of those
    MiddleTokens tokens = {};
    bool middle_alone = false;  // the tokens of the middle and its end are asked for, no others
    /// Cuts between any two characters, the parts in the tokens that they have alone: a prompt may
    /// end anywhere. Null: cuts between tokens.
    std::optional<text::Tokenizer> characters;
    /// Documents are cut, not what a window shows of them, so that it may show parts of the parts
    /// (document-level, ibid. sec. 3.1). Four tokens of a document, its separator among them, give
    /// way to the four that say where the parts are.
    bool documents = false;
  };
  /// Throws Error(spec) where the tokenizer writes parts of a text that do not make the text.
  FillInMiddle(NoiseRoom room, Options options);

  int64_t raw_length() const override { return raw_length_; }
  std::optional<DenoisingExample> apply(const NoiseText& text, const RandomKey& key) const override;
  bool tells_documents() const override { return options_.documents; }
  std::vector<int64_t> told(const NoiseDocument& document,
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
