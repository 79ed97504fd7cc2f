// The options of sampling as a table: what flags, settings, requests and checks know of each.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/infer/sampling.h"
#include "tessera/spec/json.h"

namespace tessera::infer {
namespace {

using Options = SamplingOptions;

constexpr double kAny = std::numeric_limits<double>::max();
constexpr double kMostTokens = 1 << 24;

const SamplingField kFields[] = {
    {.name = "temperature",
     .doc = "0 = the most likely token each time",
     .member = &Options::temperature,
     .least = 0,
     .most = kAny,
     .expected = "0 (greedy) or more",
     .asked_least = 0,
     .asked_most = 10,
     .sampler = Sampler::temperature},
    {.name = "dynatemp_range",
     .doc =
         "the temperature moves by up to so much with how unsure the next token is; 0 = it stays",
     .member = &Options::dynatemp_range,
     .least = 0,
     .most = kAny,
     .expected = "0 (it stays) or more",
     .asked_least = 0,
     .asked_most = 10,
     .filters = true,
     .sampler = Sampler::temperature},
    {.name = "dynatemp_exponent",
     .doc = "how it does: the power of the share of the largest entropy",
     .member = &Options::dynatemp_exponent,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = 10,
     .filters = true,
     .sampler = Sampler::temperature},
    {.name = "top_k",
     .doc = "only the k most likely; 0 = all",
     .member = &Options::top_k,
     .least = 0,
     .most = kAny,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens,
     .filters = true,
     .sampler = Sampler::top_k},
    {.name = "top_p",
     .doc = "only the most likely that make up p",
     .member = &Options::top_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::top_p},
    {.name = "min_p",
     .doc = "only those at least so likely, relative to the best",
     .member = &Options::min_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::min_p},
    {.name = "typical_p",
     .doc = "only those as surprising as is to be expected, until they make up p; 1 = all",
     .member = &Options::typical_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::typical_p},
    {.name = "top_n_sigma",
     .doc = "only logits at most so many standard deviations below the best; 0 = all",
     .member = &Options::top_n_sigma,
     .least = -1,
     .most = kAny,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = 100,
     .filters = true,
     .sampler = Sampler::top_n_sigma},
    {.name = "top_h",
     .doc = "only the most likely that make up this share of the entropy; 0 = all",
     .member = &Options::top_h,
     .least = 0,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::top_h},
    {.name = "epsilon_cutoff",
     .doc = "only those at least so likely; 0 = all",
     .member = &Options::epsilon_cutoff,
     .least = 0,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::epsilon},
    {.name = "eta_cutoff",
     .doc = "the same, less where the next token is unsure; 0 = all",
     .member = &Options::eta_cutoff,
     .least = 0,
     .most = 1,
     .expected = "0 (all) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::eta},
    {.name = "xtc_probability",
     .doc = "the chance that all likely tokens but the least likely of them are dropped",
     .member = &Options::xtc_probability,
     .least = 0,
     .most = 1,
     .expected = "0 (never) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::xtc},
    {.name = "xtc_threshold",
     .doc = "how likely these are; above 0.5 nothing is dropped",
     .member = &Options::xtc_threshold,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true,
     .sampler = Sampler::xtc},
    {.name = "mirostat",
     .doc = "2 = keeps the surprise of tokens near mirostat_tau, in place of all filters; 0 = off",
     .member = &Options::mirostat,
     .least = 0,
     .most = 2,
     .expected = "0 (off) or 2",
     .asked_least = 0,
     .asked_most = 2,
     .filters = true},
    {.name = "mirostat_tau",
     .doc = "the surprise in bits that it aims at",
     .member = &Options::mirostat_tau,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = 100,
     .filters = true},
    {.name = "mirostat_eta",
     .doc = "how fast it follows",
     .member = &Options::mirostat_eta,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true},
    {.name = "dry_multiplier",
     .doc = "above 0: tokens that would repeat a run of the text become less likely (DRY)",
     .member = &Options::dry_multiplier,
     .least = 0,
     .most = kAny,
     .expected = "0 (off) or more",
     .asked_least = 0,
     .asked_most = 100,
     .sampler = Sampler::dry},
    {.name = "dry_base",
     .doc = "by this factor more for each token that the run is longer",
     .member = &Options::dry_base,
     .least = 1,
     .most = kAny,
     .expected = "1 or more",
     .asked_least = 1,
     .asked_most = 10,
     .sampler = Sampler::dry},
    {.name = "dry_allowed_length",
     .doc = "shorter runs may be repeated",
     .member = &Options::dry_allowed_length,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = 1024,
     .sampler = Sampler::dry},
    {.name = "dry_penalty_last_n",
     .doc = "DRY looks at the last n tokens; -1 = all",
     .member = &Options::dry_penalty_last_n,
     .least = -1,
     .most = kAny,
     .expected = "-1 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens,
     .sampler = Sampler::dry},
    {.name = "no_repeat_ngram_size",
     .doc = "no run of so many tokens is said twice; 0 = any may be",
     .member = &Options::no_repeat_ngram_size,
     .least = 0,
     .most = kAny,
     .expected = "0 (any may be) or more",
     .asked_least = 0,
     .asked_most = kMostTokens,
     .sampler = Sampler::no_repeat_ngram},
    {.name = "repetition_penalty",
     .doc = "above 1: tokens seen become less likely",
     .member = &Options::repetition_penalty,
     .least = 0,
     .most = kAny,
     .expected = "more than 0",
     .asked_least = 0.01,
     .asked_most = 10,
     .alias = "repeat_penalty",
     .sampler = Sampler::penalties,
     .above = true},
    {.name = "presence_penalty",
     .doc = "what logits of tokens that the answer has said fall by",
     .member = &Options::presence_penalty,
     .least = -kAny,
     .most = kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2,
     .sampler = Sampler::penalties},
    {.name = "frequency_penalty",
     .doc = "the same for each time that they were said",
     .member = &Options::frequency_penalty,
     .least = -kAny,
     .most = kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2,
     .sampler = Sampler::penalties},
    {.name = "repeat_last_n",
     .doc = "these three look at the last n tokens; -1 = all of the answer, and the first of the "
            "prompt too",
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
        constexpr double kMost = 0x1p62;  // a cast of more is undefined
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

std::string conflict_among(const SamplingOptions& options,
                           const std::function<bool(const SamplingField&)>& given) {
  for (const SamplingField& field : kFields) {
    if (!given(field)) continue;
    if (options.mirostat != 0 && field.filters &&
        !std::string_view(field.name).starts_with("mirostat"))
      return fmt::format(
          "{} beside mirostat, which stands in place of all filters; leave one of them "
          "out",
          field.name);
    if (field.sampler && std::find(options.samplers.begin(), options.samplers.end(),
                                   *field.sampler) == options.samplers.end())
      return fmt::format("{} without {} among samplers; leave it out, or name that one too",
                         field.name, sampler_names()[static_cast<size_t>(*field.sampler)]);
  }
  if (options.mirostat != 0 && options.samplers != all_samplers())
    return "samplers beside mirostat, which stands in place of all filters; leave one of them out";
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
}

}  // namespace tessera::infer
