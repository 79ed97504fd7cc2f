// Embeddings of texts: one vector per text from the hidden states of its tokens.
// Reimers, Gurevych 2019, arXiv:1908.10084. Folders of sentence-transformers say how: modules.json,
// the pooling module's config.json, sentence_bert_config.json (the longest text), and
// config_sentence_transformers.json (the prompts).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/infer/load_model.h"

namespace tessera::infer {

enum class Pooling {
  mean,  // of all tokens, those around the text included
  cls,   // the first token
  max,   // the largest value of each channel
  last,  // the last token
};
const char* name_of(Pooling pooling);
/// Throws Error(usage) that lists the names.
Pooling pooling_named(std::string_view name);

struct EmbedOptions {
  Pooling pooling = Pooling::mean;
  bool normalize = true;       // to length 1
  int64_t max_tokens = 0;      // longer texts are cut; 0 = as many as the model takes
  std::string prompt;          // put before every text
  bool include_prompt = true;  // its tokens, and those before it, count in mean and max
  bool parse_special = false;  // special tokens written in a text become those tokens
  std::map<std::string, std::string> prompts;  // those that the folder names
  const CancelToken* cancel = nullptr;
};

/// What the folder of a model says, its default prompt included; the defaults above where there is
/// no modules.json. Throws Error(file) on modules, orders of them or poolings that embed() does not
/// have.
EmbedOptions embed_options_of(const std::filesystem::path& model);

struct Embeddings {
  Tensor vectors_RD;            // float32
  std::vector<int64_t> tokens;  // of each text, as they were read
  int64_t cut = 0;              // texts that were too long
};

/// The tokens that are read of each text: behind the prompt, with what stands around it, cut where
/// it is too long. Throws as embed() does.
struct EmbedTokens {
  std::vector<std::vector<int64_t>> rows;
  int64_t behind = 0;  // so many of each row do not count
  int64_t cut = 0;     // texts that were too long
};
EmbedTokens embed_tokens(const LoadedModel& loaded,
                         const std::vector<std::string>& texts,
                         const EmbedOptions& options);
/// The vectors of such tokens, [rows, width].
Tensor embed_rows(const LoadedModel& loaded,
                  const std::vector<std::vector<int64_t>>& rows,
                  const EmbedOptions& options,
                  int64_t behind = 0);

/// A vector does not depend on the other texts. Throws Error(usage) without a tokenizer,
/// Error(input) for a text without tokens, or with none that counts.
Embeddings embed(const LoadedModel& loaded,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options);

}  // namespace tessera::infer
