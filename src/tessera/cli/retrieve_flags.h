// Passages of an index before the prompts of a verb.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/cli/cli.h"
#include "tessera/retrieve/cited.h"
#include "tessera/retrieve/retriever.h"

namespace tessera::cli {

struct RetrieveFlags {
  std::string index, model;
  int64_t passages = 4, tokens = 1024;

  bool on() const { return !index.empty(); }

  void add(CLI::App& app) {
    auto* retrieve =
        app.add_option("--retrieve", index,
                       "put the passages of this index (`tessera index`) that are nearest to a "
                       "question before it; the sources are listed behind the answer");
    const auto needs = [&](CLI::Option* option) { option->needs(retrieve); };
    needs(app.add_option("--passages", passages, "at most so many")
              ->capture_default_str()
              ->check(positive()));
    needs(app.add_option("--passage-tokens", tokens, "of them together, at most")
              ->capture_default_str()
              ->check(positive()));
    needs(app.add_option("--retrieve-with", model,
                         "where the model lies that made the index; default: where it lay then"));
  }
};

/// A question behind its passages, and where those stand.
struct Asked {
  std::string prompt;
  std::vector<retrieve::Hit> hits;

  /// What stood before the question, and whether the answer names it.
  Json sources(std::string_view answer) const {
    const std::vector<size_t> named = retrieve::cited(answer, hits.size());
    Json out = Json::array();
    for (size_t i = 0; i < hits.size(); ++i)
      out.push_back({{"number", i + 1},
                     {"source", hits[i].where},
                     {"score", hits[i].score},
                     {"named", std::find(named.begin(), named.end(), i + 1) != named.end()}});
    return out;
  }
  /// The same as lines to stderr, those that it names with a star.
  void print_sources(std::string_view answer) const {
    for (const Json& source : sources(answer))
      fmt::print(stderr, "{} [{}] {}\n", source["named"].get<bool>() ? "*" : " ",
                 source["number"].get<size_t>(), source["source"].get<std::string>());
  }
};

class Passages {
 public:
  explicit Passages(const RetrieveFlags& flags)
      : flags_(flags), retriever_(flags.index, flags.model) {}

  Asked ask(const std::string& question, const text::Tokenizer& tokenizer) const {
    Asked out;
    out.hits = retriever_.find(question, flags_.passages, &cancel_token());
    std::vector<retrieve::Source> sources;
    for (const retrieve::Hit& hit : out.hits) sources.push_back({hit.where, hit.text});
    retrieve::Asked asked = retrieve::with_passages(question, sources, flags_.tokens, tokenizer);
    out.hits.resize(asked.passages);
    out.prompt = std::move(asked.prompt);
    return out;
  }

 private:
  RetrieveFlags flags_;
  retrieve::Retriever retriever_;
};

}  // namespace tessera::cli
