// Choosing the next token from logits. Order: bias, penalties (repetition, frequency, presence),
// DRY, top-n-sigma, temperature, top-k, top-p, min-p, typical, XTC, the draw. Each filter sees what
// those before it have left, renormalised, and leaves one token at least. Mirostat stands in place
// of all filters.
//
// The options are one table (sampling_fields()), from which flags, the chat's settings, the fields
// of requests and the checks come.
//
// The probabilities are whole numbers: exp((logit - best) / temperature), rounded to a multiple of
// 2^-b with b = 63 - bits of the vocabulary's size, at most 52. Their sums are exact in any order,
// so that the vocabulary need not be sorted: it is put into bands of logits, and only the band in
// which a filter ends or the draw falls is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/infer/chances.h"

namespace tessera::text {
class Tokenizer;
}

namespace tessera::infer {

struct SamplingOptions {
  double temperature = 0;  // 0 = the most likely token (greedy)
  int64_t top_k = 0;       // keep the k most likely; 0 = all
  double top_p = 1;  // keep the fewest most likely whose probabilities reach p (Holtzman et al.
                     // 2019, arXiv:1904.09751); 0 = the most likely token
  double min_p = 0;  // keep those at least min_p times as likely as the best (arXiv:2407.01082)
  /// Keep those whose -ln p is nearest to the entropy, until they weigh p; 1 = all. Meister et al.
  /// 2022, arXiv:2202.00666.
  double typical_p = 1;
  /// Keep logits no more than so many standard deviations below the best, those of all finite
  /// logits; 0 or less = all. Tang et al. 2024, arXiv:2411.07641.
  double top_n_sigma = 0;
  /// With this chance, drop all that are at least xtc_threshold likely but the least likely of
  /// them ("exclude top choices"). A threshold above 1/2 drops nothing.
  double xtc_probability = 0, xtc_threshold = 0.1;
  /// DRY: a token that would make what was just said go on as it did before, for k tokens, loses
  /// multiplier base^(k - allowed_length), where k is at least allowed_length; 0 = off. No match
  /// goes through a token that holds one of the breakers. Looks at the last dry_penalty_last_n
  /// tokens of prompt and answer, -1 = all.
  double dry_multiplier = 0, dry_base = 1.75;
  int64_t dry_allowed_length = 2, dry_penalty_last_n = -1;
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
  std::vector<int64_t> dry_breaker_ids = {};  // of these, where there are tokens (breaker_ids())
  /// 2: keep what surprises by no more than mu bits, which follows from what was drawn: it begins
  /// at 2 tau, and falls by eta (surprise - tau) with every token. 0: off. Basu et al. 2020,
  /// arXiv:2007.14966, v2.
  int64_t mirostat = 0;
  double mirostat_tau = 5, mirostat_eta = 0.1;
  double repetition_penalty =
      1;  // logits of seen tokens are divided (positive) or multiplied by it (arXiv:1909.05858)
  /// Logits of tokens said fall by `presence`, and by `frequency` for each time that they were.
  double presence_penalty = 0, frequency_penalty = 0;
  /// Penalties look at the last so many tokens, all three at prompt and answer alike. -1: the first
  /// looks at all, the other two at all of the answer.
  int64_t repeat_last_n = -1;
  std::vector<std::pair<int64_t, double>> logit_bias = {};  // added; -infinity = never
  uint64_t seed = 0;

  /// Throws Error(usage) naming the option out of range.
  void check() const;
};

/// One option that is a number: all that flags, settings, requests and checks know of it.
struct SamplingField {
  const char* name;  // of a request's field; a flag has dashes for underscores
  const char* doc;
  std::variant<double SamplingOptions::*, int64_t SamplingOptions::*> member;
  double least, most;              // what has a meaning
  const char* expected;            // the same in words
  double asked_least, asked_most;  // what strangers may ask for
  bool filters = false;            // acts on what is drawn from: nothing at temperature 0
  const char* alias = "";          // another name of a request's field
  bool above = false;              // `least` itself has no meaning

  bool whole() const { return member.index() == 1; }
  double get(const SamplingOptions& options) const;
  /// A whole number where whole().
  void set(SamplingOptions& options, double value) const;
  /// --top-p
  std::string flag() const;
};
std::span<const SamplingField> sampling_fields();
/// By the name of a field or, with dashes, of its flag; null where there is none.
const SamplingField* sampling_field(std::string_view name);
/// What mirostat leaves no place for among the fields that somebody has given; empty where all go
/// together.
std::string mirostat_conflict(const SamplingOptions& options,
                              const std::function<bool(const SamplingField&)>& given);

/// Tokens that hold one of the texts; a text that lies within none breaks nothing.
std::vector<int64_t> breaker_ids(const text::Tokenizer& tokenizer,
                                 std::span<const std::string> texts);

/// What a row's choices leave for the next one.
struct SamplerMemory {
  std::optional<double> mu = {};  // of mirostat
};

/// Bias, penalties and DRY, on the scores of what may come after `seen`, of which the first `given`
/// are the prompt. No token moves by those of others.
void adjust(std::span<float> scores,
            std::span<const int64_t> seen,
            size_t given,
            const SamplingOptions& options);

/// The next token after `seen` tokens, of which the first `given` are the prompt; `key` is the
/// row's stream, and the number of seen tokens its index, so that a row's text does not depend on
/// its batch. Ties go to the lowest id. Mirostat reads `memory` and leaves it as the choice makes
/// it; without one it begins. `chances`: takes how likely the choice and the `top` likeliest were,
/// by the probabilities that it was drawn from: they sum to 1, and a greedy choice has all of it.
/// Throws Error(input) when no logit is finite.
int64_t sample(std::span<const float> logits,
               std::span<const int64_t> seen,
               const SamplingOptions& options,
               const RandomKey& key,
               size_t given = 0,
               SamplerMemory* memory = nullptr,
               int64_t top = 0,
               Chances* chances = nullptr);

}  // namespace tessera::infer
