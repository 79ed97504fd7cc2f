#include "tessera/infer/sampling/decoding_fields.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::infer {
namespace {

constexpr size_t kNumbers = [] {
  size_t n = 0;
  while (n < std::size(kDecodingFields) && kDecodingFields[n].member.index() != 0) ++n;
  return n;
}();

std::string flag_of(const char* name) {
  std::string out = std::string("--") + name;
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::vector<std::string> items_of(std::string_view list) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    out.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

/// The numbers that a file may set by the key of that member. -1 of a window or a list means all,
/// where requests take it.
std::vector<convert::NumberKey> numbers_of(const char* DecodingField::*key) {
  constexpr double kMostWhole = 1e9, kMost = 1e6, kLeastAbove = 1e-6;
  std::vector<convert::NumberKey> out;
  for (const DecodingField& field : sampling_fields())
    if (*(field.*key) != '\0')
      out.push_back({.field = field.name,
                     .key = field.*key,
                     .least = field.above ? kLeastAbove : std::min(field.least, field.asked_least),
                     .most = std::min(field.most, field.whole() ? kMostWhole : kMost),
                     .valid_least = field.least,
                     .whole = field.whole(),
                     .draws = field.filters || field.sampler == Sampler::temperature});
  return out;
}

}  // namespace

double DecodingField::get(const SamplingOptions& options) const {
  if (const auto* number = std::get_if<1>(&member)) return options.**number;
  return static_cast<double>(options.*std::get<2>(member));
}

void DecodingField::set(SamplingOptions& options, double value) const {
  constexpr double kMost = 0x1p62;  // a cast of a larger value is undefined
  if (const auto* number = std::get_if<1>(&member))
    options.** number = value;
  else
    options.*std::get<2>(member) = static_cast<int64_t>(std::clamp(value, -kMost, kMost));
}

std::string DecodingField::flag_names() const {
  return *flags != '\0' ? flags : flag_of(name);
}

std::string DecodingField::flag() const {
  return items_of(flag_names()).front();
}

std::vector<std::string> DecodingField::request_aliases() const {
  return items_of(aliases);
}

std::span<const DecodingField> sampling_fields() {
  return std::span(kDecodingFields).first(kNumbers);
}

const DecodingField* sampling_field(std::string_view name) {
  for (const DecodingField& field : sampling_fields()) {
    const std::vector<std::string> others = field.request_aliases();
    if (field.name == name || flag_of(field.name).substr(2) == name ||
        std::find(others.begin(), others.end(), name) != others.end())
      return &field;
  }
  return nullptr;
}

std::span<const convert::NumberKey> config_numbers() {
  static const std::vector<convert::NumberKey> numbers = numbers_of(&DecodingField::config);
  return numbers;
}

std::span<const convert::NumberKey> gguf_numbers() {
  static const std::vector<convert::NumberKey> numbers = numbers_of(&DecodingField::gguf);
  return numbers;
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
                           const std::function<bool(const DecodingField&)>& given) {
  for (const DecodingField& field : sampling_fields()) {
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
  for (const DecodingField& field : sampling_fields()) {
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
