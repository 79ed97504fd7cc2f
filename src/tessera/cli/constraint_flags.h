// Constrained decoding: the same flags for every command that generates text.
#pragma once

#include "tessera/base/mapped_file.h"
#include "tessera/cli/decoding_flags.h"
#include "tessera/infer/engine/request.h"
#include "tessera/text/grammar/grammar_constraint.h"
#include "tessera/text/grammar/json_schema.h"
#include "tessera/text/grammar/regex_grammar.h"

namespace tessera::cli {

struct ConstraintFlags {
  std::string grammar, schema, pattern;

  void add(CLI::App& app) {
    using infer::decoding_field;
    auto* gbnf = add_flag_of(app, decoding_field("grammar"), grammar,
                             ": a file, or the grammar itself (text with ::=); rule \"root\"");
    auto* json = add_flag_of(app, decoding_field("json_schema"), schema,
                             ": a file, or the schema itself (text that begins with {); no white "
                             "space")
                     ->excludes(gbnf);
    add_flag_of(app, decoding_field("regex"), pattern)->excludes(gbnf)->excludes(json);
  }
  bool on() const { return !grammar.empty() || !schema.empty() || !pattern.empty(); }
  /// nullptr if no flag is given.
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
      return text::parse_gbnf(
          is_gbnf() ? grammar : read_text_file(grammar, text::Grammar::kMostBytes), where);
    if (!schema.empty())
      return text::schema_grammar(
                 is_json() ? spec::parse_json(schema, where) : spec::read_json_file(schema), where)
          .grammar;
    return text::regex_grammar(pattern, where);
  }
  /// The error of an answer that was truncated; none if it is complete.
  static void check(const infer::Generation& row) {
    if (!row.cut.empty())
      fail(ErrorKind::input, "grammar",
           "the answer was cut {}; expected more tokens (--max-new-tokens, --context)", row.cut);
  }

 private:
  // text that cannot be a file name
  bool is_gbnf() const { return grammar.find("::=") != std::string::npos; }
  bool is_json() const {
    const size_t first = schema.find_first_not_of(" \t\r\n");
    return first != std::string::npos && schema[first] == '{';
  }
  std::string name() const {
    if (!grammar.empty()) return is_gbnf() ? "--grammar" : grammar;
    if (!schema.empty()) return is_json() ? "--json-schema" : schema;
    return "regex";
  }
};

}  // namespace tessera::cli
