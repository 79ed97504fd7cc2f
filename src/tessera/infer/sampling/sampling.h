// Sampling: chooses the next token from logits. Masks and biases come first, then samplers in a
// configurable order, then the draw. Each filter sees the renormalized distribution that the
// samplers before it left, and keeps at least one token. Mirostat replaces all filters.
//
// decoding_fields.h lists the options for flags, the chat's settings, request fields and checks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/infer/sampling/logprobs.h"

namespace tessera::text {
class Tokenizer;
}

namespace tessera::infer {

/// Samplers that change or filter logits between the masks and the draw, in the default order.
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
/// Sampler names, in that order.
std::span<const std::string> sampler_names();
std::vector<Sampler> all_samplers();
/// Throws Error(usage) for an unknown or repeated name. llama.cpp's typ_p is typical_p.
std::vector<Sampler> samplers_named(std::span<const std::string> names);
std::string to_string(std::span<const Sampler> samplers);
/// True if it removes tokens. That has no effect with greedy decoding.
bool filters(Sampler sampler);

struct SamplingOptions {
  double temperature = 0;  // 0 = greedy decoding
  int64_t top_k = 0;       // keep the k most likely; 0 = all
  double top_p = 1;  // nucleus sampling: keep the smallest set of tokens with total probability >=
                     // p (Holtzman et al. 2019, arXiv:1904.09751); 0 = the most likely token
  double min_p =
      0;  // keep tokens with probability >= min_p times that of the best (arXiv:2407.01082)
  /// Locally typical sampling: keep the tokens whose -ln p is nearest to the entropy, until their
  /// total probability reaches p; 1 = all. Meister et al. 2022, arXiv:2202.00666.
  double typical_p = 1;
  /// Keep logits at most this many standard deviations (of all finite logits) below the best; 0 or
  /// less = all. Tang et al. 2024, arXiv:2411.07641.
  double top_n_sigma = 0;
  /// Of the best 100 tokens, keep the most likely while the sum of their -p ln p is at most this
  /// share of the entropy; 0 = all. Potraghloo et al. 2025, arXiv:2509.02510.
  double top_h = 0;
  /// Keep tokens with p >= epsilon; with p >= min(eta, sqrt(eta) exp(-entropy)). 0 = all. Hewitt et
  /// al. 2022, arXiv:2210.15191.
  double epsilon_cutoff = 0, eta_cutoff = 0;
  /// Dynamic temperature: lo + (hi - lo) (H / ln n)^exponent, with lo and hi = temperature minus
  /// and plus the range, and H the entropy of the n tokens left; 0 = constant.
  double dynatemp_range = 0, dynatemp_exponent = 1;
  /// XTC ("exclude top choices"): with this probability, drop all tokens with p >= xtc_threshold
  /// except the least likely of them. A threshold above 1/2 drops nothing.
  double xtc_probability = 0, xtc_threshold = 0.1;
  /// DRY: if the last k tokens occur earlier, the token that followed there loses multiplier
  /// base^(k - allowed_length), for k >= allowed_length; 0 = off. No match crosses a token that
  /// contains a breaker. Considers the last dry_penalty_last_n tokens of prompt and answer, -1 =
  /// all.
  double dry_multiplier = 0, dry_base = 1.75;
  int64_t dry_allowed_length = 2, dry_penalty_last_n = -1;
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
  std::vector<int64_t> dry_breaker_ids = {};  // tokens with these breakers (find_ids())
  int64_t no_repeat_ngram_size = 0;           // no n-gram of this many tokens occurs twice; 0 = off
  int64_t encoder_no_repeat_ngram_size = 0;   // nor one of the source (source_ids); 0 = off
  /// 2: Mirostat v2. Keep tokens with a surprise of at most mu bits. mu starts at 2 tau and falls
  /// by eta (surprise - tau) with every drawn token. 0: off. Basu et al. 2020, arXiv:2007.14966.
  int64_t mirostat = 0;
  double mirostat_tau = 5, mirostat_eta = 0.1;
  double repetition_penalty =
      1;  // logits of seen tokens are divided (positive) or multiplied by it (arXiv:1909.05858)
  /// Logits of source tokens (source_ids) are multiplied (positive) or divided by it.
  double encoder_repetition_penalty = 1;
  /// After `start` tokens of the answer, the logit z of stop tokens rises by |z| (factor^n - 1), n
  /// tokens later (transformers' exponential_decay_length_penalty); factor 1 = off.
  int64_t exponential_decay_start = 0;
  double exponential_decay_factor = 1;
  /// Logits of generated tokens fall by `presence`, and by `frequency` for each occurrence.
  double presence_penalty = 0, frequency_penalty = 0;
  /// Number of last tokens that penalties consider, of prompt and answer alike for all three. -1:
  /// repetition considers all, the other two all of the answer.
  int64_t repeat_last_n = -1;
  std::vector<std::pair<int64_t, double>> logit_bias = {};  // added; -infinity = never
  std::optional<std::vector<int64_t>> allowed_ids = {};     // no other tokens
  /// Added to the logit of a sequence's last token if its other tokens precede; -infinity = never.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias = {};
  std::vector<std::string> bad_words = {};  // never generated; find_ids() turns them into sequences
  /// Set for the request: tokens of the source, or else of the prompt; stop tokens.
  std::vector<int64_t> source_ids = {}, eos_ids = {};
  /// In this order. Samplers that are left out have no effect; without `temperature` it is 1.
  std::vector<Sampler> samplers = all_samplers();
  uint64_t seed = 0;

  /// Throws Error(usage) naming the option out of range.
  void check() const;
};

/// True if the sampler has any effect with these options.
bool acts(Sampler sampler, const SamplingOptions& options);
/// Whether sample() gives the most likely token, whatever the text before: temperature 0 without
/// masks, biases, penalties and filters that may drop the most likely one.
bool takes_most_likely(const SamplingOptions& options);
/// Tokenizes options given as text; bad words become sequences.
void find_ids(SamplingOptions& options, const text::Tokenizer& tokenizer);
/// Tokens that contain one of the texts. A text that no token contains has no effect.
std::vector<int64_t> breaker_ids(const text::Tokenizer& tokenizer,
                                 std::span<const std::string> texts);

/// Applies masks, biases, penalties and n-gram blocking to logits in place, as sample() does before
/// it filters. Returns false without a change if no such option is set.
bool change_logits(std::span<float> scores,
                   std::span<const int64_t> seen,
                   size_t given,
                   const SamplingOptions& options);

/// State of a row from one choice to the next.
struct SamplerMemory {
  std::optional<double> mu = {};  // of Mirostat
};

/// The next token after `seen`, of which the first `given` tokens are the prompt. `key` is the
/// row's random stream and the number of seen tokens its index, so the text of a row does not
/// depend on the batch. Ties go to the lowest id. Mirostat reads and updates `memory`; without one
/// it starts. `logprobs`: receives log-probabilities of the choice and of the `top` most likely
/// tokens under the distribution of the draw; they sum to 1, and a greedy choice has probability 1.
/// Throws Error(input) if no logit is finite.
int64_t sample(std::span<const float> logits,
               std::span<const int64_t> seen,
               const SamplingOptions& options,
               const RandomKey& key,
               size_t given = 0,
               SamplerMemory* memory = nullptr,
               int64_t top = 0,
               PositionLogprobs* logprobs = nullptr);

}  // namespace tessera::infer
