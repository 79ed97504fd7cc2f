#include "tessera/infer/engine/request.h"

#include <algorithm>

#include "tessera/nn/embed/feature_batch.h"

namespace tessera::infer {
namespace {

void check_ids(const std::vector<int64_t>& ids, int64_t vocab, const std::string& which) {
  for (const int64_t id : ids)
    if (id < 0 || id >= vocab)
      fail(ErrorKind::input, "generate", "{} {}; expected 0 to {}", which, id, vocab - 1);
}

}  // namespace

int64_t longest_sequence(const model::ModelSpec& spec, int64_t context) {
  if (context == 0) return spec.longest_sequence();
  const int64_t positions = spec.max_positions();
  return positions == 0 ? context : std::min(context, positions);
}

std::string context_name(const model::ModelSpec& spec, int64_t context) {
  const int64_t limit = longest_sequence(spec, context), own = longest_sequence(spec, 0);
  if (limit == own) return fmt::format("this model's context is {}", limit);
  return fmt::format("--context is {} (the model's is {})", limit,
                     own == 0 ? "unlimited" : fmt::format("{}", own));
}

std::string limit_name(Limit limit, const char* new_tokens) {
  switch (limit) {
    case Limit::none:
      return "";
    case Limit::new_tokens:
      return new_tokens;
    case Limit::context:
      return "context";
    case Limit::time:
      return "time";
  }
  return "";
}

std::string ending_of(const Generation& text) {
  if (text.limit == Limit::context) return "the context is full";
  if (text.limit == Limit::time) return "time limit";
  if (text.limit == Limit::new_tokens)
    return fmt::format("{} new tokens, the maximum", text.token_ids.size());
  if (!text.stop_string.empty()) return "stop string";
  return text.finish_reason == "stop" ? "end of text" : text.finish_reason;
}

std::vector<int64_t> shifted(const std::vector<int64_t>& tokens, int64_t keep_first) {
  const int64_t n = size_of(tokens), first = std::clamp<int64_t>(keep_first, 0, n / 2);
  std::vector<int64_t> left(tokens.begin(), tokens.begin() + first);
  left.insert(left.end(), tokens.end() - (n - first) / 2, tokens.end());
  return left;
}

Sequence first_sequence(const model::ModelSpec& spec, const std::vector<int64_t>& prompt) {
  if (spec.encoder) return {prompt, {spec.mask.value_or(spec.start)}, 1};
  return {{}, prompt, static_cast<int64_t>(prompt.size())};
}

const nn::FeatureEmbedConfig* feature_source(const model::ModelSpec& spec) {
  return spec.encoder
             ? dynamic_cast<const nn::FeatureEmbedConfig*>(spec.encoder->embed.config.get())
             : nullptr;
}

Sequence first_sequence(const model::ModelSpec& spec, const Tensor& features) {
  const nn::FeatureEmbedConfig* embed = feature_source(spec);
  if (embed == nullptr)
    fail(ErrorKind::usage, "generate", "this model has no image or audio input; expected a prompt");
  Sequence sequence = first_sequence(spec, std::vector<int64_t>());
  sequence.source.resize(static_cast<size_t>(nn::feature_batch(*embed, {features}).n_tokens()));
  sequence.features = std::make_shared<const Tensor>(features);
  return sequence;
}

void check_source(const model::ModelSpec& spec, const Sequence& begin) {
  const nn::FeatureEmbedConfig* embed = feature_source(spec);
  if (embed != nullptr && begin.features == nullptr)
    fail(ErrorKind::usage, "generate", "this model answers {} {}, not ids; give these",
         embed->input(), embed->shape_text());
  if (embed == nullptr && begin.features != nullptr)
    fail(ErrorKind::usage, "generate", "features for a model that reads ids; expected a prompt");
}

Request scoring(Sequence text, Targets targets) {
  Request request{std::move(text)};
  request.decoding.max_new_tokens = 0;
  request.decoding.context =
      std::max(size_of(request.prompt.source), size_of(request.prompt.tokens));
  request.targets = std::move(targets);
  return request;
}

Targets next_tokens(const Sequence& text, int64_t given) {
  require(given >= 1 && given <= size_of(text.tokens), "engine", "{} given tokens of {}", given,
          text.tokens.size());
  return {given - 1, {text.tokens.begin() + given, text.tokens.end()}};
}

void check_generates(const model::Model& model) {
  const bool encodes = model.spec().arch == model::Arch::encoder;
  if (encodes || !model.has_head())
    fail(ErrorKind::usage, "generate",
         "this model {} and cannot generate; expected a decoder with a head",
         encodes ? "is an encoder" : "has no head");
  if (const std::string reason = model.spec().no_generation_reason(); !reason.empty())
    fail(ErrorKind::usage, "generate", "{}", reason);
}

void check_prompt(const model::ModelSpec& spec,
                  const std::vector<int64_t>& prompt,
                  int64_t context,
                  const std::string& which) {
  const int64_t limit = longest_sequence(spec.encoder ? *spec.encoder : spec, context);
  if (prompt.empty())
    fail(ErrorKind::input, "generate", "{} is empty; expected at least one token", which);
  if (limit > 0 && static_cast<int64_t>(prompt.size()) > limit)
    fail(ErrorKind::input, "generate", "{} has {} tokens; {}: shorten it{}", which, prompt.size(),
         context_name(spec.encoder ? *spec.encoder : spec, context),
         limit == (spec.encoder ? *spec.encoder : spec).longest_sequence()
             ? ""
             : ", or raise --context");
  check_ids(prompt, (spec.encoder ? *spec.encoder : spec).vocab, which + ": token id");
}

void check_decoding(const model::ModelSpec& spec, const DecodingOptions& decoding) {
  if (decoding.shift && spec.encoder)
    fail(ErrorKind::usage, "context-shift",
         "an encoder-decoder has no context shift; leave --context-shift out");
  const SamplingOptions& sampling = decoding.sampling;
  if (spec.encoder && spec.encoder->vocab != spec.vocab &&
      (sampling.encoder_repetition_penalty != 1 || sampling.encoder_no_repeat_ngram_size > 0))
    fail(ErrorKind::usage, "generate",
         "encoder_repetition_penalty and encoder_no_repeat_ngram_size compare token ids of source "
         "and target, whose vocabularies differ ({} and {} tokens); leave them out",
         spec.encoder->vocab, spec.vocab);
  if (decoding.shift && longest_sequence(spec, decoding.context) == 0)
    fail(ErrorKind::usage, "context-shift",
         "this model has no context length of its own; expected --context as well");
  if (decoding.shift && longest_sequence(spec, decoding.context) < 4)
    fail(ErrorKind::usage, "context-shift", "a context of {} tokens; expected 4 at least",
         longest_sequence(spec, decoding.context));
  decoding.sampling.check();
  check_ids(decoding.forced_begin, spec.vocab, "forced id");
  if (decoding.forced_end) check_ids({*decoding.forced_end}, spec.vocab, "forced id");
  for (const auto& [id, bias] : decoding.sampling.logit_bias)
    check_ids({id}, spec.vocab, "logit_bias: token id");
  for (const auto& [sequence, bias] : decoding.sampling.sequence_bias)
    check_ids(sequence, spec.vocab, "sequence_bias: token id");
  check_ids(decoding.begin_suppress, spec.vocab, "begin_suppress: token id");
  if (decoding.choice < 0 || decoding.min_new_tokens < 0 || decoding.min_length < 0 ||
      decoding.max_length < 0)
    fail(ErrorKind::usage, "generate",
         "choice {}, min_new_tokens {}, min_length {}, max_length {}; expected 0 or more",
         decoding.choice, decoding.min_new_tokens, decoding.min_length, decoding.max_length);
  if (decoding.constraint && (!decoding.forced_begin.empty() || decoding.forced_end))
    fail(ErrorKind::usage, "generate",
         "constrained decoding with forced ids (--answer-prefix); leave one of them out");
}

void check_choice(const Request& request) {
  if (request.logprobs && *request.logprobs < 0)
    fail(ErrorKind::usage, "engine", "{} most likely tokens; expected 0 or more",
         *request.logprobs);
  if (request.decoding.sampling.mirostat != 0 && (request.keep || request.resume_from))
    fail(
        ErrorKind::usage, "generate",
        "mirostat in a session, which does not keep how surprising its text was; leave one of them "
        "out");
  if (request.beams && (request.decoding.constraint || request.logprobs ||
                        request.shares_prefix_with || request.decoding.line_limit.count() > 0))
    fail(ErrorKind::usage, "engine",
         "a search with a constraint, likelihoods of its tokens, a limit of time or a beginning "
         "shared with another request; expected samples, or none of these");
  const int64_t given = size_of(request.prompt.tokens), most = request.decoding.max_length;
  if (most > 0 && given >= most && request.decoding.max_new_tokens > 0)
    fail(ErrorKind::usage, "generate",
         "a text of {} tokens, with max_length {}, which counts these; expected --max-new-tokens",
         given, most);
}

void check_targets(const model::Model& model, const Request& request) {
  const Targets& targets = request.targets;
  if (targets.ids.empty()) return;
  if (!model.has_head())
    fail(ErrorKind::usage, "engine",
         "this model has no language-model head (token logits): perplexity cannot be computed; for "
         "classifiers use `tessera classify`");
  const int64_t held = request.resume_from && request.resume_from->state.rows() > 0
                           ? request.resume_from->state.length(0)
                           : 0,
                end = targets.begin + size_of(targets.ids), fed = size_of(request.prompt.tokens);
  if (targets.begin < held || end > fed)
    fail(ErrorKind::usage, "engine", "targets at tokens {} to {}; expected some of {} to {}",
         targets.begin, end, held, fed);
  const int64_t width = head_width(model.spec());
  for (const int64_t id : targets.ids)
    if (id < -1 || id >= width)
      fail(ErrorKind::input, "engine", "target {}; expected 0 to {}, or -1 for none", id,
           width - 1);
}

DecodingOptions settled(const DecodingOptions& decoding, const Sequence& begin) {
  DecodingOptions out = decoding;
  const int64_t given = size_of(begin.tokens);
  if (out.max_length > 0)
    out.max_new_tokens = std::min(out.max_new_tokens, std::max<int64_t>(0, out.max_length - given));
  out.min_new_tokens = std::max(out.min_new_tokens, out.min_length - given);
  const SamplingOptions& o = out.sampling;
  // placeholder ids of features are not in the vocabulary
  const bool reads = begin.features == nullptr &&
                     (o.encoder_repetition_penalty != 1 || o.encoder_no_repeat_ngram_size > 0);
  if (reads) out.sampling.source_ids = begin.source.empty() ? begin.tokens : begin.source;
  out.sampling.eos_ids = out.stop_ids;
  return out;
}

std::vector<int64_t> banned_ids(const DecodingOptions& decoding, int64_t made) {
  std::vector<int64_t> ids;
  if (made == size_of(decoding.forced_begin)) ids = decoding.begin_suppress;
  if (made < decoding.min_new_tokens)
    ids.insert(ids.end(), decoding.stop_ids.begin(), decoding.stop_ids.end());
  return ids;
}

std::optional<int64_t> forced_id(const DecodingOptions& decoding, int64_t made) {
  if (made < static_cast<int64_t>(decoding.forced_begin.size()))
    return decoding.forced_begin[static_cast<size_t>(made)];
  return made + 1 == decoding.max_new_tokens ? decoding.forced_end : std::nullopt;
}

}  // namespace tessera::infer
