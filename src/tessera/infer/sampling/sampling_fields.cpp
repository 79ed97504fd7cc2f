// Sampling options as a table, for flags, settings, requests and checks.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/infer/sampling/sampling.h"
#include "tessera/spec/json.h"

namespace tessera::infer {
namespace {

using Options = SamplingOptions;

constexpr double kAny = std::numeric_limits<double>::max();
constexpr double kMostTokens = 1 << 24;

const SamplingField kFields[] = {
    {.name = "temperature",
     .doc = "sampling temperature; 0 = greedy decoding",
     .member = &Options::temperature,
     .least = 0,
     .most = kAny,
     .expected = "0 (greedy) or more",
     .asked_least = 0,
     .asked_most = 10,
     .sampler = Sampler::temperature},
    {.name = "dynatemp_range",
     .doc = "dynamic temperature: vary T by +-R with the entropy of the next token; 0 = off",
     .member = &Options::dynatemp_range,
     .least = 0,
     .most = kAny,
     .expected = "0 (it stays) or more",
     .asked_least = 0,
     .asked_most = 10,
     .filters = true,
     .sampler = Sampler::temperature},
    {.name = "dynatemp_exponent",
     .doc = "dynamic temperature: exponent of the normalized entropy",
     .member = &Options::dynatemp_exponent,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = 10,
     .filters = true,
     .sampler = Sampler::temperature},
    {.name = "top_k",
     .doc = "keep the k most likely tokens; 0 = all",
     .member = &Options::top_k,
     .least = 0,
     .most = kAny,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens,
     .filters = true,
     .sampler = Sampler::top_k},
    {.name = "top_p",
     .doc =
         "nucleus sampling: keep the smallest set of tokens with total probability >= p; 1 = off",
     .member = &Options::top_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::top_p},
    {.name = "min_p",
     .doc = "keep tokens with probability >= P times that of the most likely token; 0 = off",
     .member = &Options::min_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::min_p},
    {.name = "typical_p",
     .doc = "locally typical sampling: tokens with surprisal nearest the entropy, up to total "
            "probability p; 1 = off",
     .member = &Options::typical_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::typical_p},
    {.name = "top_n_sigma",
     .doc = "keep logits within n standard deviations of the largest; 0 = off",
     .member = &Options::top_n_sigma,
     .least = -1,
     .most = kAny,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = 100,
     .filters = true,
     .sampler = Sampler::top_n_sigma},
    {.name = "top_h",
     .doc = "keep the most likely tokens while their terms -p ln p sum to at most this share of "
            "the entropy; 0 = off",
     .member = &Options::top_h,
     .least = 0,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::top_h},
    {.name = "epsilon_cutoff",
     .doc = "epsilon sampling: drop tokens with probability below E; 0 = off",
     .member = &Options::epsilon_cutoff,
     .least = 0,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::epsilon},
    {.name = "eta_cutoff",
     .doc =
         "eta sampling: drop tokens with probability below min(E, sqrt(E) exp(-entropy)); 0 = off",
     .member = &Options::eta_cutoff,
     .least = 0,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::eta},
    {.name = "xtc_probability",
     .doc = "XTC: probability of dropping all tokens above the threshold except the least likely "
            "of them; 0 = off",
     .member = &Options::xtc_probability,
     .least = 0,
     .most = 1,
     .expected = "0 (never) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::xtc},
    {.name = "xtc_threshold",
     .doc = "XTC: probability threshold; above 0.5 = off",
     .member = &Options::xtc_threshold,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::xtc},
    {.name = "mirostat",
     .doc = "2 = Mirostat v2, in place of all filters; 0 = off",
     .member = &Options::mirostat,
     .least = 0,
     .most = 2,
     .expected = "0 (off) or 2",
     .asked_least = 0,
     .asked_most = 2,
     .filters = true},
    {.name = "mirostat_tau",
     .doc = "Mirostat: target surprise, bits",
     .member = &Options::mirostat_tau,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = 100,
     .filters = true},
    {.name = "mirostat_eta",
     .doc = "Mirostat: learning rate",
     .member = &Options::mirostat_eta,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true},
    {.name = "dry_multiplier",
     .doc = "DRY repetition penalty, strength; 0 = off",
     .member = &Options::dry_multiplier,
     .least = 0,
     .most = kAny,
     .expected = "0 (off) or more",
     .asked_least = 0,
     .asked_most = 100,
     .sampler = Sampler::dry},
    {.name = "dry_base",
     .doc = "DRY: penalty = multiplier * base^(match length - allowed length)",
     .member = &Options::dry_base,
     .least = 1,
     .most = kAny,
     .expected = "1 or more",
     .asked_least = 1,
     .asked_most = 10,
     .sampler = Sampler::dry},
    {.name = "dry_allowed_length",
     .doc = "DRY: shorter matches are free",
     .member = &Options::dry_allowed_length,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = 1024,
     .sampler = Sampler::dry},
    {.name = "dry_penalty_last_n",
     .doc = "DRY: tokens to scan for matches; -1 = all",
     .member = &Options::dry_penalty_last_n,
     .least = -1,
     .most = kAny,
     .expected = "-1 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens,
     .sampler = Sampler::dry},
    {.name = "no_repeat_ngram_size",
     .doc = "n-gram blocking: never generate an n-gram of this size twice; 0 = off",
     .member = &Options::no_repeat_ngram_size,
     .least = 0,
     .most = kAny,
     .expected = "0 (any may be) or more",
     .asked_least = 0,
     .asked_most = kMostTokens,
     .sampler = Sampler::no_repeat_ngram},
    {.name = "encoder_no_repeat_ngram_size",
     .doc = "n-gram blocking against the source: never generate an n-gram of this size that the "
            "encoder's input (of a decoder, the prompt) contains; 0 = off",
     .member = &Options::encoder_no_repeat_ngram_size,
     .least = 0,
     .most = kAny,
     .expected = "0 (off) or more",
     .asked_least = 0,
     .asked_most = kMostTokens,
     .sampler = Sampler::no_repeat_ngram},
    {.name = "repetition_penalty",
     .doc = "divides positive and multiplies negative logits of tokens seen in prompt or output; 1 "
            "= off",
     .member = &Options::repetition_penalty,
     .least = 0,
     .most = kAny,
     .expected = "more than 0",
     .asked_least = 0.01,
     .asked_most = 10,
     .alias = "repeat_penalty",
     .sampler = Sampler::penalties,
     .above = true},
    {.name = "encoder_repetition_penalty",
     .doc = "above 1: tokens of the encoder's input (of a decoder, the prompt) become more likely; "
            "1 = off",
     .member = &Options::encoder_repetition_penalty,
     .least = 0,
     .most = kAny,
     .expected = "more than 0",
     .asked_least = 0.01,
     .asked_most = 10,
     .sampler = Sampler::penalties,
     .above = true},
    {.name = "exponential_decay_start",
     .doc = "with exponential_decay_factor: new tokens before the end-of-sequence token gains",
     .member = &Options::exponential_decay_start,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = kMostTokens,
     .sampler = Sampler::penalties},
    {.name = "exponential_decay_factor",
     .doc =
         "exponential length penalty: n tokens after exponential_decay_start, the end-of-sequence "
         "logit z rises by |z| (factor^n - 1); 1 = off",
     .member = &Options::exponential_decay_factor,
     .least = 0,
     .most = kAny,
     .expected = "more than 0",
     .asked_least = 0.01,
     .asked_most = 10,
     .sampler = Sampler::penalties,
     .above = true},
    {.name = "presence_penalty",
     .doc = "subtracted from the logit of every token that the output contains; 0 = off",
     .member = &Options::presence_penalty,
     .least = -kAny,
     .most = kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2,
     .sampler = Sampler::penalties},
    {.name = "frequency_penalty",
     .doc = "subtracted from a token's logit for each time the output contains it; 0 = off",
     .member = &Options::frequency_penalty,
     .least = -kAny,
     .most = kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2,
     .sampler = Sampler::penalties},
    {.name = "repeat_last_n",
     .doc =
         "penalty window, tokens of prompt and output; -1 = all (presence, frequency: output only)",
     .member = &Options::repeat_last_n,
     .least = -1,
     .most = kAny,
     .expected = "-1 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens,
     .sampler = Sampler::penalties}};

}  // namespace

double SamplingField::get(const SamplingOptions& options) const {
  return std::visit([&](auto m) { return static_cast<double>(options.*m); }, member);
}

void SamplingField::set(SamplingOptions& options, double value) const {
  std::visit(
      [&](auto m) {
        using Value = std::remove_reference_t<decltype(options.*m)>;
        constexpr double kMost = 0x1p62;  // a cast of a larger value is undefined
        if constexpr (std::is_integral_v<Value>) value = std::clamp(value, -kMost, kMost);
        options.*m = static_cast<Value>(value);
      },
      member);
}

std::string SamplingField::flag() const {
  std::string out = std::string("--") + name;
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::span<const SamplingField> sampling_fields() {
  return kFields;
}

const SamplingField* sampling_field(std::string_view name) {
  for (const SamplingField& field : kFields)
    if (field.name == name || field.flag().substr(2) == name ||
        (*field.alias && field.alias == name))
      return &field;
  return nullptr;
}

std::span<const std::string> sampler_names() {
  static const std::vector<std::string> kNames = {
      "penalties", "no_repeat_ngram", "dry",       "top_n_sigma", "temperature", "top_h", "top_k",
      "top_p",     "min_p",           "typical_p", "epsilon",     "eta",         "xtc"};
  return kNames;
}

std::vector<Sampler> all_samplers() {
  std::vector<Sampler> all;
  for (size_t i = 0; i < sampler_names().size(); ++i) all.push_back(static_cast<Sampler>(i));
  return all;
}

std::vector<Sampler> samplers_named(std::span<const std::string> names) {
  const std::vector<std::string> known(sampler_names().begin(), sampler_names().end());
  std::vector<Sampler> out;
  for (const std::string& name : names) {
    const auto found = std::find(known.begin(), known.end(), name == "typ_p" ? "typical_p" : name);
    if (found == known.end()) {
      const std::string nearest = spec::nearest_name(name, known);
      fail(ErrorKind::usage, "generate", "samplers: there is no {}; {}",
           spec::Json(name.substr(0, 60)).dump(-1, ' ', true, spec::Json::error_handler_t::replace),
           nearest.empty() ? fmt::format("expected some of {}", fmt::join(known, ", "))
                           : fmt::format("did you mean {}?", nearest));
    }
    const auto sampler = static_cast<Sampler>(found - known.begin());
    if (std::find(out.begin(), out.end(), sampler) != out.end())
      fail(ErrorKind::usage, "generate", "samplers: {} comes twice; expected each once", *found);
    out.push_back(sampler);
  }
  return out;
}

std::string to_string(std::span<const Sampler> samplers) {
  std::string out;
  for (const Sampler sampler : samplers)
    out += (out.empty() ? "" : ",") + sampler_names()[static_cast<size_t>(sampler)];
  return out;
}

bool filters(Sampler sampler) {
  return sampler >= Sampler::top_n_sigma && sampler != Sampler::temperature;
}

bool acts(Sampler sampler, const SamplingOptions& o) {
  switch (sampler) {
    case Sampler::penalties:
      return o.encoder_repetition_penalty != 1 || o.repetition_penalty != 1 ||
             o.presence_penalty != 0 || o.frequency_penalty != 0 || o.exponential_decay_factor != 1;
    case Sampler::no_repeat_ngram:
      return o.no_repeat_ngram_size > 0 || o.encoder_no_repeat_ngram_size > 0;
    case Sampler::dry:
      return o.dry_multiplier > 0;
    case Sampler::top_n_sigma:
      return o.top_n_sigma > 0;
    case Sampler::temperature:
      return o.temperature != 1 || o.dynatemp_range > 0;
    case Sampler::top_h:
      return o.top_h > 0;
    case Sampler::top_k:
      return o.top_k > 0;
    case Sampler::top_p:
      return o.top_p < 1;
    case Sampler::min_p:
      return o.min_p > 0;
    case Sampler::typical_p:
      return o.typical_p < 1;
    case Sampler::epsilon:
      return o.epsilon_cutoff > 0;
    case Sampler::eta:
      return o.eta_cutoff > 0;
    case Sampler::xtc:
      return o.xtc_probability > 0;
  }
  return true;
}

std::string conflict_among(const SamplingOptions& options,
                           const std::function<bool(const SamplingField&)>& given) {
  for (const SamplingField& field : kFields) {
    if (!given(field)) continue;
    if (options.mirostat != 0 && field.filters &&
        !std::string_view(field.name).starts_with("mirostat"))
      return fmt::format("{} with mirostat, which replaces all filters; leave one of them out",
                         field.name);
    if (field.sampler && std::find(options.samplers.begin(), options.samplers.end(),
                                   *field.sampler) == options.samplers.end())
      return fmt::format("{} without {} among samplers; leave it out, or name that one too",
                         field.name, sampler_names()[static_cast<size_t>(*field.sampler)]);
  }
  if (options.mirostat != 0 && options.samplers != all_samplers())
    return "samplers with mirostat, which replaces all filters; leave one of them out";
  return "";
}

void SamplingOptions::check() const {
  for (const SamplingField& field : kFields) {
    const double value = field.get(*this);
    const bool holds = std::isfinite(value) && value <= field.most &&
                       (field.above ? value > field.least : value >= field.least);
    if (!holds)
      fail(ErrorKind::usage, "generate", "{} = {}; expected {}", field.name, value, field.expected);
  }
  if (mirostat == 1) fail(ErrorKind::usage, "generate", "mirostat = 1; expected 0 (off) or 2");
  for (const auto& [id, bias] : logit_bias)
    if (id < 0 || !(bias < INFINITY))
      fail(ErrorKind::usage, "generate",
           "logit_bias of {} for token {}; expected a number, or -infinity, for an id of the "
           "vocabulary",
           bias, id);
  for (const auto& [sequence, bias] : sequence_bias)
    if (sequence.empty() || !(bias < INFINITY) ||
        std::any_of(sequence.begin(), sequence.end(), [](int64_t id) { return id < 0; }))
      fail(ErrorKind::usage, "generate",
           "sequence_bias of {} for tokens {}; expected a number, or -infinity, for ids of the "
           "vocabulary",
           bias, fmt::join(sequence, ","));
}

}  // namespace tessera::infer
