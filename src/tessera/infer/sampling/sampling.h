// Choosing the next token from logits: masks and bias, then samplers in an order that can be
// chosen, then the draw. Each filter sees what those before it have left, renormalised, and leaves
// one token at least. Mirostat stands in place of all filters.
//
// The options are one table (sampling_fields()), from which flags, the chat's settings, the fields
// of requests and the checks come.
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
#include "tessera/infer/sampling/logprobs.h"

namespace tessera::text {
class Tokenizer;
}

namespace tessera::infer {

/// What changes or filters logits between the masks and the draw, in the order that it does unless
/// somebody says otherwise.
enum class Sampler : uint8_t {
  penalties,
  no_repeat_ngram,
  dry,
  top_n_sigma,
  temperature,
  top_h,
  top_k,
  top_p,
  min_p,
  typical_p,
  epsilon,
  eta,
  xtc
};
/// Their names, in that order.
std::span<const std::string> sampler_names();
std::vector<Sampler> all_samplers();
/// Throws Error(usage) for a name that is none, or comes twice. llama.cpp's typ_p is typical_p.
std::vector<Sampler> samplers_named(std::span<const std::string> names);
std::string to_string(std::span<const Sampler> samplers);
/// Whether it leaves tokens out, which changes nothing where the most likely one is taken.
bool filters(Sampler sampler);

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
  /// Of the best 100, keep the most likely as long as their -p ln p add up to no more than this
  /// share of the entropy; 0 = all. Potraghloo et al. 2025, arXiv:2509.02510.
  double top_h = 0;
  /// Keep those with p >= epsilon; those with p >= min(eta, sqrt(eta) exp(-entropy)). 0 = all.
  /// Hewitt et al. 2022, arXiv:2210.15191.
  double epsilon_cutoff = 0, eta_cutoff = 0;
  /// The temperature is lo + (hi - lo) (H / ln n)^exponent, with lo and hi so much below and above
  /// it, H the entropy of the n tokens left; 0 = as it is.
  double dynatemp_range = 0, dynatemp_exponent = 1;
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
  std::vector<int64_t> dry_breaker_ids = {};  // of these, where there are tokens (find_ids())
  int64_t no_repeat_ngram_size = 0;  // no run of so many tokens is said twice; 0 = any may be
  int64_t encoder_no_repeat_ngram_size = 0;  // nor one of the source (source_ids); 0 = any may be
  /// 2: keep what surprises by no more than mu bits, which follows from what was drawn: it begins
  /// at 2 tau, and falls by eta (surprise - tau) with every token. 0: off. Basu et al. 2020,
  /// arXiv:2007.14966, v2.
  int64_t mirostat = 0;
  double mirostat_tau = 5, mirostat_eta = 0.1;
  double repetition_penalty =
      1;  // logits of seen tokens are divided (positive) or multiplied by it (arXiv:1909.05858)
  /// Logits of tokens of the source (source_ids) are multiplied (positive) or divided by it.
  double encoder_repetition_penalty = 1;
  /// Behind `start` tokens of the answer, the logit z of what ends it rises by |z| (factor^n - 1),
  /// n tokens further on (transformers' exponential_decay_length_penalty); factor 1 = off.
  int64_t exponential_decay_start = 0;
  double exponential_decay_factor = 1;
  /// Logits of tokens said fall by `presence`, and by `frequency` for each time that they were.
  double presence_penalty = 0, frequency_penalty = 0;
  /// Penalties look at the last so many tokens, all three at prompt and answer alike. -1: the first
  /// looks at all, the other two at all of the answer.
  int64_t repeat_last_n = -1;
  std::vector<std::pair<int64_t, double>> logit_bias = {};  // added; -infinity = never
  std::optional<std::vector<int64_t>> allowed_ids = {};     // no others
  /// Added to the logit of a sequence's last token where the others precede; -infinity = never.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias = {};
  std::vector<std::string> bad_words = {};  // never said; find_ids() makes sequences of them
  /// What a request is about, filled in for it: tokens that an encoder has read, or else the
  /// prompt; tokens that end a text.
  std::vector<int64_t> source_ids = {}, eos_ids = {};
  /// In this order; those that are left out do nothing: without `temperature` it is 1.
  std::vector<Sampler> samplers = all_samplers();
  uint64_t seed = 0;

  /// Throws Error(usage) naming the option out of range.
  void check() const;
};

/// One option that is a number: all that flags, settings, requests and checks know of it.
struct SamplingField {
  const char* name;  // of a request's field; a flag has dashes for underscores
  const char* doc;
  std::variant<double SamplingOptions::*, int64_t SamplingOptions::*> member;
  double least, most;                   // what has a meaning
  const char* expected;                 // the same in words
  double asked_least, asked_most;       // what strangers may ask for
  bool filters = false;                 // acts on what is drawn from: nothing at temperature 0
  const char* alias = "";               // another name of a request's field
  std::optional<Sampler> sampler = {};  // that it is an option of
  bool above = false;                   // `least` itself has no meaning

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
/// Whether a sampler changes anything by these options.
bool acts(Sampler sampler, const SamplingOptions& options);
/// Why the fields that somebody has given do not go together: filters beside mirostat, options of
/// samplers that are left out; empty where they do.
std::string conflict_among(const SamplingOptions& options,
                           const std::function<bool(const SamplingField&)>& given);

/// Finds the tokens of what the options say in words; bad words become sequences.
void find_ids(SamplingOptions& options, const text::Tokenizer& tokenizer);
/// Tokens that hold one of the texts; a text that lies within none breaks nothing.
std::vector<int64_t> breaker_ids(const text::Tokenizer& tokenizer,
                                 std::span<const std::string> texts);

/// Changes logits as sample() does before it filters: masks, biases, penalties, blocked n-grams, in
/// place. False, and nothing is done, where the options have none of these.
bool change_logits(std::span<float> scores,
                   std::span<const int64_t> seen,
                   size_t given,
                   const SamplingOptions& options);

/// What a row's choices leave for the next one.
struct SamplerMemory {
  std::optional<double> mu = {};  // of mirostat
};

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
               PositionLogprobs* logprobs = nullptr);

}  // namespace tessera::infer
