// Retrieval-augmented generation (RAG): augments a question with retrieved passages and finds the
// citations in the answer.
//
//   const RagPipeline rag({.index = "notes.index"});
//   const AugmentedPrompt asked = rag.ask("how are keys rotated?", tokenizer, {.passages = 3});
//   ... generate `answer` from asked.prompt ...
//   print(asked.sources(answer));
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/retrieve/retriever.h"
#include "tessera/spec/json.h"

namespace tessera::retrieve {

struct AskerOptions {
  std::string index;                  // folder (index_file.h)
  std::string model;                  // embedding model of the index; "" = its path at indexing
  std::string reranker;               // reranker: a pair classifier with one output; "" = none
  convert::LoadOptions loading = {};  // how the files of both are read
};

/// Limits of the passages in a prompt.
struct PassageBudget {
  int64_t passages = 4, tokens = 1024;
};

/// A question with its passages, and their sources.
struct AugmentedPrompt {
  std::string prompt;
  std::vector<Hit> hits;

  /// The passages in the prompt, and whether the answer cites them: [{"number", "source", "score",
  /// "named"}].
  spec::Json sources(std::string_view answer) const;
};

/// Retriever and optional reranker; owns the index, the embedding model and the reranker. Used by
/// one thread at a time. The same question gives the same passages. The constructor throws
/// Error(usage) for an index of another model; ask() throws Error(cancelled) and errors of the
/// models.
class RagPipeline {
 public:
  /// Throws Error(usage) for an index of another model, and for a model that is no reranker.
  explicit RagPipeline(const AskerOptions& options);
  ~RagPipeline();

  /// With a reranker, four times as many passages are retrieved and the best by its scores are
  /// used. Token counts are those of `tokenizer`.
  AugmentedPrompt ask(const std::string& question,
                      const text::Tokenizer& tokenizer,
                      const PassageBudget& room,
                      const CancelToken* cancel = nullptr) const;

 private:
  Retriever retriever_;
  std::unique_ptr<infer::LoadedModel> reranker_;
};

}  // namespace tessera::retrieve
