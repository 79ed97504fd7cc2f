// What is asked of a model: a text to go on with, how, and how far; and what came of it.
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

/// See beam.h. The defaults are those of transformers.
struct BeamOptions {
  int64_t beams = 4;
  double length_penalty = 1;  // above 0 favours long texts, below 0 short ones
  convert::EarlyStopping early_stopping = convert::EarlyStopping::heuristic;
  bool renormalize = false;  // log p of all tokens sum to 1 again after they were changed
};

/// The first tokens of a text, where attention puts what it has no other place for (sink_window.h).
inline constexpr int64_t kKeepFirst = 4;

/// What a model thinks, between two tags, before it answers: so many tokens at most, then the
/// closing tag is said.
struct ReasoningBudget {
  int64_t most = 0;
  bool opened = false;  // the prompt has opened them
  std::vector<int64_t> open, close;
};

/// How a model with a mask (model::ModelSpec::mask) writes: see mask_predict.h.
struct MaskPredictOptions {
  int64_t iterations = 10;
  int64_t lengths = 5;  // of which the likeliest text is taken
};

/// How a text goes on, and where it ends.
struct DecodingOptions {
  int64_t max_new_tokens = 128;
  int64_t min_new_tokens = 0;  // before them no end of text is chosen
  /// The same limits for the whole text, prompt included (beside an encoder, the start token);
  /// 0 = none.
  int64_t max_length = 0, min_length = 0;
  SamplingOptions sampling;
  int64_t choice = 0;  // of several texts by one seed: each draws from a stream of its own
  /// Which texts there may be; each row has a state of its own. What it does not allow has no
  /// likelihood, before all else that bears on the choice; the end comes where it may, and at once
  /// where nothing else is left. Not beside what is forced, nor in a search.
  std::shared_ptr<const text::Constraint> constraint = nullptr;
  std::vector<int64_t> stop_ids;          // end of text; not part of the result
  std::vector<std::string> stop_strings;  // cut from the text, with what follows
  bool keep_stop = false;                 // the string that ended it stays
  std::vector<int64_t> begin_suppress;    // never the first token that is not forced
  std::vector<int64_t> forced_begin;      // new tokens are these first
  std::optional<int64_t> forced_end;      // the last of max_new_tokens, where the text goes so far
  /// So long after its first token the text ends with the next piece that holds a line's end; 0 =
  /// never. As t_max_predict_ms of llama.cpp's server, where a completion of lines is worth no
  /// further wait. Not in a search.
  std::chrono::milliseconds line_limit{0};
  std::optional<ReasoningBudget> reasoning = {};
  int64_t context = 0;        // longest sequence; 0 = what the model is made for
  bool show_special = false;  // special tokens are written out in the text
  /// Where the context is full the text goes on from its first `keep_first` tokens and the later
  /// half of the others (shifted()), which are read anew: so it does for every architecture.
  bool shift = false;
  int64_t keep_first = kKeepFirst;
  /// Of a model with a mask alone, whose texts are neither sampled nor begun nor stopped.
  std::optional<MaskPredictOptions> mask_predict = {};
};

/// The memory of one row, for those who go on from there.
struct SavedState {
  model::State state;  // of this row, none where the model has none; may be behind its tokens
  Tensor last;  // [D], hidden state of the last token fed; may be undefined where some are left
};

/// Tokens whose likelihood is asked for: ids[i] by the hidden state of token number `begin` + i of
/// what a request begins with, -1 = none there.
struct Targets {
  int64_t begin = 0;
  std::vector<int64_t> ids = {};
  int64_t top = 0;  // and so many that are most likely at each of these places
};

struct Request {
  Sequence prompt;  // what is read before the first new token
  DecodingOptions decoding = {};
  Targets targets = {};
  std::optional<BeamOptions> beams = {};       // a search in place of samples
  std::optional<SavedState> resume_from = {};  // the memory that `begin` goes on from
  /// Tokens that it has said already, before it was let go of (Engine::cancel): it goes on behind
  /// them as it would have, and tells nobody of them again. Neither in a search nor with a shift.
  std::vector<int64_t> generated = {};
  /// When it said the first of them.
  std::optional<std::chrono::steady_clock::time_point> generated_since = {};
  /// What the answer may hold, word for word: guesses, where they are looked up. Bears on speed
  /// alone.
  std::vector<int64_t> predicted = {};
  bool keep = false;  // hands back the memory where it ended
  /// How likely each new token is, and so many that are most likely in its place. Not in a search.
  std::optional<int64_t> logprobs = {};
  bool post_sampling_logprobs =
      false;  // by what it was drawn from: behind temperature, masks, filters
  /// A request (by its Engine::Id) that begins with the same tokens: what that one has read by the
  /// time it says its first token is not computed again, whatever a cache holds. Without targets.
  std::optional<int64_t> shares_prefix_with = {};
  const CancelToken* cancel = nullptr;  // ends it after the current step
  /// Called as tokens and text become certain, the text never with half a character, nor with part
  /// of a stop string. Chances, where asked for, come before their token. What they throw ends this
  /// request alone.
  std::function<void(const PositionLogprobs&)> on_logprobs = {};
  /// Before its first token: so many tokens of what it begins with were not computed for it.
  std::function<void(int64_t cached_tokens)> on_read = {};
  std::function<void(int64_t id)> on_token = {};
  std::function<void(std::string_view)> on_text = {};
};

/// What cut a text that ends for its length; the context where it did beside new_tokens.
enum class Limit { none, new_tokens, context, time };
/// Its name in answers: "context", "time", or `new_tokens` as the caller calls that; "" for none.
std::string limit_name(Limit limit, const char* new_tokens);

struct Generation {
  std::vector<int64_t> token_ids;  // new ones
  std::string text;                // of the new tokens; empty without a tokenizer
  int64_t prompt_tokens = 0;       // all before the new ones; of the source, beside an encoder
  int64_t cached_tokens = 0;       // those of them that were not computed for it
  int64_t shifts = 0;              // how often the context was full
  int64_t drafted_tokens = 0, accepted_tokens = 0;  // of speculation, for this text
  Score score;                                      // of the targets
  std::vector<double> log_p;                        // ln p of each target that is not -1, in order
  std::vector<std::vector<TokenLogprob>> target_top;  // of these, where Targets::top asks for them
  std::vector<PositionLogprobs> logprobs;             // of the new tokens, where asked for
  std::string finish_reason;                          // "stop", "length", "cancelled" or "error"
  Limit limit = Limit::none;                          // with "length"
  std::optional<int64_t> stop_id;  // what it stopped at, where it was one of these
  std::string stop_string;
  /// Why the text is not of its constraint: where it was cut, and what was expected there. Empty
  /// where it is, or there is none.
  std::string cut;
  std::exception_ptr error;  // why, with finish_reason "error"
};

/// Longest sequence (of targets, beside an encoder): what the caller allows, or what the model is
/// made for, never more than it has positions; 0 = any.
int64_t longest_sequence(const model::ModelSpec& spec, int64_t context);

/// For messages: whose limit that is, as "--context is 512" or "this model's context is 512".
std::string context_name(const model::ModelSpec& spec, int64_t context);

/// For people, why a text ended: "end of text", "128 new tokens", ...
std::string ending_of(const Generation& text);

/// What is left of a text when its context is full: its first `keep_first` tokens, fewer where
/// these are more than half of it, and the later half of the others.
std::vector<int64_t> shifted(const std::vector<int64_t>& tokens, int64_t keep_first);

/// A decoder continues its prompt; beside an encoder it answers it, from the start token on, or
/// from a mask.
Sequence first_sequence(const model::ModelSpec& spec, const std::vector<int64_t>& prompt);

/// What an encoder reads instead of ids; nullptr where it reads ids, or there is none.
const nn::FeatureEmbedConfig* feature_source(const model::ModelSpec& spec);
/// The answer to features (pixels, frames of sound). Throws Error(usage) for a model whose encoder
/// reads none, Error(input) for those of another shape.
Sequence first_sequence(const model::ModelSpec& spec, const Tensor& features);

/// Asks for the likelihood of targets, however long a text, and for no new token.
Request scoring(Sequence text, Targets targets);
/// The tokens of a text behind its first `given`, at least 1, each as what follows those before.
Targets next_tokens(const Sequence& text, int64_t given = 1);

/// Throws Error(usage) for a model that cannot generate.
void check_generates(const model::Model& model);
/// Throws Error(input) for a prompt (named `which`) that is empty, longer than the model's context
/// or beside its vocabulary.
void check_prompt(const model::ModelSpec& spec,
                  const std::vector<int64_t>& prompt,
                  int64_t context,
                  const std::string& which);
void check_decoding(const model::ModelSpec& spec, const DecodingOptions& decoding);
/// Throws Error(usage) for what a search, or what is forced, does not go with.
void check_choice(const Request& request);
/// Throws Error(usage) for ids where the encoder reads features, and the other way round.
void check_source(const model::ModelSpec& spec, const Sequence& begin);
/// Throws Error(usage) for a model without logits of every token, or targets beside the tokens that
/// are fed, Error(input) for those that the head has no number for.
void check_targets(const model::Model& model, const Request& request);

/// `writing` with what follows from the text that it goes on with: its limits as numbers of new
/// tokens, and what sampling has to know of source and end.
DecodingOptions settled(const DecodingOptions& decoding, const Sequence& begin);

/// Tokens that may not come when `made` new ones are there: ends of a text that is too short, and
/// what may not begin it.
std::vector<int64_t> banned_ids(const DecodingOptions& decoding, int64_t made);

/// The id that must be chosen when `made` new tokens are there, if any must.
std::optional<int64_t> forced_id(const DecodingOptions& decoding, int64_t made);

}  // namespace tessera::infer
