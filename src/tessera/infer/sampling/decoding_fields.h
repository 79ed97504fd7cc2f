// The options of decoding as one list: names, doc line, bounds, and where each is accepted. From it
// come flags with their help, the chat's settings, request fields with their checks and
// /openapi.json, settings of the library, the keys that generation_config.json and GGUF files may
// set, and tables of the documentation. Defaults are those of the options' structs. Torch-free.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/convert/generation_config.h"
#include "tessera/infer/sampling/sampling.h"

namespace tessera::infer {

/// Where an option is accepted: as a flag of `tessera generate` (and of `tessera chat`, if it
/// applies there), as a field of generation requests, as a setting of the library's calls.
enum Accepted : unsigned { in_flags = 1, in_requests = 2, in_settings = 4, everywhere = 7 };

struct DecodingField {
  const char* name;  // as a setting of the library; the flag has dashes for underscores
  const char* doc;
  unsigned accepted = everywhere;
  /// For a number of SamplingOptions: the member.
  std::variant<std::monostate, double SamplingOptions::*, int64_t SamplingOptions::*> member = {};
  double least = 0, most = kAny;           // valid range of a number
  const char* expected = "";               // the same in words
  bool above = false;                      // `least` itself is not valid
  double asked_least = 0, asked_most = 0;  // range allowed in requests of the server
  bool filters = false;                    // no effect with greedy decoding (temperature 0)
  std::optional<Sampler> sampler = {};     // the sampler that it configures
  /// All names of its flag, separated by commas, if they are not the one of `name`.
  const char* flags = "";
  const char* request = "";  // name of the request's field, if it is not `name`
  const char* aliases = "";  // further names of that field, separated by commas
  const char* config = "";  // key of generation_config.json; "" = none
  const char* gguf = "";    // key of GGUF metadata, after "general.sampling."; "" = none

  /// No bound.
  static constexpr double kAny = std::numeric_limits<double>::max();

  bool whole() const { return member.index() == 2; }
  /// Of a number of SamplingOptions.
  double get(const SamplingOptions& options) const;
  /// The value must be an integer if whole().
  void set(SamplingOptions& options, double value) const;
  /// "--temperature,--temp"
  std::string flag_names() const;
  /// The first of them: "--temperature".
  std::string flag() const;
  /// Name of the request's field.
  std::string request_name() const { return *request != '\0' ? request : name; }
  std::vector<std::string> request_aliases() const;
  /// The doc line, then what a consumer alone adds, such as "; repeatable".
  std::string with(std::string_view more) const { return std::string(doc).append(more); }
};

/// Tokens: no request may ask for more.
inline constexpr int64_t kMostAsked = int64_t{1} << 30;

namespace detail {
inline constexpr double kAny = DecodingField::kAny, kMostWindow = 1 << 24;
}  // namespace detail

/// Numbers of SamplingOptions first.
inline constexpr DecodingField kDecodingFields[] = {
    {.name = "temperature",
     .doc = "sampling temperature; 0 = greedy decoding",
     .member = &SamplingOptions::temperature,
     .expected = "0 (greedy) or more",
     .asked_most = 10,
     .sampler = Sampler::temperature,
     .flags = "--temperature,--temp",
     .config = "temperature",
     .gguf = "temp"},
    {.name = "dynatemp_range",
     .doc = "dynamic temperature: vary T by +-R with the entropy of the next token; 0 = off",
     .member = &SamplingOptions::dynatemp_range,
     .expected = "0 (it stays) or more",
     .asked_most = 10,
     .filters = true,
     .sampler = Sampler::temperature},
    {.name = "dynatemp_exponent",
     .doc = "dynamic temperature: exponent of the normalized entropy",
     .member = &SamplingOptions::dynatemp_exponent,
     .expected = "0 or more",
     .asked_most = 10,
     .filters = true,
     .sampler = Sampler::temperature,
     .flags = "--dynatemp-exponent,--dynatemp-exp"},
    {.name = "top_k",
     .doc = "keep the k most likely tokens; 0 = all",
     .member = &SamplingOptions::top_k,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = detail::kMostWindow,
     .filters = true,
     .sampler = Sampler::top_k,
     .config = "top_k",
     .gguf = "top_k"},
    {.name = "top_p",
     .doc =
         "nucleus sampling: keep the smallest set of tokens with total probability >= p; 1 = off",
     .member = &SamplingOptions::top_p,
     .most = 1,
     .expected = "0 to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::top_p,
     .config = "top_p",
     .gguf = "top_p"},
    {.name = "min_p",
     .doc = "keep tokens with probability >= P times that of the most likely token; 0 = off",
     .member = &SamplingOptions::min_p,
     .most = 1,
     .expected = "0 to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::min_p,
     .config = "min_p",
     .gguf = "min_p"},
    {.name = "typical_p",
     .doc = "locally typical sampling: tokens with surprisal nearest the entropy, up to total "
            "probability p; 1 = off",
     .member = &SamplingOptions::typical_p,
     .most = 1,
     .expected = "0 to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::typical_p,
     .flags = "--typical-p,--typical",
     .config = "typical_p"},
    {.name = "top_n_sigma",
     .doc = "keep logits within n standard deviations of the largest; 0 = off",
     .member = &SamplingOptions::top_n_sigma,
     .least = -1,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = 100,
     .filters = true,
     .sampler = Sampler::top_n_sigma,
     .flags = "--top-n-sigma,--top-nsigma"},
    {.name = "top_h",
     .doc = "keep the most likely tokens while their terms -p ln p sum to at most this share of "
            "the entropy; 0 = off",
     .member = &SamplingOptions::top_h,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::top_h,
     .config = "top_h"},
    {.name = "epsilon_cutoff",
     .doc = "epsilon sampling: drop tokens with probability below E; 0 = off",
     .member = &SamplingOptions::epsilon_cutoff,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::epsilon,
     .config = "epsilon_cutoff"},
    {.name = "eta_cutoff",
     .doc =
         "eta sampling: drop tokens with probability below min(E, sqrt(E) exp(-entropy)); 0 = off",
     .member = &SamplingOptions::eta_cutoff,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::eta,
     .config = "eta_cutoff"},
    {.name = "xtc_probability",
     .doc = "XTC: probability of dropping all tokens above the threshold except the least likely "
            "of them; 0 = off",
     .member = &SamplingOptions::xtc_probability,
     .most = 1,
     .expected = "0 (never) to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::xtc,
     .gguf = "xtc_probability"},
    {.name = "xtc_threshold",
     .doc = "XTC: probability threshold; above 0.5 = off",
     .member = &SamplingOptions::xtc_threshold,
     .most = 1,
     .expected = "0 to 1",
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::xtc,
     .gguf = "xtc_threshold"},
    {.name = "mirostat",
     .doc = "2 = Mirostat v2, in place of all filters; 0 = off",
     .member = &SamplingOptions::mirostat,
     .most = 2,
     .expected = "0 (off) or 2",
     .asked_most = 2,
     .filters = true,
     .gguf = "mirostat"},
    {.name = "mirostat_tau",
     .doc = "Mirostat: target surprise, bits",
     .member = &SamplingOptions::mirostat_tau,
     .expected = "0 or more",
     .asked_most = 100,
     .filters = true,
     .flags = "--mirostat-tau,--mirostat-ent",
     .gguf = "mirostat_tau"},
    {.name = "mirostat_eta",
     .doc = "Mirostat: learning rate",
     .member = &SamplingOptions::mirostat_eta,
     .most = 1,
     .expected = "0 to 1",
     .asked_most = 1,
     .filters = true,
     .flags = "--mirostat-eta,--mirostat-lr",
     .gguf = "mirostat_eta"},
    {.name = "dry_multiplier",
     .doc = "DRY repetition penalty, strength; 0 = off",
     .member = &SamplingOptions::dry_multiplier,
     .expected = "0 (off) or more",
     .asked_most = 100,
     .sampler = Sampler::dry},
    {.name = "dry_base",
     .doc = "DRY: penalty = multiplier * base^(match length - allowed length)",
     .member = &SamplingOptions::dry_base,
     .least = 1,
     .expected = "1 or more",
     .asked_least = 1,
     .asked_most = 10,
     .sampler = Sampler::dry},
    {.name = "dry_allowed_length",
     .doc = "DRY: shorter matches are free",
     .member = &SamplingOptions::dry_allowed_length,
     .expected = "0 or more",
     .asked_most = 1024,
     .sampler = Sampler::dry},
    {.name = "dry_penalty_last_n",
     .doc = "DRY: tokens to scan for matches; -1 = all",
     .member = &SamplingOptions::dry_penalty_last_n,
     .least = -1,
     .expected = "-1 (all) or more",
     .asked_least = -1,
     .asked_most = detail::kMostWindow,
     .sampler = Sampler::dry},
    {.name = "no_repeat_ngram_size",
     .doc = "n-gram blocking: never generate an n-gram of this size twice; 0 = off",
     .member = &SamplingOptions::no_repeat_ngram_size,
     .expected = "0 (any may be) or more",
     .asked_most = detail::kMostWindow,
     .sampler = Sampler::no_repeat_ngram,
     .config = "no_repeat_ngram_size"},
    {.name = "encoder_no_repeat_ngram_size",
     .doc = "n-gram blocking against the source: never generate an n-gram of this size that the "
            "encoder's input (of a decoder, the prompt) contains; 0 = off",
     .member = &SamplingOptions::encoder_no_repeat_ngram_size,
     .expected = "0 (off) or more",
     .asked_most = detail::kMostWindow,
     .sampler = Sampler::no_repeat_ngram,
     .config = "encoder_no_repeat_ngram_size"},
    {.name = "repetition_penalty",
     .doc = "divides positive and multiplies negative logits of tokens seen in prompt or output; 1 "
            "= off",
     .member = &SamplingOptions::repetition_penalty,
     .expected = "more than 0",
     .above = true,
     .asked_least = 0.01,
     .asked_most = 10,
     .sampler = Sampler::penalties,
     .flags = "--repetition-penalty,--repeat-penalty",
     .aliases = "repeat_penalty",
     .config = "repetition_penalty",
     .gguf = "penalty_repeat"},
    {.name = "encoder_repetition_penalty",
     .doc = "above 1: tokens of the encoder's input (of a decoder, the prompt) become more likely; "
            "1 = off",
     .member = &SamplingOptions::encoder_repetition_penalty,
     .expected = "more than 0",
     .above = true,
     .asked_least = 0.01,
     .asked_most = 10,
     .sampler = Sampler::penalties,
     .config = "encoder_repetition_penalty"},
    {.name = "exponential_decay_start",
     .doc = "with exponential_decay_factor: new tokens before the end-of-sequence token gains",
     .member = &SamplingOptions::exponential_decay_start,
     .expected = "0 or more",
     .asked_most = detail::kMostWindow,
     .sampler = Sampler::penalties},
    {.name = "exponential_decay_factor",
     .doc =
         "exponential length penalty: n tokens after exponential_decay_start, the end-of-sequence "
         "logit z rises by |z| (factor^n - 1); 1 = off",
     .member = &SamplingOptions::exponential_decay_factor,
     .expected = "more than 0",
     .above = true,
     .asked_least = 0.01,
     .asked_most = 10,
     .sampler = Sampler::penalties},
    {.name = "presence_penalty",
     .doc = "subtracted from the logit of every token that the output contains; 0 = off",
     .member = &SamplingOptions::presence_penalty,
     .least = -detail::kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2,
     .sampler = Sampler::penalties},
    {.name = "frequency_penalty",
     .doc = "subtracted from a token's logit for each time the output contains it; 0 = off",
     .member = &SamplingOptions::frequency_penalty,
     .least = -detail::kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2,
     .sampler = Sampler::penalties},
    {.name = "repeat_last_n",
     .doc =
         "penalty window, tokens of prompt and output; -1 = all (presence, frequency: output only)",
     .member = &SamplingOptions::repeat_last_n,
     .least = -1,
     .expected = "-1 (all) or more",
     .asked_least = -1,
     .asked_most = detail::kMostWindow,
     .sampler = Sampler::penalties,
     .gguf = "penalty_last_n"},
    // --- length and end ---
    {.name = "max_new_tokens",
     .doc = "maximum new tokens; -1 = until the end of text or of the context",
     .least = -1,
     .asked_least = -1,
     .asked_most = kMostAsked,
     .flags = "--max-new-tokens,-n,--n-predict,--predict,--max-tokens",
     .request = "max_completion_tokens",
     .aliases = "max_tokens,max_new_tokens,n_predict",
     .config = "max_new_tokens"},
    {.name = "min_new_tokens",
     .doc = "minimum new tokens before end of text",
     .asked_most = kMostAsked,
     .request = "min_tokens",
     .aliases = "min_new_tokens",
     .config = "min_new_tokens"},
    {.name = "stop",
     .doc = "stop string: the output ends before it",
     .flags = "--stop,-r,--reverse-prompt",
     .config = "stop_strings"},
    {.name = "stop_token_ids", .doc = "stop token ids", .accepted = in_requests},
    {.name = "include_stop_str_in_output",
     .doc = "keep the stop string in the output",
     .accepted = in_requests},
    {.name = "ignore_eos", .doc = "do not stop at end of text"},
    {.name = "context",
     .doc = "context length: maximum tokens, prompt included; 0 = the model's",
     .accepted = in_flags | in_settings,
     .flags = "--context,-c,--ctx-size,--max-model-len"},
    {.name = "context_shift",
     .doc = "when the context is full: drop the older half after the first tokens (--keep-first) "
            "and recompute",
     .accepted = in_flags | in_settings},
    // --- tokens ---
    {.name = "seed",
     .doc = "random seed, 0 to 2^64 - 1; -1 = a new one",
     .expected = "a whole number up to 2^64 - 1, or -1 for a new seed",
     .flags = "--seed,-s"},
    {.name = "samplers",
     .doc = "order of the samplers; those left out are off",
     .accepted = in_flags | in_requests},
    {.name = "dry_sequence_breakers",
     .doc = "DRY: strings that end a match; default: newline : \" *",
     .accepted = in_flags | in_requests,
     .flags = "--dry-sequence-breaker"},
    {.name = "bad_words",
     .doc = "banned strings, as tokenized alone or after a space",
     .flags = "--bad-word"},
    {.name = "logit_bias",
     .doc = "added to the logits of tokens",
     .accepted = in_flags | in_requests,
     .asked_least = -100,
     .asked_most = 100},
    {.name = "sequence_bias",
     .doc = "added to the logit of a sequence's last token where the other tokens precede it",
     .accepted = in_requests,
     .asked_least = -1e9,
     .asked_most = 1e9,
     .config = "sequence_bias"},
    {.name = "allowed_token_ids",
     .doc = "only these tokens may be generated",
     .accepted = in_requests},
    // --- results ---
    {.name = "choices",
     .doc = "number of completions per prompt (n)",
     .accepted = in_flags | in_requests,
     .least = 1,
     .most = 1024,
     .asked_least = 1,
     .asked_most = 16,
     .flags = "--choices,--num-return-sequences",
     .request = "n",
     .aliases = "n_cmpl"},
    {.name = "logprobs",
     .doc = "log-probabilities of the output tokens and of the N most likely",
     .accepted = in_flags | in_requests,
     .most = 1000,
     .asked_most = 20},
    // --- constrained decoding ---
    {.name = "grammar",
     .doc = "constrain the output to a GBNF grammar",
     .flags = "--grammar,--grammar-file"},
    {.name = "json_schema",
     .doc = "constrain the output to a JSON schema",
     .flags = "--json-schema,-j,--json-schema-file"},
    {.name = "regex",
     .doc = "constrain the whole output to a regular expression",
     .accepted = in_flags | in_settings},
    // --- beam search ---
    {.name = "beams",
     .doc = "beam search: number of beams; 1 = off",
     .accepted = in_flags | in_requests,
     .least = 1,
     .most = 1024,
     .asked_least = 1,
     .asked_most = 16,
     .flags = "--beams,--num-beams",
     .aliases = "num_beams",
     .config = "num_beams"},
    {.name = "length_penalty",
     .doc = "beam search: score = log p / length^penalty; above 0 favours long outputs",
     .accepted = in_flags | in_requests,
     .least = -detail::kAny,
     .asked_least = -10,
     .asked_most = 10,
     .config = "length_penalty"},
    {.name = "early_stopping",
     .doc = "beam search: when it ends with as many finished hypotheses as beams. true: at once; "
            "false: no other is better at its present length; never: none can become better at "
            "any length",
     .accepted = in_flags | in_requests,
     .config = "early_stopping"},
    // --- Mask-Predict: requests of /v1/translate ---
    {.name = "iterations",
     .doc = "Mask-Predict models: refinement iterations",
     .accepted = in_flags | in_requests,
     .least = 1,
     .most = 1024,
     .asked_least = 1,
     .asked_most = 64},
    {.name = "length_candidates",
     .doc = "Mask-Predict models: output lengths decoded in parallel",
     .accepted = in_flags | in_requests,
     .least = 1,
     .most = 1024,
     .asked_least = 1,
     .asked_most = 64}};

/// All of them.
inline std::span<const DecodingField> decoding_fields() {
  return kDecodingFields;
}
/// The option of that name; does not compile without one.
consteval const DecodingField& decoding_field(std::string_view name) {
  for (const DecodingField& field : kDecodingFields)
    if (field.name == name) return field;
  throw "there is no decoding option of that name";
}

/// The numbers of SamplingOptions.
std::span<const DecodingField> sampling_fields();
/// Such a number by name, by another name of its request field or, with dashes, by flag; nullptr if
/// unknown.
const DecodingField* sampling_field(std::string_view name);
/// Why the given fields exclude each other: filters with Mirostat, options of samplers that are
/// left out. Empty if they do not.
std::string conflict_among(const SamplingOptions& options,
                           const std::function<bool(const DecodingField&)>& given);

/// The numbers of SamplingOptions that a model's generation_config.json may set; general.sampling.*
/// of a GGUF file.
std::span<const convert::NumberKey> config_numbers();
std::span<const convert::NumberKey> gguf_numbers();

}  // namespace tessera::infer
