// A question behind the passages that may answer it, and what of them an answer names.
//
//   const RagPipeline asker({.index = "notes.index"});
//   const Sourced asked = asker.ask("how are keys rotated?", tokenizer, {.passages = 3});
//   ... asked.prompt is read, `answer` is said ...
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
  std::string index;     // a folder (index_file.h)
  std::string model;     // that made it; "" = where it lay then
  std::string reranker;  // a pair classifier of one number, which orders what is near; "" = none
  convert::LoadOptions loading = {};  // how the files of both are read
};

/// How much stands before a question.
struct PassageBudget {
  int64_t passages = 4, tokens = 1024;
};

/// A question behind its passages, and where these stand.
struct AugmentedPrompt {
  std::string prompt;
  std::vector<Hit> hits;

  /// What stood before the question, and whether the answer names it:
  /// [{"number", "source", "score", "named"}].
  spec::Json sources(std::string_view answer) const;
};

class RagPipeline {
 public:
  /// Throws Error(usage) for an index of another model, and a reranker that is none.
  explicit RagPipeline(const AskerOptions& options);
  ~RagPipeline();

  /// With a reranker the best of four times as many, by its scores. The tokens are `tokenizer`'s.
  AugmentedPrompt ask(const std::string& question,
                      const text::Tokenizer& tokenizer,
                      const PassageBudget& room,
                      const CancelToken* cancel = nullptr) const;

 private:
  Retriever retriever_;
  std::unique_ptr<infer::LoadedModel> reranker_;
};

}  // namespace tessera::retrieve
