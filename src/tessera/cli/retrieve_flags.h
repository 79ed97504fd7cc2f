// Passages of an index before the prompts of a verb.
#pragma once

#include <string>

#include "tessera/cli/cli.h"
#include "tessera/retrieve/asker.h"

namespace tessera::cli {

struct RetrieveFlags {
  retrieve::AskerOptions from;
  retrieve::Room room;

  bool on() const { return !from.index.empty(); }

  void add(CLI::App& app, const char* help) {
    auto* retrieve = app.add_option("--retrieve", from.index, help);
    const auto needs = [&](CLI::Option* option) { option->needs(retrieve); };
    needs(app.add_option("--passages", room.passages, "at most so many")
              ->capture_default_str()
              ->check(positive()));
    needs(app.add_option("--passage-tokens", room.tokens, "of them together, at most")
              ->capture_default_str()
              ->check(positive()));
    needs(app.add_option("--retrieve-with", from.model,
                         "where the model lies that made the index; default: where it lay then"));
    needs(app.add_option("--rerank-with", from.reranker,
                         "a classifier of one number (a cross-encoder), which chooses among four "
                         "times as many passages"));
  }
  void add(CLI::App& app) {
    add(app,
        "put the passages of this index (`tessera index`) that are nearest to a question before "
        "it; the sources are listed behind the answer");
  }
};

struct Asked : retrieve::Sourced {
  /// Lines to stderr, the sources that the answer names with a star.
  void print_sources(std::string_view answer) const {
    for (const Json& source : sources(answer))
      fmt::print(stderr, "{} [{}] {}\n", source["named"].get<bool>() ? "*" : " ",
                 source["number"].get<size_t>(), source["source"].get<std::string>());
  }
};

class Passages {
 public:
  explicit Passages(const RetrieveFlags& flags) : room_(flags.room), asker_(flags.from) {}

  Asked ask(const std::string& question, const text::Tokenizer& tokenizer) const {
    return {asker_.ask(question, tokenizer, room_, &cancel_token())};
  }

 private:
  retrieve::Room room_;
  retrieve::Asker asker_;
};

}  // namespace tessera::cli
