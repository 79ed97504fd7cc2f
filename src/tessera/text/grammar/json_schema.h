// JSON schemas (2020-12, and what older drafts write otherwise) as grammars: every text of the
// grammar is a JSON value that the schema accepts.
//
//   type, enum, const, properties, required, additionalProperties, items, prefixItems,
//   min/maxItems, min/maxLength, pattern, format (date-time, date, time, duration, uuid, email,
//   ipv4, ipv6, uri, hostname), minimum, maximum, exclusiveMinimum, exclusiveMaximum,
//   min/maxProperties where they follow from the rest, $ref within the schema, allOf, anyOf, and
//   oneOf where its branches have nothing in common
//
// Values are written without white space, properties in the order of the schema, numbers with 15
// digits at most; further properties (allowed unless "additionalProperties" says otherwise) come
// last. So not every value that a schema accepts has a text here. What cannot be held to is
// refused, by its place: Error(input), "unsupported schema: #/properties/x/not".
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

struct SchemaGrammar {
  Grammar grammar;
  std::vector<std::string> ignored;  // places of what is not held to; none where `strict`
};

SchemaGrammar schema_grammar(const spec::Json& schema,
                             const std::string& where,
                             bool strict = true);

/// Any JSON object.
Grammar json_object_grammar();

/// Puts the texts of a schema into a grammar; gives the number of a node.
int32_t add_schema(Grammar& grammar,
                   const spec::Json& schema,
                   const std::string& where,
                   bool strict = true,
                   std::vector<std::string>* ignored = nullptr);

}  // namespace tessera::text
