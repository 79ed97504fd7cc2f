#include "tessera/infer/loading/decoding_defaults.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

namespace tessera::infer {
namespace {

constexpr double kTemperature = 0.7, kMinP = 0.05;  // of a conversation

/// True if the model's settings mean sampling.
bool draws(const convert::GenerationConfig& config, TextKind kind) {
  return config.do_sample.value_or(kind == TextKind::conversation);
}

void set_sampling(DecodingDefaults& out, const convert::GenerationConfig& config, bool drawn) {
  SamplingOptions& options = out.sampling;
  if (drawn && config.samples())
    options.temperature = 1;
  else if (drawn)
    options.temperature = kTemperature, options.min_p = kMinP;
  for (const auto& [name, value] : config.sampling) {
    const DecodingField* field = sampling_field(name);
    require(field != nullptr, "generate", "no sampling option {}", name);
    const bool acts = drawn || !(field->filters || name == "temperature");
    if (acts) field->set(options, value);
  }
  if (config.samplers.empty()) return;
  try {
    options.samplers = samplers_named(config.samplers);
  } catch (const Error&) {
    out.unsupported.push_back(
        fmt::format("general.sampling.sequence = {}", fmt::join(config.samplers, ";")));
  }
}

void set_beams(DecodingDefaults& out,
               const convert::GenerationConfig& config,
               bool drawn,
               TextKind kind) {
  if (config.beams.value_or(1) == 1) return;
  if (drawn || kind == TextKind::conversation) {
    out.unsupported.push_back(fmt::format("num_beams = {} ({})", *config.beams,
                                          drawn ? "tokens are sampled" : "in a conversation"));
    return;
  }
  out.beams = BeamOptions{*config.beams, config.length_penalty.value_or(1),
                          config.early_stopping.value_or(convert::EarlyStopping::heuristic),
                          config.renormalize};
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void take_sampling(const SamplingOptions& defaults, const IsGiven& given, SamplingOptions& out) {
  const auto take = [&](bool filters) {
    for (const DecodingField& field : sampling_fields())
      if (field.filters == filters && !given(field.name)) field.set(out, field.get(defaults));
  };
  take(false);  // decides between greedy decoding and sampling
  if (out.temperature > 0) take(true);
  if (!given("samplers")) out.samplers = defaults.samplers;
  append(out.logit_bias, defaults.logit_bias);
  append(out.sequence_bias, defaults.sequence_bias);
}

}  // namespace

DecodingDefaults decoding_defaults(const convert::GenerationConfig& config, TextKind kind) {
  DecodingDefaults out;
  out.source = config.source;
  out.unsupported = config.unsupported;
  const bool drawn = draws(config, kind);
  set_sampling(out, config, drawn);
  set_beams(out, config, drawn, kind);
  for (const int64_t id : config.suppressed) out.sampling.logit_bias.emplace_back(id, -INFINITY);
  out.sampling.sequence_bias = config.sequence_bias;
  out.begin_suppress = config.suppressed_at_begin;
  out.stop_strings = config.stop_strings;
  out.max_new_tokens = config.max_new_tokens;
  if (!config.max_new_tokens) out.max_length = config.max_length.value_or(0);
  out.min_new_tokens = config.min_new_tokens.value_or(0);
  if (!config.min_new_tokens) out.min_length = config.min_length.value_or(0);
  out.forced_begin = config.forced_begin;
  out.forced_end = config.forced_end;
  return out;
}

void take_defaults(const DecodingDefaults& defaults,
                   const IsGiven& given,
                   DecodingOptions& decoding) {
  take_sampling(defaults.sampling, given, decoding.sampling);
  append(decoding.begin_suppress, defaults.begin_suppress);
  if (!given("max_new_tokens")) {
    if (defaults.max_new_tokens) decoding.max_new_tokens = *defaults.max_new_tokens;
    if (defaults.max_length > 0) decoding.max_new_tokens = kAnyLength;
    decoding.max_length = defaults.max_length;
  }
  if (!given("min_new_tokens")) {
    decoding.min_new_tokens = defaults.min_new_tokens;
    decoding.min_length = defaults.min_length;
  }
  if (!given("stop")) decoding.stop_strings = defaults.stop_strings;
}

void take_forced_tokens(const DecodingDefaults& defaults,
                        bool encoder_decoder,
                        bool ends,
                        DecodingOptions& decoding) {
  if (decoding.constraint) return;
  if (encoder_decoder && decoding.forced_begin.empty() && defaults.forced_begin)
    decoding.forced_begin = {*defaults.forced_begin};
  if (!ends || !defaults.forced_end) return;
  decoding.forced_end = defaults.forced_end;
  std::vector<int64_t>& stops = decoding.stop_ids;
  if (std::find(stops.begin(), stops.end(), *defaults.forced_end) == stops.end())
    stops.push_back(*defaults.forced_end);
}

std::string describe(const DecodingOptions& decoding, const std::optional<BeamOptions>& beams) {
  const SamplingOptions& o = decoding.sampling;
  const SamplingOptions neutral;
  const bool searches = beams && beams->beams > 1, drawn = !searches && o.temperature > 0;
  std::string out = searches ? fmt::format("beam search with {} beams", beams->beams)
                    : drawn  ? fmt::format("temperature {}", o.temperature)
                             : "greedy";
  const auto add = [&](const std::string& text) { out += ", " + text; };
  if (searches && beams->length_penalty != 1)
    add(fmt::format("length-penalty {}", beams->length_penalty));
  if (searches && beams->early_stopping == convert::EarlyStopping::always) add("early stopping");
  for (const DecodingField& field : sampling_fields()) {
    const double value = field.get(o);
    const bool acts = drawn || !field.filters;
    if (acts && std::string_view(field.name) != "temperature" && value != field.get(neutral))
      add(fmt::format("{} {}", field.flag().substr(2), value));
  }
  if (drawn && o.samplers != neutral.samplers)
    add(fmt::format("samplers {}", to_string(o.samplers)));
  if (!o.sequence_bias.empty()) add(fmt::format("{} biased sequences", o.sequence_bias.size()));
  if (!o.logit_bias.empty()) add(fmt::format("{} biased tokens", o.logit_bias.size()));
  if (!decoding.begin_suppress.empty())
    add(fmt::format("{} tokens that may not come first", decoding.begin_suppress.size()));
  if (decoding.min_new_tokens > 0) add(fmt::format("min-new-tokens {}", decoding.min_new_tokens));
  if (decoding.min_length > 0) add(fmt::format("min_length {}", decoding.min_length));
  if (decoding.max_length > 0) add(fmt::format("max_length {}", decoding.max_length));
  if (drawn) add(fmt::format("seed {}", o.seed));
  return out;
}

}  // namespace tessera::infer
