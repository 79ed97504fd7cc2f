// The options of sampling as a table: what flags, settings, requests and checks know of each.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/infer/sampling.h"

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
     .asked_most = 10},
    {.name = "top_k",
     .doc = "only the k most likely; 0 = all",
     .member = &Options::top_k,
     .least = 0,
     .most = kAny,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens,
     .filters = true},
    {.name = "top_p",
     .doc = "only the most likely that make up p",
     .member = &Options::top_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true},
    {.name = "min_p",
     .doc = "only those at least so likely, relative to the best",
     .member = &Options::min_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true},
    {.name = "typical_p",
     .doc = "only those as surprising as is to be expected, until they make up p; 1 = all",
     .member = &Options::typical_p,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true},
    {.name = "top_n_sigma",
     .doc = "only logits at most so many standard deviations below the best; 0 = all",
     .member = &Options::top_n_sigma,
     .least = -1,
     .most = kAny,
     .expected = "0 (all) or more",
     .asked_least = -1,
     .asked_most = 100,
     .filters = true},
    {.name = "xtc_probability",
     .doc = "the chance that all likely tokens but the least likely of them are dropped",
     .member = &Options::xtc_probability,
     .least = 0,
     .most = 1,
     .expected = "0 (never) to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true},
    {.name = "xtc_threshold",
     .doc = "how likely these are; above 0.5 nothing is dropped",
     .member = &Options::xtc_threshold,
     .least = 0,
     .most = 1,
     .expected = "0 to 1",
     .asked_least = 0,
     .asked_most = 1,
     .filters = true},
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
     .asked_most = 100},
    {.name = "dry_base",
     .doc = "by this factor more for each token that the run is longer",
     .member = &Options::dry_base,
     .least = 1,
     .most = kAny,
     .expected = "1 or more",
     .asked_least = 1,
     .asked_most = 10},
    {.name = "dry_allowed_length",
     .doc = "shorter runs may be repeated",
     .member = &Options::dry_allowed_length,
     .least = 0,
     .most = kAny,
     .expected = "0 or more",
     .asked_least = 0,
     .asked_most = 1024},
    {.name = "dry_penalty_last_n",
     .doc = "DRY looks at the last n tokens; -1 = all",
     .member = &Options::dry_penalty_last_n,
     .least = -1,
     .most = kAny,
     .expected = "-1 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens},
    {.name = "repetition_penalty",
     .doc = "above 1: tokens seen become less likely",
     .member = &Options::repetition_penalty,
     .least = 0,
     .most = kAny,
     .expected = "more than 0",
     .asked_least = 0.01,
     .asked_most = 10,
     .alias = "repeat_penalty",
     .above = true},
    {.name = "presence_penalty",
     .doc = "what logits of tokens that the answer has said fall by",
     .member = &Options::presence_penalty,
     .least = -kAny,
     .most = kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2},
    {.name = "frequency_penalty",
     .doc = "the same for each time that they were said",
     .member = &Options::frequency_penalty,
     .least = -kAny,
     .most = kAny,
     .expected = "a number",
     .asked_least = -2,
     .asked_most = 2},
    {.name = "repeat_last_n",
     .doc = "these three look at the last n tokens; -1 = all of the answer, and the first of the "
            "prompt too",
     .member = &Options::repeat_last_n,
     .least = -1,
     .most = kAny,
     .expected = "-1 (all) or more",
     .asked_least = -1,
     .asked_most = kMostTokens}};

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

std::string mirostat_conflict(const SamplingOptions& options,
                              const std::function<bool(const SamplingField&)>& given) {
  if (options.mirostat == 0) return "";
  for (const SamplingField& field : kFields)
    if (field.filters && !std::string_view(field.name).starts_with("mirostat") && given(field))
      return fmt::format(
          "{} beside mirostat, which stands in place of all filters; leave one of them "
          "out",
          field.name);
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
