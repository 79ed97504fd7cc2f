// What answers are held to: the same flags for every verb that makes texts.
#pragma once

#include "tessera/base/mapped_file.h"
#include "tessera/cli/cli.h"
#include "tessera/infer/request.h"
#include "tessera/text/grammar_constraint.h"
#include "tessera/text/json_schema.h"
#include "tessera/text/regex_grammar.h"

namespace tessera::cli {

struct ConstraintFlags {
  std::string grammar, schema, pattern;

  void add(CLI::App& app) {
    auto* gbnf = app.add_option("--grammar", grammar,
                                "a file with a grammar (GBNF, as llama.cpp has it): every answer "
                                "is a text of its rule \"root\"");
    auto* json = app.add_option("--json-schema", schema,
                                "a file with a JSON schema: every answer is JSON of it, without "
                                "white space")
                     ->excludes(gbnf);
    app.add_option("--regex", pattern, "every answer matches this pattern as a whole")
        ->excludes(gbnf)
        ->excludes(json);
  }
  bool on() const { return !grammar.empty() || !schema.empty() || !pattern.empty(); }
  /// Nothing where no flag is given.
  std::shared_ptr<const text::Constraint> make(const std::string& model,
                                               const text::Tokenizer* tokenizer) const {
    if (!on()) return nullptr;
    if (tokenizer == nullptr)
      fail(ErrorKind::usage, "grammar", "{} has no tokenizer, so that its tokens are no text",
           model);
    return std::make_shared<text::GrammarConstraint>(
        language(), std::make_shared<const text::TokenTrie>(*tokenizer), name());
  }
  text::Grammar language() const {
    const std::string where = name();
    if (!grammar.empty())
      return text::parse_gbnf(read_text_file(grammar, text::Grammar::kMostBytes), where);
    if (!schema.empty()) return text::schema_grammar(spec::read_json_file(schema), where).grammar;
    return text::regex_grammar(pattern, where);
  }
  /// The error of an answer that was cut; none where it is whole.
  static void check(const infer::Generation& row) {
    if (!row.cut.empty())
      fail(ErrorKind::input, "grammar",
           "the answer was cut {}; expected more tokens (--max-new-tokens, --context)", row.cut);
  }

 private:
  std::string name() const {
    return !grammar.empty() ? grammar : !schema.empty() ? schema : "regex";
  }
};

}  // namespace tessera::cli
