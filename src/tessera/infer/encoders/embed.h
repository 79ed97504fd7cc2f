// Embeddings of texts: one vector per text from the hidden states of its tokens.
// Reimers, Gurevych 2019, arXiv:1908.10084. The model says how (convert/sentence_modules.h).
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
  bool parse_special = false;  // special tokens written in a text become those tokens
  bool renormalize = false;    // after `dimensions` has cut vectors, where `normalize` is on
  std::string file = {};       // whose lines the texts are, for errors; "" = of no file
  const CancelToken* cancel = nullptr;
};

/// What a model with its adapters says, the default prompt included; the defaults where it says
/// nothing. Throws
/// Error(file) on modules, orders of them or poolings that embed() does not have.
EmbedOptions embed_options_of(const std::filesystem::path& model,
                              const std::vector<std::string>& adapters = {});

/// Numbers of a vector. Throws Error(file) where a module behind the pooling has another width.
int64_t embedding_width(const model::ModelSpec& spec, const EmbedOptions& options);

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
/// The vectors of such tokens, [rows, embedding_width()].
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
