// The bodies of requests, read and checked as far as that takes no model.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/convert/generation_config.h"
#include "tessera/infer/sampling/sampling.h"
#include "tessera/serve/fields.h"
#include "tessera/serve/limits.h"

namespace tessera::serve {

/// The JSON of a body. 400 `invalid_json` for what is none, is too deep, or has a key twice.
Json parse_body(std::string_view text, const Limits& limits);

/// Beam search, of requests that may have it.
struct SearchBody {
  std::optional<int64_t> beams;
  std::optional<double> length_penalty;
  std::optional<convert::EarlyStopping> early_stopping;

  bool searches() const { return beams.value_or(1) > 1; }
  /// Throws ApiError for options of a search without one.
  void check_search() const;
};

/// What every request that makes text may say. Fields that are not given are the model's own.
struct GenerationBody : SearchBody {
  std::string model;
  std::optional<int64_t> max_tokens;
  bool unbounded = false;  // -1: as many as there is room for
  /// Options of sampling, as far as they are given.
  std::vector<std::pair<const infer::SamplingField*, double>> sampling;
  std::optional<double> sampled(std::string_view name) const;
  std::optional<std::vector<std::string>> dry_sequence_breakers;
  std::vector<std::pair<int64_t, double>> logit_bias;     // -infinity = never
  std::vector<std::pair<std::string, double>> text_bias;  // of all tokens of a text
  /// Of the last token of a sequence where the others precede it; -infinity = never.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias;
  std::optional<std::vector<infer::Sampler>> samplers;
  std::vector<std::string> bad_words;
  std::optional<std::vector<int64_t>> allowed_token_ids;
  int64_t min_tokens = 0;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool keep_stop = false;  // the text that ended the answer is in it
  bool ignore_eos = false;
  int64_t n = 1, best_of = 1;
  bool stream = false, include_usage = false;
  /// So many of the likeliest tokens beside each one's own logarithm; nothing: neither.
  std::optional<int64_t> top_logprobs;
  int64_t n_probs = 0;               // llama.cpp's name of the same; 0 = none
  bool post_sampling_probs = false;  // these are of what is drawn from
  int64_t timeout_ms = 0;            // 0 = the server's
  int64_t line_limit_ms = 0;         // infer::Writing::line_limit; 0 or less = none
  bool timings_per_token = false;
  int64_t priority = 0;  // the lower goes first
  bool cache_prompt = true;
  std::string cache_salt;
  /// Passages of the server's index before the question; nothing: as usual.
  std::optional<bool> retrieve;
  std::optional<int64_t> passages, passage_tokens;
  bool return_token_ids = false;
  std::string prediction;  // what the answer may hold, word for word
  /// What the text must be: at most one of them is given, as it was sent.
  Json response_format = nullptr, json_schema = nullptr, structured_outputs = nullptr;
  Json guided = nullptr;  // of one member, as structured_outputs
  std::string grammar;
  bool constrained() const;
};

/// A text, or its tokens.
struct Prompt {
  std::string text;
  std::optional<std::vector<int64_t>> ids;
};

struct CompletionBody : GenerationBody {
  std::vector<Prompt> prompts;
  bool echo = false;
  /// Nothing: yes, but around passages and with a suffix, whose texts may be of others.
  std::optional<bool> parse_special;
  bool native = false;  // asked as llama.cpp's own clients do
  std::string suffix;   // what stands behind the text
};

/// What stands in a text between two parts of it.
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
  Json tool_choice = nullptr;     // null = as usual
  bool parallel_tool_calls = true;
  std::optional<bool> continue_final_message, add_generation_prompt;
  Json template_variables = Json::object();
  std::string chat_template;  // in place of the model's
  bool logprobs = false;
  bool split_reasoning = true;    // reasoning apart from the answer
  int64_t reasoning_budget = -1;  // tokens of it at most; -1 = any number
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

/// A text, or two of which a pair classifier says how they stand to each other.
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
  Json messages = nullptr;  // null = not these
  /// Without a value those of the API whose name the text has: llama.cpp's `content` gets none,
  /// vLLM's `prompt` does.
  std::optional<bool> add_special;
  bool as_prompt = false;
  bool parse_special = true, with_pieces = false;
};

struct DetokenizeBody {
  std::string model;
  std::vector<int64_t> tokens;
};

/// The lists; made once.
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

/// Reads a body and checks what fields say of each other.
CompletionBody read_completion(const Json& json, std::vector<std::string>* ignored = nullptr);
InfillBody read_infill(const Json& json, std::vector<std::string>* ignored = nullptr);
ChatBody read_chat(const Json& json, std::vector<std::string>* ignored = nullptr);
TranslateBody read_translate(const Json& json, std::vector<std::string>* ignored = nullptr);

}  // namespace tessera::serve
