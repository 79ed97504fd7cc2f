// JSON schemas (2020-12, and equivalents in older drafts) as grammars: every text of the grammar is
// a JSON value that the schema accepts.
//
//   type, enum, const, properties, required, additionalProperties, items, prefixItems,
//   min/maxItems, min/maxLength, pattern, format (date-time, date, time, duration, uuid, email,
//   ipv4, ipv6, uri, hostname), minimum, maximum, exclusiveMinimum, exclusiveMaximum,
//   min/maxProperties where they follow from the rest, $ref within the schema, allOf, anyOf, and
//   oneOf with disjoint branches
//
// Values have no white space, properties in the order of the schema, and numbers of at most 15
// digits; additional properties (allowed by default) come last. So not every value of a schema has
// a text here. Unsupported keywords are rejected by path: Error(input), "unsupported schema:
// #/properties/x/not".
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

struct SchemaGrammar {
  Grammar grammar;
  std::vector<std::string> ignored;  // paths of ignored keywords; empty if `strict`
};

SchemaGrammar schema_grammar(const spec::Json& schema,
                             const std::string& where,
                             bool strict = true);

/// Any JSON object.
Grammar json_object_grammar();

/// Adds the texts of a schema to a grammar; returns the node index.
int32_t add_schema(Grammar& grammar,
                   const spec::Json& schema,
                   const std::string& where,
                   bool strict = true,
                   std::vector<std::string>* ignored = nullptr);

}  // namespace tessera::text
