// A generation request (prompt, decoding options, targets) and its result.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/convert/generation_config.h"
#include "tessera/infer/engine/sequence.h"
#include "tessera/infer/evaluation/score.h"
#include "tessera/infer/sampling/logprobs.h"
#include "tessera/infer/sampling/sampling.h"
#include "tessera/model/model.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/text/grammar/constraint.h"

namespace tessera::infer {

/// Options of beam search (beam.h). The defaults are those of transformers.
struct BeamOptions {
  int64_t beams = 4;
  double length_penalty = 1;  // above 0 favours long sequences, below 0 short ones
  convert::EarlyStopping early_stopping = convert::EarlyStopping::heuristic;
  bool renormalize = false;  // normalize the probabilities again after logit processors
};

/// Tokens at the beginning of a text that stay when the context is full: attention sinks
/// (sink_window.h).
inline constexpr int64_t kKeepFirst = 4;

/// Limits the reasoning tokens between two tags before the answer: after `most` tokens the closing
/// tag is forced.
struct ReasoningBudget {
  int64_t most = 0;
  bool opened = false;  // the prompt ends inside the reasoning
  std::vector<int64_t> open, close;
};

/// Options of Mask-Predict (mask_predict.h), for a model with a mask (model::ModelSpec::mask).
struct MaskPredictOptions {
  int64_t iterations = 10;
  int64_t lengths = 5;  // number of length candidates; the most likely text is the result
};

/// How the tokens of a text are chosen, and where it ends.
struct DecodingOptions {
  int64_t max_new_tokens = 128;
  int64_t min_new_tokens = 0;  // no end of text before that many
  /// The same limits including the prompt (encoder-decoder: the start token); 0 = none.
  int64_t max_length = 0, min_length = 0;
  SamplingOptions sampling;
  int64_t choice =
      0;  // completion number: each draws from a random stream of its own with the same seed
  /// Constrained decoding: the allowed texts; each row has a state of its own. Tokens that it does
  /// not allow get probability 0 before sampling. The text may end only where the constraint allows
  /// it, and ends at once where nothing may follow. Excludes forced tokens and beam search.
  std::shared_ptr<const text::Constraint> constraint = nullptr;
  std::vector<int64_t> stop_ids;          // end of text; not part of the result
  std::vector<std::string> stop_strings;  // cut from the text, with all that follows
  bool keep_stop = false;                 // the stop string stays in the text
  std::vector<int64_t> begin_suppress;    // never the first free token
  std::vector<int64_t> forced_begin;      // forced first new tokens
  std::optional<int64_t> forced_end;      // forced as token number max_new_tokens
  /// Time limit from the first token: then the text ends with the next piece that holds a line
  /// feed; 0 = none. Same as t_max_predict_ms of llama.cpp's server, for completions of single
  /// lines. Not with beam search.
  std::chrono::milliseconds line_limit{0};
  std::optional<ReasoningBudget> reasoning = {};
  int64_t context = 0;        // max. tokens of a sequence; 0 = the model's context length
  bool show_special = false;  // write special tokens into the text
  /// Context shift: when the context is full, decoding continues from the first `keep_first` tokens
  /// and the later half of the others (shifted()). These are prefilled again, so this works for
  /// every architecture.
  bool shift = false;
  int64_t keep_first = kKeepFirst;
  /// Only for a model with a mask; then sampling options, prompt and stop conditions have no
  /// effect.
  std::optional<MaskPredictOptions> mask_predict = {};
};

/// The state of one row, to resume a sequence.
struct SavedState {
  model::State state;  // of this row; empty where the model has no state; may hold fewer tokens
  Tensor last;  // [D], hidden state of the last token fed; may be undefined while tokens are left
                // to feed
};

/// Tokens to score: ids[i] is predicted from the hidden state of prompt token number `begin` + i;
/// -1 = none.
struct Targets {
  int64_t begin = 0;
  std::vector<int64_t> ids = {};
  int64_t top = 0;  // and the number of most likely tokens to return at each of these positions
};

struct Request {
  Sequence prompt;  // read before the first new token
  DecodingOptions decoding = {};
  Targets targets = {};
  std::optional<BeamOptions> beams = {};       // beam search instead of sampling
  std::optional<SavedState> resume_from = {};  // the state that `prompt` continues
  /// Tokens generated before the request was preempted (Engine::cancel). Generation continues after
  /// them with the same output; no callback repeats them. Not with beam search or context shift.
  std::vector<int64_t> generated = {};
  /// Time of the first of these tokens.
  std::optional<std::chrono::steady_clock::time_point> generated_since = {};
  /// Predicted output: draft tokens for prompt lookup. Changes the speed only.
  std::vector<int64_t> predicted = {};
  bool keep = false;  // return the final state of the row
  /// Log-probability of each new token and of this number of most likely tokens. Not with beam
  /// search.
  std::optional<int64_t> logprobs = {};
  bool post_sampling_logprobs = false;  // of the distribution after temperature, masks and filters
  /// A request (its Engine::Id) with the same prompt. Until that one has generated a token, its
  /// prefill is shared, whatever the cache holds. Excludes targets.
  std::optional<int64_t> shares_prefix_with = {};
  const CancelToken* cancel = nullptr;  // ends it after the current step
  /// Callbacks, called as tokens and text become final. Text never has half a character nor part of
  /// a stop string. Log-probabilities come before their token. An exception from a callback ends
  /// this request alone.
  std::function<void(const PositionLogprobs&)> on_logprobs = {};
  /// Called before the first token, with the number of cached prompt tokens.
  std::function<void(int64_t cached_tokens)> on_read = {};
  std::function<void(int64_t id)> on_token = {};
  std::function<void(std::string_view)> on_text = {};
};

/// Which limit ended a text with "length". If context and new_tokens are both reached, it is the
/// context.
enum class Limit { none, new_tokens, context, time };
/// Name for responses: "context", "time", or `new_tokens` as the caller names that limit; "" for
/// none.
std::string limit_name(Limit limit, const char* new_tokens);

struct Generation {
  std::vector<int64_t> token_ids;  // generated tokens
  std::string text;                // their text; empty without a tokenizer
  int64_t prompt_tokens = 0;       // prompt length; encoder-decoder: of the source
  int64_t cached_tokens = 0;       // of these, tokens that were not computed for it
  int64_t shifts = 0;              // number of context shifts
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // speculative decoding
  Score score;                                      // of the targets
  std::vector<double> log_p;                        // ln p of each target that is not -1, in order
  std::vector<std::vector<TokenLogprob>>
      target_top;                          // top tokens at these targets, if Targets::top
  std::vector<PositionLogprobs> logprobs;  // of the new tokens, if Request::logprobs
  std::string finish_reason;               // "stop", "length", "cancelled" or "error"
  Limit limit = Limit::none;               // with "length"
  std::optional<int64_t> stop_id;          // the stop token that ended it
  std::string stop_string;
  /// If the text is no complete text of its constraint: where it was cut and what was expected
  /// there. Empty otherwise.
  std::string cut;
  std::exception_ptr error;  // with finish_reason "error"
};

/// Max. tokens of a sequence (of the targets, for an encoder-decoder): `context`, or the model's
/// context length, and at most the model's positions; 0 = no limit.
int64_t longest_sequence(const model::ModelSpec& spec, int64_t context);

/// For messages: the source of that limit, such as "--context is 512" or "this model's context is
/// 512".
std::string context_name(const model::ModelSpec& spec, int64_t context);

/// For people: why a text ended, such as "end of text" or "128 new tokens".
std::string ending_of(const Generation& text);

/// Context shift: the first `keep_first` tokens (at most half of them all), then the later half of
/// the others.
std::vector<int64_t> shifted(const std::vector<int64_t>& tokens, int64_t keep_first);

/// Decoder-only: the prompt. Encoder-decoder: the prompt as source, and the start token or masks as
/// tokens.
Sequence first_sequence(const model::ModelSpec& spec, const std::vector<int64_t>& prompt);

/// Features that the encoder reads instead of ids; nullptr for an encoder of ids or no encoder.
const nn::FeatureEmbedConfig* feature_source(const model::ModelSpec& spec);
/// Encoder input from features (pixels, audio frames). Throws Error(usage) for a model without a
/// feature encoder, Error(input) for a wrong shape.
Sequence first_sequence(const model::ModelSpec& spec, const Tensor& features);

/// A request that scores targets in a text of any length and generates nothing.
Request scoring(Sequence text, Targets targets);
/// Targets: every token of a text after its first `given` (at least 1), predicted from the tokens
/// before it.
Targets next_tokens(const Sequence& text, int64_t given = 1);

/// Throws Error(usage) for a model that cannot generate.
void check_generates(const model::Model& model);
/// Throws Error(input) for a prompt (named `which`) that is empty, longer than the context, or
/// holds an id outside the vocabulary.
void check_prompt(const model::ModelSpec& spec,
                  const std::vector<int64_t>& prompt,
                  int64_t context,
                  const std::string& which);
void check_decoding(const model::ModelSpec& spec, const DecodingOptions& decoding);
/// Throws Error(usage) for options that exclude beam search or forced tokens.
void check_choice(const Request& request);
/// Throws Error(usage) for ids with a feature encoder and for features without one.
void check_source(const model::ModelSpec& spec, const Sequence& begin);
/// Throws Error(usage) for a model without logits of every token or targets outside the prompt,
/// Error(input) for target ids outside the head's vocabulary.
void check_targets(const model::Model& model, const Request& request);

/// Resolves options for a prompt: length limits as numbers of new tokens, and the source and stop
/// ids that sampling needs.
DecodingOptions settled(const DecodingOptions& decoding, const Sequence& begin);

/// Tokens not allowed after `made` new tokens: stop ids before the minimum length, and
/// begin_suppress.
std::vector<int64_t> banned_ids(const DecodingOptions& decoding, int64_t made);

/// The token forced after `made` new tokens, if any.
std::optional<int64_t> forced_id(const DecodingOptions& decoding, int64_t made);

}  // namespace tessera::infer
