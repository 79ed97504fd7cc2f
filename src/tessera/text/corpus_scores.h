// Corpus metrics of translation: BLEU (Papineni et al. 2002, sec. 2; one reference, words as in
// mteval-v13a, the exponential smoothing of NIST's script) and chrF (Popovic 2015: characters to
// order 6, beta 2). The values equal those of `sacrebleu` 2 with signatures
// "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" and
// "chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::text {

/// The words of a line, separated by spaces.
std::string words_13a(std::string_view line);

/// Words of a text as word perplexity counts them: the length of Python's re.split(r"\s+", text),
/// as in lm-evaluation-harness.
int64_t count_words(std::string_view text);

/// Counts over all texts so far.
class CorpusScores {
 public:
  /// Both valid UTF-8.
  void add(std::string_view generated, std::string_view expected);
  /// Adds the counts of other texts.
  CorpusScores& operator+=(const CorpusScores& other);

  int64_t texts() const { return texts_; }
  /// 0 to 100.
  double bleu() const;
  double chrf() const;
  /// Words of all outputs relative to words of all references; below 1 BLEU has a brevity penalty.
  double length_ratio() const;

 private:
  struct Counts {
    int64_t generated = 0, expected = 0, common = 0;
  };

  int64_t texts_ = 0, words_generated_ = 0, words_expected_ = 0;
  std::array<Counts, 4> words_ = {};
  std::array<Counts, 6> characters_ = {};
};

}  // namespace tessera::text
