// Sentence embeddings: one vector per text, pooled from the hidden states of its tokens. Reimers,
// Gurevych 2019, arXiv:1908.10084. The model defines how (convert/sentence_modules.h).
#pragma once

#include <string>
#include <vector>

#include "tessera/convert/sentence_modules.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::infer {

using convert::name_of;
using convert::names_of;
using convert::Pooling;
using convert::pooling_named;

struct EmbedOptions : convert::SentenceModules {
  bool parse_special = false;  // parse special tokens written in a text
  bool renormalize =
      false;              // normalize again after truncation to `dimensions`, if `normalize` is on
  std::string file = {};  // file with one text a line, for error messages; "" = none
  const CancelToken* cancel = nullptr;
};

/// The options of a model with its adapters, default prompt included; defaults where it has none.
/// Throws Error(file) for modules, orders of modules or poolings that embed() does not support.
EmbedOptions embed_options_of(const std::filesystem::path& model,
                              const std::vector<std::string>& adapters = {});

/// Length of a vector. Throws Error(file) if a module after the pooling has another width.
int64_t embedding_width(const model::ModelSpec& spec, const EmbedOptions& options);

struct Embeddings {
  Tensor vectors_RD;            // float32
  std::vector<int64_t> tokens;  // of each text, special tokens and prompt included
  int64_t cut = 0;              // number of truncated texts
};

/// The tokens of each text: after the prompt, with special tokens, truncated if too long. Throws as
/// embed() does.
struct EmbedTokens {
  std::vector<std::vector<int64_t>> rows;
  int64_t skipped = 0;  // number of first tokens of each row that are not pooled
  int64_t cut = 0;      // number of truncated texts
};
EmbedTokens embed_tokens(const LoadedModel& loaded,
                         const std::vector<std::string>& texts,
                         const EmbedOptions& options);
/// Vectors of tokenized texts, [rows, embedding_width()].
Tensor embed_rows(const LoadedModel& loaded,
                  const std::vector<std::vector<int64_t>>& rows,
                  const EmbedOptions& options,
                  int64_t skipped = 0);

/// A vector does not depend on the other texts. Throws Error(usage) without a tokenizer,
/// Error(input) for a text without tokens or without pooled tokens.
Embeddings embed(const LoadedModel& loaded,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options);

}  // namespace tessera::infer
