// Request bodies, parsed and validated as far as that needs no model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/convert/generation_config.h"
#include "tessera/infer/sampling/decoding_fields.h"
#include "tessera/serve/fields.h"
#include "tessera/serve/limits.h"

namespace tessera::serve {

/// Parses a body. Throws 400 `invalid_json` for invalid JSON, too much nesting, or repeated keys.
Json parse_body(std::string_view text, const Limits& limits);

/// Beam search options, for routes that support it.
struct SearchBody {
  std::optional<int64_t> beams;
  std::optional<double> length_penalty;
  std::optional<convert::EarlyStopping> early_stopping;

  bool searches() const { return beams.value_or(1) > 1; }
  /// Throws ApiError for beam search options without beam search.
  void check_search() const;
};

/// Options of all generation requests. Missing fields have the model's defaults.
struct GenerationBody : SearchBody {
  std::string model;
  std::optional<int64_t> max_tokens;
  bool unbounded = false;  // -1: up to the limits of model and server
  /// Sampling options that are given.
  std::vector<std::pair<const infer::DecodingField*, double>> sampling;
  std::optional<double> sampled(std::string_view name) const;
  std::optional<std::vector<std::string>> dry_sequence_breakers;
  std::vector<std::pair<int64_t, double>> logit_bias;     // -infinity = never
  std::vector<std::pair<std::string, double>> text_bias;  // for all tokens of a text
  /// For the last token of a sequence if the others precede it; -infinity = never.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias;
  std::optional<std::vector<infer::Sampler>> samplers;
  std::vector<std::string> bad_words;
  std::optional<std::vector<int64_t>> allowed_token_ids;
  int64_t min_tokens = 0;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool keep_stop = false;  // keep the stop string in the text
  bool ignore_eos = false;
  int64_t n = 1, best_of = 1;
  bool stream = false, include_usage = false;
  /// Log-probabilities of the tokens, and of this number of most likely tokens; nullopt: none.
  std::optional<int64_t> top_logprobs;
  int64_t n_probs = 0;               // llama.cpp's name for it; 0 = none
  bool post_sampling_probs = false;  // of the distribution after samplers
  int64_t timeout_ms = 0;            // 0 = the server's timeout
  int64_t line_limit_ms = 0;         // infer::DecodingOptions::line_limit; 0 or less = none
  bool timings_per_token = false;
  int64_t priority = 0;  // lower values first
  bool cache_prompt = true;
  std::string cache_salt;
  /// Retrieval: insert passages of the server's index; nullopt: the default.
  std::optional<bool> retrieve;
  std::optional<int64_t> passages, passage_tokens;
  bool return_token_ids = false;
  std::string prediction;  // predicted output, for speculative decoding
  /// Constrained decoding: at most one of them is given, as sent.
  Json response_format = nullptr, json_schema = nullptr, structured_outputs = nullptr;
  Json guided = nullptr;  // of one member, as structured_outputs
  std::string grammar;
  bool constrained() const;
};

/// A prompt as text or as tokens.
struct Prompt {
  std::string text;
  std::optional<std::vector<int64_t>> ids;
};

struct CompletionBody : GenerationBody {
  std::vector<Prompt> prompts;
  bool echo = false;
  /// Special tokens in prompts. nullopt: parsed, except with passages and suffixes, which may
  /// contain text of others.
  std::optional<bool> parse_special;
  bool native = false;  // response fields of llama.cpp's own clients
  std::string suffix;   // text after the completion (fill in the middle)
};

/// Fill in the middle: generates text between a prefix and a suffix.
struct InfillBody : GenerationBody {
  std::string prefix, suffix, prompt;
  struct File {
    std::string name, text;
  };
  std::vector<File> files;  // other files of the project
};

struct ChatBody : GenerationBody {
  Json messages = Json::array();  // contents are strings or null, arguments of tools are objects
  Json tools = nullptr;           // null = none
  Json tool_choice = nullptr;     // null = default
  bool parallel_tool_calls = true;
  std::optional<bool> continue_final_message, add_generation_prompt;
  Json template_variables = Json::object();
  std::string chat_template;  // replaces the model's chat template
  bool logprobs = false;
  bool split_reasoning = true;    // return reasoning apart from the content
  int64_t reasoning_budget = -1;  // max. reasoning tokens; -1 = no limit
};

struct EmbeddingsBody {
  std::string model;
  std::vector<Prompt> input;
  bool base64 = false;
  std::optional<int64_t> dimensions;
};

struct RerankBody {
  std::string model, query;
  std::vector<std::string> documents;
  int64_t top_n = 0;  // 0 = all
  bool use_activation = true, return_documents = true;
};

/// A text, or a pair for a pair classifier.
struct TextOrPair {
  std::string text;
  std::optional<std::string> second = {};
};

struct ClassifyBody {
  std::string model;
  std::vector<TextOrPair> input;
};

struct FillMaskBody {
  std::string model;
  std::vector<std::string> input;
  int64_t top_k = 5;
  std::vector<std::string> targets;
};

struct TranslateBody : SearchBody {
  std::string model;
  std::vector<std::string> input;
  std::string source_lang, target_lang;
  std::optional<int64_t> iterations, lengths, max_tokens;
};

struct TokenizeBody {
  std::string model;
  std::optional<std::string> content;
  Json messages = nullptr;  // null = absent
  /// nullopt: the default of the API with that field name: llama.cpp's `content` gets none, vLLM's
  /// `prompt` does.
  std::optional<bool> add_special;
  bool as_prompt = false;
  bool parse_special = true, with_pieces = false;
};

struct DetokenizeBody {
  std::string model;
  std::vector<int64_t> tokens;
};

/// Field lists of the routes; created once.
const Fields<CompletionBody>& completion_fields();
const Fields<InfillBody>& infill_fields();
const Fields<ChatBody>& chat_fields();
const Fields<EmbeddingsBody>& embeddings_fields();
const Fields<RerankBody>& rerank_fields();
const Fields<ClassifyBody>& classify_fields();
const Fields<FillMaskBody>& fill_mask_fields();
const Fields<TranslateBody>& translate_fields();
const Fields<TokenizeBody>& tokenize_fields();
const Fields<DetokenizeBody>& detokenize_fields();

/// Parses a body and checks fields against each other.
CompletionBody read_completion(const Json& json, std::vector<std::string>* ignored = nullptr);
InfillBody read_infill(const Json& json, std::vector<std::string>* ignored = nullptr);
ChatBody read_chat(const Json& json, std::vector<std::string>* ignored = nullptr);
TranslateBody read_translate(const Json& json, std::vector<std::string>* ignored = nullptr);

}  // namespace tessera::serve
