// Retrieval-augmented generation (RAG): passages of an index in the prompts of a command.
#pragma once

#include <string>

#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/retrieve/rag.h"

namespace tessera::cli {

struct RetrieveFlags {
  retrieve::AskerOptions from;
  retrieve::PassageBudget room;

  bool on() const { return !from.index.empty(); }

  /// Its models have the load options of the command's model.
  retrieve::AskerOptions asker(const LoadFlags& loading) const {
    retrieve::AskerOptions out = from;
    out.loading = loading.others();
    return out;
  }

  void add(CLI::App& app, const char* help) {
    auto* retrieve = app.add_option("--retrieve", from.index, help);
    const auto needs = [&](CLI::Option* option) { option->needs(retrieve); };
    needs(app.add_option("--passages", room.passages, "maximum number of passages")
              ->capture_default_str()
              ->check(positive()));
    needs(app.add_option("--passage-tokens", room.tokens, "maximum tokens of all passages")
              ->capture_default_str()
              ->check(positive()));
    needs(names_model(app.add_option("--retrieve-with,--embedder", from.model,
                                     "embedding model, if it moved since indexing"),
                      from.model));
    needs(names_model(app.add_option("--rerank-with,--reranker", from.reranker,
                                     "cross-encoder that reranks four times as many passages"),
                      from.reranker));
  }
  void add(CLI::App& app) {
    add(app,
        "retrieval-augmented generation: prepend the passages of this index (`tessera index`) "
        "nearest to the question; sources are listed");
  }
};

struct PromptWithSources : retrieve::AugmentedPrompt {
  /// Prints sources to stderr, cited ones with a star.
  void print_sources(std::string_view answer) const {
    for (const Json& source : sources(answer))
      fmt::print(stderr, "{} [{}] {}\n", source["named"].get<bool>() ? "*" : " ",
                 source["number"].get<size_t>(), source["source"].get<std::string>());
  }
};

class Passages {
 public:
  Passages(const RetrieveFlags& flags, const LoadFlags& loading)
      : room_(flags.room), asker_(flags.asker(loading)) {}

  PromptWithSources ask(const std::string& question, const text::Tokenizer& tokenizer) const {
    return {asker_.ask(question, tokenizer, room_, &cancel_token())};
  }

 private:
  retrieve::PassageBudget room_;
  retrieve::RagPipeline asker_;
};

}  // namespace tessera::cli
