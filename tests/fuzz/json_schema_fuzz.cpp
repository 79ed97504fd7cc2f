// A JSON schema, and a text that may be an answer.
#include "fuzz.h"

#include "tessera/text/grammar/grammar_constraint.h"
#include "tessera/text/grammar/json_schema.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(json_schema) {
  static const auto letters = std::make_shared<const text::TokenTrie>(
      std::vector<std::optional<std::string>>{"a", "{", "}"});
  const auto parts = fuzz::parts_of<2>(input);
  fuzz::run(
      [&] {
        const spec::Json schema = spec::parse_json(parts[0], "fuzz");
        for (const bool strict : {true, false}) {
          const auto read = text::schema_grammar(schema, "fuzz", strict);
          fuzz::check(!strict || read.ignored.empty(), "what is strict leaves out nothing");
          const text::GrammarConstraint constraint(read.grammar, letters, "fuzz");
          if (constraint.holds(parts[1])) spec::parse_json(parts[1], "an answer");
        }
      },
      {ErrorKind::file, ErrorKind::input, ErrorKind::spec});
}
